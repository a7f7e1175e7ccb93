"""What a browser may do with a page: the headers, and which scripts of the page may run."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
# Everything comes from here. The framework makes its components in the browser, hence eval. Scripts in a
# page run only as the page was sent: what is put into it later, by whatever way, does not.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'{scripts}; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_SCRIPT = re.compile(rb"<script([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)


def policy_of(page: bytes = b"") -> str:
    """The policy of a page, with the hashes of the scripts that stand in it."""
    inline = [text for attributes, text in _SCRIPT.findall(page) if b"src=" not in attributes]
    hashes = [b64encode(hashlib.sha256(text).digest()).decode() for text in inline]
    return POLICY.format(scripts="".join(f" 'sha256-{one}'" for one in hashes))
