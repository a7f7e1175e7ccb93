"""Secrets are shown to nobody: neither those with a name of their own, nor those inside URLs."""

from __future__ import annotations

import re

MASK = "********"
_SECRET_QUERY = re.compile(
    r"((?:^|[?&;])[^=&;]*(?:password|passwd|secret|token|key|credential)[^=&;]*=)[^&;#]*",
    re.IGNORECASE,
)


def masked_url(url: str) -> str:
    """The URL without its secrets: passwords, tokens, and what the query says of such.

    What stands alone before the ``@`` may be a token, and is hidden too. A password may hold a ``/`` or
    a ``?`` that nobody escaped: all up to the last ``@`` is hidden, rather too much than too little.
    """
    scheme, slashes, rest = url.partition("//")
    before, question, query = rest.partition("?")
    if "@" not in before:
        before, question, query = rest, "", ""
    login, sign, place = before.rpartition("@")
    if sign:
        user, colon, _ = login.partition(":")
        before = f"{user}:{MASK}@{place}" if colon else f"{MASK}@{place}"
    return _SECRET_QUERY.sub(rf"\1{MASK}", f"{scheme}{slashes}{before}{question}{query}")
