"""The web application: the plain routes, and the pages that the framework draws."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from nicegui import ui

from penstock.dashboard.board import Board
from penstock.dashboard.gate import COOKIE, Gate, safe_path
from penstock.dashboard.login import login_page
from penstock.dashboard.site_state import claim, current
from penstock.observe import CONTENT_TYPE, prometheus_text

BODY_BYTES_MAX = 4_096


def application(board: Board, gate: Gate) -> Any:
    """The ASGI application for a board; UsageError while another one is shown."""
    claim(board)
    app = _application()
    app.state.gate = gate
    board.locked = gate.locked
    return app


@cache
def _application() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)
    app.add_api_route("/metrics", metrics)
    app.add_api_route("/login", show_login)
    app.add_api_route("/login", log_in, methods=["POST"])
    app.add_api_route("/logout", log_out, methods=["POST"])
    from penstock.dashboard import pages

    pages.register()
    ui.run_with(
        app,
        title="Penstock",
        dark=None,
        language="en-US",
        favicon=ICON,
        show_welcome_message=False,
        reconnect_timeout=5.0,
        binding_refresh_interval=None,
        tailwind=False,
    )
    return app


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" '
    'fill="#0f766e"/><path d="M7 9h18M7 16h13M7 23h8" stroke="#fff" stroke-width="4" '
    'stroke-linecap="round"/></svg>'
)

# Health and metrics


async def healthz(request: Request) -> Response:
    """Whether the program does its work: 503 when a restart would help."""
    return await _health(request, "alive")


async def readyz(request: Request) -> Response:
    """Whether the program can take more work."""
    return await _health(request, "ready")


async def _health(request: Request, what: str) -> Response:
    health = await asyncio.to_thread(current().observer.health)
    fine: bool = getattr(health, what)
    told: dict[str, object] = {what: fine}
    if request.scope["penstock_admitted"]:
        told["reasons"] = list(health.reasons)
    return JSONResponse(told, status_code=200 if fine else 503)


async def metrics() -> Response:
    """The figures for Prometheus."""
    text = await asyncio.to_thread(prometheus_text, current().observer)
    return Response(text, headers={"content-type": CONTENT_TYPE})


# Logging in


async def show_login(request: Request) -> Response:
    """The form."""
    if request.scope["penstock_admitted"]:
        return RedirectResponse(safe_path(request.query_params.get("next", "/")), 303)
    return HTMLResponse(login_page(request.query_params.get("next", "/")))


async def log_in(request: Request) -> Response:
    """Check the token; the browser gets a cookie for it."""
    gate: Gate = request.app.state.gate
    form = parse_qs((await _body(request)).decode("utf-8", "replace"))
    place = safe_path(form.get("next", ["/"])[0])
    wait = gate.seconds_to_wait()
    if wait:
        told = f"Too many wrong tokens. Try again in {wait:.0f} seconds."
        return HTMLResponse(login_page(place, told), 429, {"retry-after": f"{wait:.0f}"})
    if not gate.try_token(form.get("token", [""])[0]):
        return HTMLResponse(login_page(place, "That is not the token."), 401)
    answer = RedirectResponse(place, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, gate.session, httponly=True, samesite="strict", secure=secure)
    return answer


async def log_out() -> Response:
    """Forget the cookie."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


async def _body(request: Request) -> bytes:
    """The form; what is longer than any form is not read."""
    found = b""
    async for chunk in request.stream():
        found += chunk
        if len(found) > BODY_BYTES_MAX:
            return b""
    return found
