"""What a member of a group has, and what it does when it has to give something away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of one member of a group."""

    generation: int
    """Grows with every change in the group; a commit from an older one is refused."""
    partitions: frozenset[int]


Handled = Callable[[int], int]
"""Partition → offset below which all that was delivered is handled."""

OnRevoke = Callable[[frozenset[int]], Awaitable[None]]
"""Called with partitions that go to another member: finish and commit what was delivered of them.

Nothing more of them is delivered, and their commits still count while it runs. When it returns, or
its time is up, they are given away.
"""
