"""What the shell offers: the names of topics and groups. Quick, and silent when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from penstock.transports import Transport

COMPLETION_SECONDS = 5.0
"""A shell waits no longer for a broker."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """The names of topics that begin so."""
    return _names(context, incomplete, _topics)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """The names of groups that begin so."""
    return _names(context, incomplete, _groups)


def _names(
    context: typer.Context, incomplete: str, look: Callable[[Transport], Awaitable[list[str]]]
) -> list[str]:
    found: list[str] = []
    # A shell that completes has no use for an error.
    with suppress(Exception):
        found = asyncio.run(_look(_url(context), look))
    return [name for name in found if name.startswith(incomplete)]


def _url(context: typer.Context) -> str | None:
    here: typer.Context | None = context
    while here is not None:
        if here.params.get("url"):
            return str(here.params["url"])
        here = here.parent  # type: ignore[assignment]  # older versions have another class for it
    return None


async def _look(url: str | None, look: Callable[[Transport], Awaitable[list[str]]]) -> list[str]:
    from penstock.cli.places import Place
    from penstock.transports import shared_registry

    place = Place.of(url)
    shared_registry().find(place.url)  # loading it takes time that the broker is not to blame for
    async with asyncio.timeout(COMPLETION_SECONDS):
        async with place.reading() as transport:
            return await look(transport)


async def _topics(transport: Transport) -> list[str]:
    return [name for name in await transport.topics() if not name.startswith("journal.")]


async def _groups(transport: Transport) -> list[str]:
    return sorted(
        {group for topic in await _topics(transport) for group in await transport.groups(topic)}
    )
