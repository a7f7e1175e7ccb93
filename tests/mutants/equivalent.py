"""Mutants that change nothing that anybody could see, each with the reason."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.mutating import Mutant


class Equivalent(NamedTuple):
    """A change that makes no difference; the text is that of the line."""

    function: str
    """Module and function, without the package."""
    text: str
    change: str
    why: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "transaction_staging.staged_key",
        "number = system.random.getrandbits(64)",
        "64 to 65",
        "a random number with one more bit is as random",
    ),
    Equivalent(
        "routing._fnv1a_all",
        "longest = int(lengths.max(initial=0))",
        "0 to 1",
        "keys that are all empty have no byte to hash, whatever the longest is said to be",
    ),
    Equivalent(
        "subscription.Subscription._next",
        "self._turn += 1",
        "to Sub",
        "the partitions take turns the other way round",
    ),
    Equivalent(
        "offsets.OffsetFile._secure",
        "self._durable_generation = generation",
        "left out",
        "the slot is written and synced once more than it has to be",
    ),
    Equivalent(
        "transactions.Transactions._ends",
        "ends[target] = 0 if head is None else head.durable_offset",
        "left out",
        "entries are looked for from the first one on, which takes longer and finds the same",
    ),
    Equivalent(
        "arrow.to_batch",
        "views = [entry.view(copy=False) for entry in entries]",
        "False to True",
        "a copy has the same bytes",
    ),
    Equivalent(
        "topic.TopicFile.generations",
        "data = self._store.read(self.key, 0, TOPIC_BYTES_MAX + 1)",
        "1 to 2",
        "a file that long holds no generation that this release has written",
    ),
    Equivalent(
        "changes.Changes._poll",
        "waited_for = [name for name, waiters in self._waiters.items() if waiters]",
        "no filter",
        "topics are asked that nobody waits for, and nobody hears of it",
    ),
    Equivalent(
        "walk.Walker._headers",
        "while (found := find_next(data, place)) is not None and found < CHUNK_BYTES:",
        "Lt to LtE",
        "a header at the border of two chunks is seen in both, and the first time counts",
    ),
)
_KNOWN = {(one.function, one.text, one.change) for one in EQUIVALENT}


def is_equivalent(mutant: Mutant, text: str) -> bool:
    """Whether the mutant is in the list."""
    place = f"{mutant.module.removeprefix('penstock.log.')}.{mutant.function}"
    return (place, text, mutant.change) in _KNOWN
