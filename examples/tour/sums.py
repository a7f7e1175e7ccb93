"""What the parts of the tour counted, and whether it adds up.

Each part writes its raw numbers into a file. The sums are made here, from those numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
"""What one part wrote."""
MARKS = 1
"""The pipeline's producers end each topic with a mark, which is no order, payment or click."""


@dataclass(frozen=True)
class Account:
    """What was published somewhere, and what became of it."""

    what: str
    published: int
    handled: int
    dead_letters: int = 0
    set_aside: int = 0
    """Came twice, or too late to be waited for."""

    @property
    def adds_up(self) -> bool:
        return self.published == self.handled + self.dead_letters + self.set_aside

    def __str__(self) -> str:
        return (
            f"{self.published:,} published = {self.handled:,} handled + "
            f"{self.dead_letters:,} dead letters + {self.set_aside:,} set aside"
        )


@dataclass(frozen=True)
class Equal:
    """Two counts that were made in different places and have to be the same."""

    text: str
    left: int
    right: int

    @property
    def adds_up(self) -> bool:
        return self.left == self.right


@dataclass(frozen=True)
class Books:
    """All that was counted."""

    accounts: tuple[Account, ...] = ()
    equals: tuple[Equal, ...] = ()

    def __add__(self, other: Books) -> Books:
        return Books(self.accounts + other.accounts, self.equals + other.equals)

    @property
    def total(self) -> Account:
        """The sum over all parts."""
        return Account(
            "all parts",
            sum(one.published for one in self.accounts),
            sum(one.handled for one in self.accounts),
            sum(one.dead_letters for one in self.accounts),
            sum(one.set_aside for one in self.accounts),
        )

    @property
    def wrong(self) -> list[str]:
        """What does not add up, by name."""
        found = [one.what for one in (*self.accounts, self.total) if not one.adds_up]
        return found + [one.text for one in self.equals if not one.adds_up]


def of_the_kills(facts: Facts) -> Books:
    """A writer and a subscriber, killed."""
    handled = facts["committed"] + facts["read_after_the_kill"]
    return Books(
        (Account("kills", facts["found"], handled),),
        (
            Equal("kills: records in the log = records published", facts["found"], facts["published"]),
            Equal("kills: records lost, changed or twice = none", facts["wrong"], 0),
        ),
    )  # fmt: skip


def of_the_rush_hour(facts: Facts) -> Books:
    """A shop whose bank fails."""
    account = Account("rush hour", facts["published"], facts["paid"], facts["dead_letters"])
    there = Equal(
        "rush hour: orders in the log = orders taken", facts["published"], facts["orders"]
    )
    return Books((account,), (there,))


def of_the_pipeline(facts: Facts) -> Books:
    """Topics that go through Spark into tables, and a topic of results."""
    alerts = facts["alerts"]
    books = Books((Account("pipeline: alerts", alerts["published"], alerts["handled"]),))
    for name, topic in facts["topics"].items():
        aside = topic["duplicates"] + topic["too_late"]
        account = Account(
            f"pipeline: {name}", topic["published"], topic["in_the_tables"], topic["dead_letters"], aside
        )  # fmt: skip
        table = Equal(
            f"pipeline: rows of the table = records of {name}", topic["rows"], topic["records"]
        )
        marked = topic["published"] + MARKS
        published = Equal(
            f"pipeline: records of {name} = published, and a mark", topic["records"], marked
        )
        books += Books((account,), (table, published))
    return books
