"""Between two epochs a subscriber waits until all of the older one is consumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.log.epoch import Epochs

Consumed = Callable[[int], int]
"""Partition → offset of the first record that is not consumed."""


class EpochBarrier:
    """Which epoch may be read: the first one that is not consumed to its end.

    Only :meth:`advance` opens the next one. Whoever goes back in a partition calls :meth:`reset`.
    """

    def __init__(self) -> None:
        self._epochs: Epochs = ()
        self._at = 0

    @property
    def is_last(self) -> bool:
        """Whether there is no later epoch to wait for."""
        return self._at >= len(self._epochs) - 1

    def follow(self, epochs: Epochs) -> None:
        """The topic has these epochs now."""
        if epochs is not self._epochs:
            self._epochs = epochs
            self._at = 0

    def reset(self) -> None:
        """Begin with the first epoch again; those that are consumed are passed at once."""
        self._at = 0

    def end(self, partition: int) -> int | None:
        """Where the epoch ends in a partition; None when it is the last one."""
        return None if self.is_last else self._epochs[self._at + 1].start(partition)

    def left(self, partitions: Sequence[int], consumed: Consumed) -> list[int]:
        """The partitions that are not consumed to the end of the epoch."""
        if self.is_last:
            return []
        following = self._epochs[self._at + 1]
        return [one for one in partitions if consumed(one) < following.start(one)]

    def advance(self, partitions: Sequence[int], consumed: Consumed) -> bool:
        """Pass all epochs that are consumed; whether there was one."""
        before = self._at
        while not self.is_last and not self.left(partitions, consumed):
            self._at += 1
        return self._at > before
