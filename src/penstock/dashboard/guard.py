"""The ASGI layer around the dashboard: refuses what may not come in, and adds security headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from penstock.dashboard.gate import Gate
from penstock.dashboard.policy import HEADERS, policy_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/login", "/healthz", "/readyz"})
"""These need no token; the health routes tell strangers nothing but yes or no."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WS_REFUSED = 4403
BODY_BYTES_MAX = 2 * 1024 * 1024
"""No request is longer. Forms are short; what is typed on a page comes over the socket."""
PAGE_BYTES_MAX = 16 * 1024 * 1024


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
        if "text/html" in headers.get("accept", ""):
            # A page is read here before it is sent, so it must not be compressed.
            scope["headers"] = [one for one in scope["headers"] if one[0] != b"accept-encoding"]
        refusal = self._refusal(scope, headers)
        if refusal is None:
            scope["penstock_admitted"] = self._gate.admits(headers)
            if scope["penstock_admitted"] or scope["path"] in OPEN_PATHS:
                await self.app(scope, _bounded(receive), _with_headers(scope, send))
                return
            refusal = (401, "Log in first, or send the token as a bearer token.")
        await _refuse(scope, send, *refusal)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if not self._gate.knows_host(headers):
            return 421, "This dashboard does not answer to that name: use its address."
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if changes and not self._gate.is_same_site(headers):
            return 403, "This came from another site."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
            return 413, f"This is longer than {BODY_BYTES_MAX} bytes."
        return None


def _bounded(receive: Receive) -> Receive:
    """Ends a request that is longer than any, also when it did not say how long it is."""
    left = BODY_BYTES_MAX

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return bounded


def _with_headers(scope: Scope, send: Send) -> Send:
    """Adds the headers. A page is held until all of it is there, as its policy names its scripts."""
    if scope["type"] != "http":
        return send
    held: list[Message] = []
    cached = scope["path"].startswith("/_nicegui")

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            held.append(message)
        elif held:
            await _hold(held, message, send, cached)
        else:
            if message["type"] == "http.response.start":
                _add_headers(message, policy_of(), cached=cached)
            await send(message)

    return send_with_headers


async def _hold(held: list[Message], message: Message, send: Send, cached: bool) -> None:
    held.append(message)
    page = b"".join(one.get("body", b"") for one in held)
    if message.get("more_body", False) and len(page) <= PAGE_BYTES_MAX:
        return
    _add_headers(held[0], policy_of(page), cached=cached)
    for one in held:
        await send(one)
    held.clear()


def _is_page(start: Message) -> bool:
    headers: dict[bytes, bytes] = {name.lower(): text for name, text in start.get("headers", ())}
    return headers.get(b"content-type", b"").startswith(b"text/html")


def _add_headers(start: Message, policy: str, *, cached: bool) -> None:
    told = {**HEADERS, "content-security-policy": policy}
    if not cached:
        told["cache-control"] = "no-store"
    own = [(name.encode(), text.encode()) for name, text in told.items()]
    names = {name for name, _ in own}
    others = [one for one in start.get("headers", ()) if one[0].lower() not in names]
    start["headers"] = [*others, *own]


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
