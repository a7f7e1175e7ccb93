"""Traffic of a shop, made up but always the same: with duplicates, bad records and late ones.

What must come of it is counted on the way, so that the result of the pipeline can be checked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
from shop import OrderPlaced, PageSeen, PaymentTaken

from penstock import Event

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
HALF_MINUTES = 30
SLICE_MINUTES = 5
COUNTRIES = ("de", "fr", "it", "pl", "se")
PAGES = ("home", "product", "cart", "checkout")
CLOSING = "closing"
STOLEN_CARD = "card-stolen"
STOLEN_PAYMENTS = 25
ALERTS = STOLEN_PAYMENTS - 17
"""The score of a stolen card passes the limit with its 18th payment."""

Record = tuple[bytes, bytes]
"""Key and value."""


@dataclass
class Counts:
    """Of one topic: what was published is the sum of the others."""

    good: int = 0
    bad: int = 0
    duplicates: int = 0
    too_late: int = 0

    @property
    def published(self) -> int:
        return self.good + self.bad + self.duplicates + self.too_late


@dataclass
class Traffic:
    """Records of the three topics, in the order in which they arrive."""

    seed: int
    visits: int
    counts: dict[str, Counts] = field(
        default_factory=lambda: {name: Counts() for name in ("orders", "payments", "clicks")}
    )
    revenue: Counter[str] = field(default_factory=Counter)
    """Cents by country."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number = 0

    def first_half(self) -> Iterator[Mapping[str, list[Record]]]:
        """Half an hour, in slices of five minutes."""
        yield from self._half(0)

    def second_half(self) -> Iterator[Mapping[str, list[Record]]]:
        """The next one."""
        yield from self._half(HALF_MINUTES)

    def late(self) -> Iterator[Mapping[str, list[Record]]]:
        """What comes after the first half, though it belongs into it: in time, and too late."""
        arrivals: list[tuple[float, str, Record]] = []
        for number in range(max(4, self.visits // 50)):
            # Fifteen minutes are waited for, behind the end of the half.
            minute = 24 + number % 5 if number % 2 else number % 8
            self._sale(arrivals, minute, too_late=number % 2 == 0)
        yield from _slices(arrivals)

    def closing(self) -> Iterator[Mapping[str, list[Record]]]:
        """A mark in each topic, a day later: nothing of the hour is waited for any more."""
        end = START + timedelta(days=1)
        yield {
            "orders": [_record(OrderPlaced(CLOSING, CLOSING, 0, end))],
            "payments": [_record(PaymentTaken(CLOSING, CLOSING, CLOSING, 0, end))],
            "clicks": [_record(PageSeen(CLOSING, CLOSING, "home", end))],
        }

    def _half(self, begin: int) -> list[Mapping[str, list[Record]]]:
        arrivals: list[tuple[float, str, Record]] = []
        for _ in range(self.visits // 2):
            self._visit(arrivals, begin + self._random.uniform(0, HALF_MINUTES - 4))
        for number in range(STOLEN_PAYMENTS if begin else 0):
            self._sale(arrivals, begin + number, card=STOLEN_CARD, cents=20_000)
        # The last order of the half decides how far the watermark comes.
        self._sale(arrivals, begin + HALF_MINUTES - 0.5)
        for topic in self.counts:
            for _ in range(max(2, self.visits // 100)):
                self._bad(arrivals, topic, begin + self._random.uniform(0, HALF_MINUTES - 1))
        return _slices(arrivals)

    def _visit(self, arrivals: list[tuple[float, str, Record]], minute: float) -> None:
        """Some pages, and for some of the visitors an order."""
        session, seen = f"visit-{self._next()}", minute
        pages = PAGES[: self._random.choice((1, 2, 2, 3, 4, 4))]
        for page in pages:
            seen += self._random.uniform(0.05, 0.5)
            click = PageSeen(f"click-{self._next()}", session, page, _time(seen))
            self._arrive(arrivals, "clicks", click, seen)
        if len(pages) == len(PAGES):
            self._sale(arrivals, seen)

    def _sale(
        self,
        arrivals: list[tuple[float, str, Record]],
        minute: float,
        *,
        card: str | None = None,
        cents: int | None = None,
        too_late: bool = False,
    ) -> None:
        """An order and its payment."""
        number = self._next()
        cents = cents or self._random.randrange(500, 20_000)
        order = OrderPlaced(f"order-{number}", self._random.choice(COUNTRIES), cents, _time(minute))
        paid = minute + self._random.uniform(0.02, 1.0)
        payment = PaymentTaken(
            f"payment-{number}",
            order.order_id,
            card or f"card-{number % 5_000}",
            cents,
            _time(paid),
        )
        self._arrive(arrivals, "orders", order, minute, too_late)
        self._arrive(arrivals, "payments", payment, paid, too_late)
        if not too_late:
            self.revenue[order.country] += cents

    def _arrive(
        self,
        arrivals: list[tuple[float, str, Record]],
        topic: str,
        event: Event,
        minute: float,
        too_late: bool = False,
    ) -> None:
        """Up to two minutes later; some come twice."""
        counts = self.counts[topic]
        arrivals.append((minute + self._random.uniform(0, 2), topic, _record(event)))
        if too_late:
            counts.too_late += 1
            return
        counts.good += 1
        if self._random.random() < 0.05:
            arrivals.append((minute + self._random.uniform(0, 2), topic, _record(event)))
            counts.duplicates += 1

    def _bad(self, arrivals: list[tuple[float, str, Record]], topic: str, minute: float) -> None:
        values = [b"no JSON at all", b"{}", b""]
        if topic == "orders":
            negative = OrderPlaced(f"order-{self._next()}", "de", -1, _time(minute))
            values.append(msgspec.json.encode(negative))
        arrivals.append((minute, topic, (b"key", self._random.choice(values))))
        self.counts[topic].bad += 1

    def _next(self) -> int:
        self._number += 1
        return self._number


def _time(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def _record(event: Event) -> Record:
    key = event.session_id if isinstance(event, PageSeen) else event.order_id  # type: ignore[attr-defined]
    return str(key).encode(), msgspec.json.encode(event)


def _slices(arrivals: list[tuple[float, str, Record]]) -> list[Mapping[str, list[Record]]]:
    """A few minutes at a time, so that no partition runs far ahead of another."""
    slices: dict[int, dict[str, list[Record]]] = {}
    for minute, topic, record in sorted(arrivals, key=lambda one: one[0]):
        slices.setdefault(int(minute // SLICE_MINUTES), {}).setdefault(topic, []).append(record)
    return [slices[number] for number in sorted(slices)]
