"""Epochs: how many partitions a topic has since when. The count changes, the order per key stays.

An epoch begins in each partition at an offset. What is below belongs to the epochs before, so who
reads an epoch only after all of those sees the records of a key in their order, whichever
partitions they are in. Plain values; :mod:`penstock.log.epoch_change` changes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

EPOCHS_MAX = 1_000
"""How many epochs a topic may have records of."""


class Epoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """From when on a topic has how many partitions."""

    epoch: int
    partitions: int
    since_ms: int
    starts: tuple[int, ...] = ()
    """The first offset of the epoch in each partition, also in those that get no more records;
    0 in those that are not named."""

    def start(self, partition: int) -> int:
        """The first offset of the epoch in a partition."""
        return self.starts[partition] if partition < len(self.starts) else 0


Epochs = tuple[Epoch, ...]
"""What a topic remembers, the oldest first. There is always one."""


def partitions_of_all(epochs: Epochs) -> int:
    """How many partitions there are, those included that get no more records.

    It never falls: members of a group that see the change early and late agree on the numbers.
    """
    return max(max(one.partitions, len(one.starts)) for one in epochs)


def first_offset(epochs: Epochs, partition: int) -> int:
    """Where the records of a partition begin, as far as the epochs are remembered."""
    having = (one.start(partition) for one in epochs if partition < one.partitions)
    # In one that no epoch has any more, everything is gone.
    return next(having, epochs[-1].start(partition))


def followed_by(epochs: Epochs, partitions: int, ends: Sequence[int], now_ms: int) -> Epochs:
    """With one more epoch, which begins where the partitions end.

    It takes the place of the last one when that has no records.
    """
    last = epochs[-1]
    following = Epoch(last.epoch + 1, partitions, now_ms, tuple(ends))
    is_empty = all(last.start(number) == end for number, end in enumerate(ends))
    return (*(epochs[:-1] if is_empty else epochs), following)


def without_forgotten(epochs: Epochs, earliest: Callable[[int], int]) -> Epochs:
    """Without the oldest epochs of which retention has removed every record."""
    while len(epochs) > 1 and _is_gone(epochs[0], epochs[1], earliest):
        epochs = epochs[1:]
    return epochs


def _is_gone(epoch: Epoch, following: Epoch, earliest: Callable[[int], int]) -> bool:
    numbers = range(epoch.partitions)
    return all(earliest(number) >= following.start(number) for number in numbers)


def are_sound(epochs: Epochs, partitions_max: int) -> bool:
    """Whether the epochs can be those of a topic: in order, within limits, never going back."""
    counts = all(1 <= one.partitions <= partitions_max for one in epochs)
    return bool(epochs) and counts and all(map(_follows, epochs, epochs[1:]))


def _follows(epoch: Epoch, following: Epoch) -> bool:
    numbers = range(max(len(epoch.starts), epoch.partitions))
    later = all(epoch.start(one) <= following.start(one) for one in numbers)
    return epoch.epoch < following.epoch and later
