"""Where a command works: the settings in use, and the transport or the log that they name."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import errors

if TYPE_CHECKING:
    import typer

    from penstock import WalMessageQueue
    from penstock.transports import Transport

_T = TypeVar("_T")
DEFAULT_URL = "log:./data"
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """What the settings say about where to work."""

    url: str
    name: str = "bus"
    tier: str | None = None
    offsets: str | None = None
    connect_seconds: float = CONNECT_SECONDS
    stalled_seconds: float = 30.0
    lag_records: int = 100_000
    lag_seconds: float = 300.0

    @classmethod
    def of(cls, url: str | None, file: str | None = None) -> Place:
        """From the command line, the environment and the files."""
        try:
            from penstock.config import load_settings

            settings = load_settings(file, url=url)
        except errors.MissingExtra:
            # Without pydantic-settings: no files, and of the environment the URL alone.
            if file is not None:
                raise
            _warn_of_files()
            return cls(url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL)
        _set_log_level(settings.log_level)
        return cls(
            settings.url,
            settings.name,
            settings.tier,
            settings.offsets,
            settings.connect_seconds,
            settings.thresholds.stalled_seconds,
            settings.thresholds.lag_records,
            settings.thresholds.lag_seconds,
        )

    @property
    def scheme(self) -> str:
        """What the URL begins with."""
        return self.url.partition(":")[0]

    @property
    def is_log(self) -> bool:
        """Whether it is a log, and not a broker."""
        return self.scheme == "log"

    def store(self) -> str:
        """The directory, or the URL of the store, that the log is in; NotSupported for a broker."""
        if not self.is_log:
            raise errors.NotSupported(
                f"{self.scheme}: is no log: this works on URLs such as log:./data alone",
                scheme=self.scheme,
            )
        rest = self.url.partition(":")[2].removeprefix("//")
        if not rest:
            raise errors.InvalidOption("log: names no directory: use log:./data", option="url")
        return rest

    def check_there(self) -> None:
        """InvalidOption when the log is on this machine, and nobody has made it: reading makes none."""
        if self.is_log and (path := local_path(self.store())) is not None and not path.exists():
            raise errors.InvalidOption(
                f"there is no log at {path}: name it with --url log:DIRECTORY or PENSTOCK_URL, or "
                "make it with `penstock topic create`",
                option="url",
            )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transport]:
        """The transport, to look at things: a log is not changed by it, and has to be there."""
        self.check_there()
        async with self._opened(read_only=True) as transport:
            yield transport

    @asynccontextmanager
    async def writing(self, *, make: bool = False) -> AsyncIterator[Transport]:
        """The transport, to change things; ``make`` allows to make the log."""
        if not make:
            self.check_there()
        async with self._opened() as transport:
            yield transport

    @asynccontextmanager
    async def queue(self, *, read_only: bool = False) -> AsyncIterator[WalMessageQueue]:
        """The log itself; NotSupported for a broker."""
        from penstock import WalMessageQueue

        store = self.store()
        self.check_there()
        async with WalMessageQueue(store, read_only=read_only, **self._log_options()) as queue:
            yield queue

    @asynccontextmanager
    async def _opened(self, **options: Any) -> AsyncIterator[Transport]:
        from penstock.transports import open_transport

        # Whether it is only looked at makes a difference to a log alone.
        own = self._log_options() | options if self.is_log else {}
        transport = open_transport(self.url, **own)
        try:
            await self._open(transport)
            yield transport
        finally:
            await transport.close()

    async def _open(self, transport: Transport) -> None:
        try:
            async with asyncio.timeout(self.connect_seconds):
                await transport.open()
        except TimeoutError as late:
            raise errors.Unreachable(
                f"{self.scheme}: did not answer within {self.connect_seconds:g} s: is it running, "
                "and is the URL right?",
                transport=transport.name,
                seconds=self.connect_seconds,
            ) from late

    def _log_options(self) -> dict[str, Any]:
        # A command comes and goes: the programs that use the log care for it.
        return {"maintenance_interval": None, "tier": self.tier, "offsets": self.offsets}


def local_path(store: str) -> Path | None:
    """The path of a store on this machine; None for one that is elsewhere."""
    scheme, colon, rest = store.partition(":")
    if not colon or "/" in scheme:
        return Path(store)
    if scheme in ("file", "sqlite"):
        return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
    return None


def _warn_of_files() -> None:
    if Path("penstock.toml").exists():
        sys.stderr.write("penstock.toml is not read: pip install 'penstock[config]'\n")


def _set_log_level(level: str) -> None:
    """Let the library's messages go to standard error from this level on."""
    import logging

    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


def place_of(context: typer.Context, url: str | None) -> Place:
    """The place that a verb was given; the options before the verb count too."""
    before = context.find_root().params
    return Place.of(url or before.get("url"), before.get("config"))


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a verb to its end."""
    return asyncio.run(work)
