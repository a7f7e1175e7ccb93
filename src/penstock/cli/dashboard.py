"""``penstock dashboard``: look at topics, groups and dead letters in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import Url


def dashboard(
    context: typer.Context,
    url: Url = None,
    host: Annotated[
        str | None, typer.Option("--host", help="The address; another than loopback needs a token.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="The port.")] = None,
) -> None:
    """Serve the dashboard until Ctrl-C.

    The token is a setting (PENSTOCK_DASHBOARD_TOKEN) and no option: others see what stands on a
    command line.
    """
    from penstock.config import load_settings

    before = context.find_root().params
    settings = load_settings(before.get("config"), url=url or before.get("url"))
    own = settings.dashboard
    token = None if own.token is None else own.token.get_secret_value()
    _serve(
        settings.url, own.host if host is None else host, own.port if port is None else port, token
    )


def _serve(url: str, host: str, port: int, token: str | None) -> None:
    from importlib import import_module

    from penstock import errors

    try:
        serve = import_module("penstock.dashboard").serve
    except (ImportError, AttributeError) as cause:
        raise errors.MissingExtra(
            "the dashboard needs packages that are not installed: pip install 'penstock[dashboard]'",
            extra="dashboard",
        ) from cause
    serve(url, host=host, port=port, token=token)
