"""Secrets are shown to nobody: neither those with a name of their own, nor those inside URLs."""

from __future__ import annotations

import re

MASK = "********"
_PASSWORD = re.compile(r"(?<=//)([^/?#]*?):([^/?#]*)(?=@)")
_TOKEN = re.compile(r"(?<=//)([^/?#@:]+)(?=@)")
_SECRET_QUERY = re.compile(
    r"((?:^|[?&;])[^=&;]*(?:password|passwd|secret|token|key|credential)[^=&;]*=)[^&;#]*",
    re.IGNORECASE,
)


def masked_url(url: str) -> str:
    """The URL without its secrets: passwords, tokens, and what the query says of such.

    What stands alone before the ``@`` may be a token, and is hidden too.
    """
    hidden, count = _PASSWORD.subn(rf"\1:{MASK}", url)
    if not count:
        hidden = _TOKEN.sub(MASK, url)
    return _SECRET_QUERY.sub(rf"\1{MASK}", hidden)
