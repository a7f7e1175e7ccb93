"""Filters: which events the bus, or a handler, takes.

``bus.on(OrderPlaced, where=in_session("eu") & ~with_header("x-test"))`` asks before every call of
one handler; ``bus.add_filter(...)`` asks before an event is queued. Any function of an envelope
serves as a filter; those here can also be combined with ``&``, ``|`` and ``~``.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidOption, UsageError
from penstock.messages import DEFAULT_SESSION, Envelope
from penstock.system import Clock, OsClock

RATE_MAX = 1_000_000

Predicate = Callable[[Envelope], object]


class Filter:
    """Decides by the envelope. Combines with ``&`` and ``|`` from left to right, as ``and`` and ``or``.

    The right side is not asked when the left side has decided, which matters for :func:`rate` and
    :func:`debug`: put them last.
    """

    __slots__ = ("_predicate", "name")

    def __init__(self, predicate: Predicate, name: str = "") -> None:
        self._predicate = predicate
        self.name = name or getattr(predicate, "__name__", "filter")

    def __call__(self, envelope: Envelope) -> bool:
        return bool(self._predicate(envelope))

    def __and__(self, other: Predicate) -> Filter:
        return all_of(self, other)

    def __rand__(self, other: Predicate) -> Filter:
        return all_of(other, self)

    def __or__(self, other: Predicate) -> Filter:
        return any_of(self, other)

    def __ror__(self, other: Predicate) -> Filter:
        return any_of(other, self)

    def __invert__(self) -> Filter:
        return not_(self)

    def __repr__(self) -> str:
        return self.name


# -------------------------------------------------------------------------------- combinations


def all_of(*filters: Predicate) -> Filter:
    """Passes what all of them pass; all events when there are none."""
    return Filter(lambda envelope: all(one(envelope) for one in filters), _joined(" & ", filters))


def any_of(*filters: Predicate) -> Filter:
    """Passes what one of them passes; nothing when there are none."""
    return Filter(lambda envelope: any(one(envelope) for one in filters), _joined(" | ", filters))


def not_(passes: Predicate) -> Filter:
    """Passes what the other one does not."""
    return Filter(lambda envelope: not passes(envelope), f"~{_name_of(passes)}")


# ----------------------------------------------------------------------------- by what it says


def of_type(*types: type) -> Filter:
    """Passes messages of these classes and of classes derived from them."""
    if not types:
        raise UsageError("name the classes that pass: of_type(OrderPlaced)")
    return Filter(
        lambda envelope: isinstance(envelope.message, types),
        f"of_type({', '.join(one.__qualname__ for one in types)})",
    )


def matching(pattern: str) -> Filter:
    """Passes messages whose topic the glob matches, such as ``storage.*``; case counts."""
    if not pattern:
        raise InvalidOption("an empty pattern passes nothing: use '*' for all", option="pattern")
    matches = re.compile(fnmatch.translate(pattern)).fullmatch
    return Filter(lambda envelope: matches(envelope.topic), f"matching({pattern!r})")


def where(predicate: Callable[[Any], object]) -> Filter:
    """Passes messages of which the predicate is true: ``where(lambda order: order.total > 100)``.

    When the predicate raises, ``publish`` raises that (filter of the bus), or the handler counts as
    failed (filter of a handler).
    """
    return Filter(lambda envelope: predicate(envelope.message), f"where({_name_of(predicate)})")


# ------------------------------------------------------------------------ by what is known of it


def in_session(*sessions: str) -> Filter:
    """Passes what was published in one of these sessions; without a name, what was in none."""
    wanted = frozenset(sessions or (DEFAULT_SESSION,))
    return Filter(lambda envelope: envelope.session in wanted, f"in_session{tuple(sorted(wanted))}")


def with_header(name: str, value: str | None = None) -> Filter:
    """Passes messages that have the header, with this value if one is given."""
    if value is None:
        return Filter(lambda envelope: name in envelope.headers, f"with_header({name!r})")
    return Filter(
        lambda envelope: envelope.headers.get(name) == value, f"with_header({name!r}, {value!r})"
    )


def with_priority(at_least: int) -> Filter:
    """Passes messages of this priority and more urgent ones; the lowest number is most urgent."""
    return Filter(lambda envelope: envelope.priority <= at_least, f"with_priority({at_least})")


# ----------------------------------------------------------------------------------- with a side


def rate(limit: int, per: float = 1.0, *, clock: Clock | None = None) -> Filter:
    """Passes at most ``limit`` messages in any ``per`` seconds; the others are filtered out.

    It remembers ``limit`` moments. Each place that should have a rate of its own needs its own.
    """
    if not 1 <= limit <= RATE_MAX or not 0 < per < float("inf"):
        raise InvalidOption(
            f"a rate of {limit} in {per} s: use 1..{RATE_MAX} and a time above 0", option="rate"
        )
    now = (clock or OsClock()).monotonic
    passed: deque[float] = deque(maxlen=limit)

    def within_rate(_: Envelope) -> bool:
        moment = now()
        if len(passed) == limit and moment - passed[0] < per:
            return False
        passed.append(moment)
        return True

    return Filter(within_rate, f"rate({limit}, {per:g})")


def debug(
    logger: logging.Logger | None = None, *, level: int = logging.DEBUG, label: str = "event"
) -> Filter:
    """Passes everything, and logs what comes by."""
    log = logger or logging.getLogger("penstock.bus.filters")

    def tell(envelope: Envelope) -> bool:
        log.log(level, "%s %s %s in %s", label, envelope.topic, envelope.id, envelope.session)
        return True

    return Filter(tell, f"debug({label!r})")


def _joined(sign: str, filters: tuple[Predicate, ...]) -> str:
    return f"({sign.join(map(_name_of, filters))})"


def _name_of(predicate: Callable[..., object]) -> str:
    if isinstance(predicate, Filter):
        return predicate.name
    return getattr(predicate, "__name__", type(predicate).__name__)
