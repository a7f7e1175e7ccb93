"""Limits as values: checked when they are made, changed by making another one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

from penstock.errors import InvalidOption
from penstock.system import System

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all limits have in common: whole numbers of at least 1. Zero never means unlimited."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))

    def with_(self, **changes: int) -> Self:
        """The same limits but for these. Raises InvalidOption for a name or value that cannot be."""
        known = [field.name for field in fields(self)]
        for name in changes.keys() - set(known):
            raise InvalidOption(
                f"there is no limit {name!r}: these are {', '.join(known)}", option=name
            )
        return replace(self, **changes)


LimitsType = TypeVar("LimitsType", bound=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLimits(Limits):
    """What one subsystem may take."""

    cache_entries_max: int = 10_000
    """Entries that are held in memory."""
    memory_bytes_max: int = 100 * MEBIBYTE
    """Bytes of what is held in memory."""
    concurrent_operations_max: int = 64
    """Operations that run at the same time."""
    queue_depth_max: int = 1_000
    """Operations that wait or run; more are refused, or wait outside."""

    @classmethod
    def for_memory(
        cls, share: float = 0.1, *, entry_bytes: int = 1_024, system: System | None = None
    ) -> Self:
        """Limits that take a share of the memory that is left on this machine or in this container.

        ``entry_bytes`` is what one entry is expected to need; it gives the number of entries. The
        memory is looked at now: pass new limits to ``reconfigure_limits`` when it has changed.
        """
        if not 0 < share <= 1 or entry_bytes < 1:
            raise InvalidOption(
                f"a share of {share} for entries of {entry_bytes} bytes: use 0 < share <= 1, and 1 "
                "byte or more",
                option="entry_bytes" if 0 < share <= 1 else "share",
            )
        size = max(1, int((system or System()).memory_bytes() * share))
        return cls(memory_bytes_max=size, cache_entries_max=max(1, size // entry_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class BusLimits(Limits):
    """What one bus may take."""

    max_subscribers_per_topic: int = 1_000
    """Subscribers of one topic; one more is refused."""
    max_message_queue_size: int = 10_000
    """Messages that wait in the queue of one partition."""
    max_topics: int = 10_000
    """Topics; those that exist go on when the limit is lowered below their number."""


def _check(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(
            f"{name} is {value!r}; it must be a whole number of 1 or more", option=name
        )


def checked_limits(limits: object, kind: type[LimitsType]) -> LimitsType:
    """The limits themselves when they are of this kind; raises InvalidOption when not."""
    if isinstance(limits, kind):
        return limits
    raise InvalidOption(
        f"limits of this subsystem are {kind.__name__}, not {type(limits).__name__}",
        option="limits",
    )
