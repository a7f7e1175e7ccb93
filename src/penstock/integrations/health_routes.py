"""Health and metrics over HTTP, for any ASGI application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock import errors
from penstock.observe import CONTENT_TYPE, Observer, Stall, prometheus_text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[..., Awaitable[None]]
"""Frameworks give the three arguments types of their own."""

JSON = "application/json"
OK, NOT_ALLOWED, NOT_THERE, UNAVAILABLE = 200, 405, 501, 503


class HealthRoutes:
    """Answers three paths and hands everything else to the application around which it stands.

    ``/healthz`` is 200 while the process does its work, and 503 when something here stands still
    that a restart can end. ``/readyz`` is 200 while it can take more work. Both say why in JSON.
    ``/metrics`` is for Prometheus, and needs ``penstock[prometheus]``.

    It is plain ASGI: ``app.add_middleware(HealthRoutes, observer=observer)`` with FastAPI and
    Starlette, ``HealthRoutes(app, observer)`` with all others. The answers hold names of topics, groups
    and handlers, and no payloads. The paths begin with ``prefix``.
    """

    def __init__(self, app: Application, observer: Observer, *, prefix: str = "") -> None:
        self._app = app
        self._observer = observer
        self._routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            f"{prefix}/healthz": self._alive,
            f"{prefix}/readyz": self._ready,
            f"{prefix}/metrics": self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        answer = self._routes.get(scope.get("path", "")) if scope["type"] == "http" else None
        if answer is None:
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _respond(send, NOT_ALLOWED, JSON, b"{}")
        else:
            await _respond(send, *answer(), head=scope["method"] == "HEAD")

    def _alive(self) -> tuple[int, str, bytes]:
        health = self._observer.health()
        return _told(health.alive, "alive", health.reasons, health.stalls)

    def _ready(self) -> tuple[int, str, bytes]:
        health = self._observer.health()
        return _told(health.ready, "ready", health.reasons, health.stalls)

    def _metrics(self) -> tuple[int, str, bytes]:
        try:
            return OK, CONTENT_TYPE, prometheus_text(self._observer)
        except errors.MissingExtra as missing:
            return NOT_THERE, "text/plain; charset=utf-8", str(missing).encode()


def _told(
    good: bool, name: str, reasons: tuple[str, ...], stalls: tuple[Stall, ...]
) -> tuple[int, str, bytes]:
    body = {name: good, "reasons": reasons, "stalls": [_stall(one) for one in stalls]}
    return OK if good else UNAVAILABLE, JSON, json.dumps(body).encode()


def _stall(stall: Stall) -> dict[str, Any]:
    """Without the stack: source code is not for everybody who can reach the port."""
    return {
        "source": stall.source,
        "group": stall.group,
        "topic": stall.topic,
        "partition": stall.partition,
        "offset": stall.offset,
        "seconds": round(stall.seconds, 3),
        "cause": stall.cause,
    }


async def _respond(
    send: Send, status: int, content_type: str, body: bytes, *, head: bool = False
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else body})
