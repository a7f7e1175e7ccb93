"""Which transport a URL means. Third parties add theirs by an entry point or by a call.

An entry point in the group ``penstock.transports`` has the URL scheme as its name and a subclass of
:class:`Transport` as its value. Nothing is imported before a URL asks for it.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidOption, MissingExtra, UsageError
from penstock.transports.base import Transport

ENTRY_POINTS = "penstock.transports"
EMBEDDED = "penstock.transports.embedded:EmbeddedTransport"
BROKERS = {
    "kafka": ("penstock.transports.kafka:KafkaTransport", "kafka"),
    "nats": ("penstock.transports.nats:NatsTransport", "nats"),
    "pulsar": ("penstock.transports.pulsar:PulsarTransport", "pulsar"),
    "pulsar+ssl": ("penstock.transports.pulsar:PulsarTransport", "pulsar"),
    "rabbitmq": ("penstock.transports.rabbitmq:RabbitTransport", "rabbitmq"),
    "rabbitmqs": ("penstock.transports.rabbitmq:RabbitTransport", "rabbitmq"),
    "redis": ("penstock.transports.redis:RedisTransport", "redis"),
    "rediss": ("penstock.transports.redis:RedisTransport", "redis"),
}
"""Scheme → transport, and the extra that its packages come with."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}")


@dataclass(frozen=True, slots=True)
class _Maker:
    """Where a transport is found, and what has to be installed for it."""

    kind: type[Transport] | str
    extra: str | None

    def load(self, scheme: str) -> type[Transport]:
        if not isinstance(self.kind, str):
            return self.kind
        module, _, name = self.kind.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as cause:
            raise self._missing(scheme, cause) from cause
        return _checked(scheme, found)

    def _missing(self, scheme: str, cause: ImportError) -> MissingExtra:
        need = f"penstock[{self.extra}]" if self.extra else str(cause.name or self.kind)
        return MissingExtra(
            f"{scheme}: URLs need a package that is not installed: pip install '{need}'",
            extra=self.extra,
            scheme=scheme,
        )


class TransportRegistry:
    """URL schemes and their transports, and the one that is active.

    A new registry knows ``log:``, ``memory:``, the brokers and what is installed with an entry point.
    """

    def __init__(self) -> None:
        self._makers = {scheme: _Maker(EMBEDDED, None) for scheme in ("log", "memory")}
        self._makers |= {scheme: _Maker(*broker) for scheme, broker in BROKERS.items()}
        self._looked = False
        self._active: Transport | None = None

    def register(
        self,
        scheme: str,
        kind: type[Transport] | str,
        *,
        extra: str | None = None,
        replace: bool = False,
    ) -> None:
        """Let URLs of a scheme mean a transport: a class, or ``"module:Class"`` to import late.

        ``extra`` is the extra of Penstock that its packages come with. A scheme that is taken
        raises InvalidOption unless ``replace`` is set.
        """
        if not _SCHEME.fullmatch(scheme):
            raise InvalidOption(
                f"{scheme!r} is no URL scheme: use small letters, digits, '+', '.' and '-'",
                option="scheme",
            )
        if scheme in self._all() and not replace:
            raise InvalidOption(f"{scheme}: is taken; replace=True replaces it", option="scheme")
        if not isinstance(kind, str):
            kind = _checked(scheme, kind)
        self._makers[scheme] = _Maker(kind, extra)

    def schemes(self) -> tuple[str, ...]:
        """All schemes, in order. Imports none of the transports."""
        return tuple(sorted(self._all()))

    def find(self, url: str) -> type[Transport]:
        """The transport class of a URL; InvalidOption or MissingExtra that says what would do."""
        scheme, colon, _ = url.partition(":")
        maker = self._all().get(scheme) if colon else None
        if maker is None:
            # The rest of the URL is not repeated: it may hold a password.
            raise InvalidOption(
                f"no transport for {scheme[:20] + colon!r}: use "
                f"{', '.join(f'{one}:' for one in self.schemes())}. Packages add others by an entry "
                f"point in the group {ENTRY_POINTS!r}",
                option="url",
                scheme=scheme,
                known=self.schemes(),
            )
        return maker.load(scheme)

    def make(self, url: str, **options: Any) -> Transport:
        """A transport for a URL, not open yet. Options go to it."""
        return self.find(url).from_url(url, **options)

    def activate(self, transport: Transport | str, **options: Any) -> Transport:
        """Make a transport, or that of a URL, the active one, and return it.

        Opening and closing it is the caller's, also of the one that was active before.
        """
        made = self.make(transport, **options) if isinstance(transport, str) else transport
        self._active = made
        return made

    @property
    def active(self) -> Transport:
        """The transport that was activated last; UsageError when none was."""
        if self._active is None:
            raise UsageError("no transport is active: registry.activate('log:./data') first")
        return self._active

    def _all(self) -> dict[str, _Maker]:
        if not self._looked:
            self._looked = True
            self._makers = _installed() | self._makers
        return self._makers


def _installed() -> dict[str, _Maker]:
    # Loaded here: it takes longer to import than most programs need it.
    from importlib.metadata import entry_points

    return {one.name: _Maker(one.value, None) for one in entry_points(group=ENTRY_POINTS)}


def _checked(scheme: str, kind: object) -> type[Transport]:
    if isinstance(kind, type) and issubclass(kind, Transport):
        return kind
    raise InvalidOption(f"what {scheme}: means is no Transport: {kind!r}", option="kind")


_shared = TransportRegistry()


def shared_registry() -> TransportRegistry:
    """The registry of this process, which :func:`open_transport` asks."""
    return _shared


def open_transport(url: str, **options: Any) -> Transport:
    """Make the transport of a URL, to be opened with ``async with``. Options go to it."""
    return _shared.make(url, **options)
