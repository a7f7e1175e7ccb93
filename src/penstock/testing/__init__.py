"""Tools for tests of Penstock and of what others build on it.

``SimulatedDisk``, ``VirtualClock`` and ``InlineWorker`` make a :class:`penstock.System` that loses
power on demand; ``simulated_system()`` puts them together. ``StoreConformance`` and
``QueueConformance`` are the suites that every store and every queue has to pass, as
``JournalConformance`` is for what keeps the journals of a bus; ``MemoryJournals`` passes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.journals import MemoryJournals
from penstock.testing.worker import InlineWorker, simulated_system

if TYPE_CHECKING:
    from penstock.testing.journal_suite import JournalConformance
    from penstock.testing.queues import QueueConformance
    from penstock.testing.stores import StoreConformance

__all__ = [
    "BusConformance",
    "InlineWorker",
    "JournalConformance",
    "MemoryJournals",
    "QueueConformance",
    "SimulatedDisk",
    "StoreConformance",
    "VirtualClock",
    "simulated_system",
]


def __getattr__(name: str) -> object:
    # The suites need pytest and hypothesis; the other tools do not.
    if name == "StoreConformance":
        from penstock.testing import stores

        return stores.StoreConformance
    if name == "BusConformance":
        from penstock.testing import buses

        return buses.BusConformance
    if name == "QueueConformance":
        from penstock.testing import queues

        return queues.QueueConformance
    if name == "JournalConformance":
        from penstock.testing import journal_suite

        return journal_suite.JournalConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
