"""The transports of a manager, by name, and the one that is active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidOption, UsageError
from penstock.scaling.limits import ScalingLimits
from penstock.stores.base import PersistentBackingStore
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.group_commits import NOWHERE
from penstock.streaming.transport_statistics import TransportMeter, TransportStatistics
from penstock.system import System
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.base import Consumer, Transport
from penstock.transports.registry import TransportRegistry, shared_registry


@dataclass(slots=True, eq=False)
class TransportSlot:
    """A transport, what is counted of it, and how another process would open it."""

    name: str
    transport: Transport
    meter: TransportMeter
    url: str | None
    """None when the program made the transport itself."""
    options: Mapping[str, Any]
    checkpoints: CheckpointStore | None = None
    opened: bool = False


class TransportSet:
    """Makes transports through the registry, opens them on first use, closes all at the end."""

    def __init__(
        self,
        registry: TransportRegistry | None,
        checkpoints: PersistentBackingStore | None,
        cache_entries_max: int,
        system: System,
    ) -> None:
        self._registry = registry or shared_registry()
        self._checkpoints = checkpoints
        self._cache_entries_max = cache_entries_max
        self._system = system
        self._slots: dict[str, TransportSlot] = {}
        self._active: TransportSlot | None = None

    def register(
        self, name: str, transport: Transport | str, options: Mapping[str, Any]
    ) -> TransportSlot:
        """Add a transport, or that of a URL; the first one is the active one."""
        if name in self._slots:
            raise InvalidOption(f"there is a transport {name!r} already", option="transport")
        url = transport if isinstance(transport, str) else None
        if isinstance(transport, str):
            made = self._registry.make(transport, **options)
        elif options:
            raise InvalidOption("options go with a URL: this transport is made", option="options")
        else:
            made = transport
        slot = TransportSlot(name, made, TransportMeter(name, self._system), url, dict(options))
        self._slots[name] = slot
        self._active = self._active or slot
        return slot

    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were registered."""
        return tuple(self._slots)

    def find(self, name: str | None = None) -> TransportSlot:
        """The transport of that name, or the active one; InvalidOption when there is none."""
        if name is None:
            assert self._active is not None, "the first one that is registered is active"
            return self._active
        slot = self._slots.get(name)
        if slot is None:
            raise InvalidOption(
                f"there is no transport {name!r}: register it, or use {', '.join(self._slots)}",
                option="transport",
                known=self.names(),
            )
        return slot

    def connected(self, name: str | None = None) -> TransportSlot:
        """The transport of that name, or the active one; UsageError unless it is connected."""
        slot = self.find(name)
        if not slot.opened:
            raise UsageError(
                f"the transport {slot.name!r} is not connected yet: await "
                f"streams.connect({slot.name!r}) first",
                transport=slot.name,
            )
        return slot

    def activate(self, name: str) -> TransportSlot:
        """Make another one the active one."""
        self._active = self.find(name)
        return self._active

    async def open(self, slot: TransportSlot) -> TransportSlot:
        """Connect, if that did not happen yet."""
        if not slot.opened:
            await slot.transport.open()
            slot.opened = True
        return slot

    def checkpoints_of(self, slot: TransportSlot) -> CheckpointStore | None:
        """Where checkpoints of its groups are; None: nowhere."""
        if slot.checkpoints is None:
            store = slot.transport.checkpoint_store or self._checkpoints
            if store is not None:
                limits = ScalingLimits(cache_entries_max=self._cache_entries_max)
                slot.checkpoints = CheckpointStore(store, limits=limits, system=self._system)
        return slot.checkpoints

    def resize_cache(self, entries_max: int) -> None:
        """Let checkpoints take another number of places in memory."""
        self._cache_entries_max = entries_max
        for slot in self._slots.values():
            if slot.checkpoints is not None:
                slot.checkpoints.resize(entries_max)

    def statistics(self) -> dict[str, TransportStatistics]:
        """The figures of each."""
        return {name: slot.meter.statistics() for name, slot in self._slots.items()}

    async def close(self, timeout: float) -> None:
        """Close all; the error of the first one that fails is raised after the others are closed."""
        errors: list[Exception] = []
        for slot in self._slots.values():
            for part in (slot.checkpoints, slot.transport if slot.opened else None):
                if part is not None:
                    try:
                        await part.close(timeout=timeout)
                    except Exception as error:
                        errors.append(error)
            slot.opened = False
        if errors:
            raise errors[0]


async def committed_offset(transport: Transport, topic: str, group: str, partition: int) -> int:
    """The offset that a group has committed of a partition; of what is not there, far away."""
    if not transport.capabilities.lag:
        return NOWHERE
    found = await transport.lag(topic, group)
    return next((one.committed for one in found if one.partition == partition), NOWHERE)


def make_consumer(
    subscribe: Callable[..., Consumer],
    transport: Transport,
    *,
    on_revoke: OnRevoke,
    handled: Handled,
) -> Consumer:
    """Subscribe; only a transport that repartitions wants to know how far its records are handled."""
    if transport.capabilities.repartition:
        return subscribe(on_revoke=on_revoke, handled=handled)
    return subscribe(on_revoke=on_revoke)
