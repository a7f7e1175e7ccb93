"""The ASGI layer around the dashboard: refuses what may not come in, and adds security headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from penstock.dashboard.gate import Gate

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/login", "/healthz", "/readyz"})
"""These need no token; the health routes tell strangers nothing but yes or no."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WS_REFUSED = 4403
HEADERS = {
    # Everything comes from here. The framework makes its components in the browser, hence eval.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Lets requests through to ``app`` that the gate admits."""

    def __init__(self, app: App, gate: Gate) -> None:
        self.app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1").lower(): value.decode("latin-1")
            for key, value in scope["headers"]
        }
        refusal = self._refusal(scope, headers)
        if refusal is None:
            scope["penstock_admitted"] = self._gate.admits(headers)
            if scope["penstock_admitted"] or scope["path"] in OPEN_PATHS:
                await self.app(scope, receive, _with_headers(scope, send))
                return
            refusal = (401, "Log in first, or send the token as a bearer token.")
        await _refuse(scope, send, *refusal)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if not self._gate.knows_host(headers):
            return 421, "This dashboard does not answer to that name: use its address."
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if changes and not self._gate.is_same_site(headers):
            return 403, "This came from another site."
        return None


def _with_headers(scope: Scope, send: Send) -> Send:
    if scope["type"] != "http":
        return send
    own = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
    if not scope["path"].startswith("/_nicegui"):
        own.append((b"cache-control", b"no-store"))

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in own}
            others = [one for one in message.get("headers", ()) if one[0].lower() not in given]
            message["headers"] = [*others, *own]
        await send(message)

    return send_with_headers


async def _refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": WS_REFUSED, "reason": why})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    body = why.encode()
    if status == 401 and _wants_page(scope):
        place = f"/login?next={quote(scope['path'], safe='/')}"
        status, body = 303, b""
        headers.append((b"location", place.encode()))
    elif status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    guarded = _with_headers(scope, send)
    await guarded({"type": "http.response.start", "status": status, "headers": headers})
    await guarded({"type": "http.response.body", "body": body})


def _wants_page(scope: Scope) -> bool:
    accepts = dict(scope["headers"]).get(b"accept", b"")
    return scope["method"] == "GET" and b"text/html" in accepts
