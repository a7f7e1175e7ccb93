"""What a transport can do. It says so before anything is subscribed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from penstock.errors import InvalidOption, NotSupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a transport can do beyond producing and consuming. Each of them is off by default."""

    durable: bool = False
    """What ``produce`` acknowledged survives a crash of the machine that keeps it."""
    shared: bool = False
    """Several processes may use it at the same time."""
    create_topics: bool = False
    """``create_topic`` works."""
    delete_topics: bool = False
    """``delete_topic`` works."""
    keyed_routing: bool = False
    """Records of one key go to one partition, by the hash that the bus and the log use."""
    groups: bool = False
    """Several members may share a group, each with partitions of its own."""
    rebalance: bool = False
    """Partitions move when a member joins, leaves or dies."""
    replay: bool = False
    """Records stay when they were committed: offsets last, and a new group may read from the start."""
    seek: bool = False
    """``seek`` to an offset, or to an end of the partition."""
    seek_time: bool = False
    """``seek`` and ``start`` by time."""
    pause: bool = False
    """``pause`` and ``resume`` of single partitions."""
    headers: bool = False
    """Records carry headers."""
    timestamps: bool = False
    """Records carry the timestamp that the producer gave."""
    lag: bool = False
    """``lag`` tells what a group has not consumed, in records."""
    lag_time: bool = False
    """``lag`` also tells it in milliseconds."""
    repartition: bool = False
    """``repartition`` changes the number of partitions and keeps the order per key."""
    list_groups: bool = False
    """``groups`` tells which groups read a topic."""
    transactions: bool = False
    """Records and commits may become visible together or not at all."""
    idempotence: bool = False
    """A batch that is produced again after an unknown outcome is kept once."""

    def names(self) -> tuple[str, ...]:
        """The capabilities that are there."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name))

    def require(self, transport: str, wanted: Iterable[str]) -> None:
        """Raise NotSupported, which names what is missing, unless all of these are there."""
        known = [one.name for one in fields(self)]
        for name in wanted:
            if name not in known:
                raise InvalidOption(
                    f"{name!r} is no capability: use {', '.join(known)}", option="requires"
                )
        if missing := [name for name in wanted if not getattr(self, name)]:
            raise NotSupported(
                f"the transport {transport!r} has no {', '.join(missing)}: it has "
                f"{', '.join(self.names()) or 'none of them'}",
                transport=transport,
                missing=tuple(missing),
            )
