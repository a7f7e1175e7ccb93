"""Tools for tests of Penstock and of what others build on it.

``SimulatedDisk``, ``VirtualClock`` and ``InlineWorker`` make a :class:`penstock.System` that loses
power on demand; ``simulated_system()`` puts them together. ``StoreConformance`` and
``QueueConformance`` are the suites that every store and every queue has to pass, as
``JournalConformance`` is for what keeps the journals of a bus; ``MemoryJournals`` passes it.
``BusConformance`` is the suite of buses, ``ScalableSubsystemConformance`` that of all that scales,
``TransportConformance`` that of transports.

``HistoryRecorder`` writes down what producers and consumers do in processes that are killed and paused;
``check_history`` finds lost, duplicated, reordered, stale and invented records in it.

``run_schedules`` runs a program in one order of its tasks after the other, on virtual time, and cancels
them wherever they wait; what fails is repeated by its seed.

The pytest plugin (:mod:`penstock.testing.plugin`) has buses as fixtures. ``assert_published`` says
what was published on them, ``settle`` lets virtual time pass until they are done, and
``fail_every``, ``slow``, ``crash_before_commit`` and ``duplicate`` put faults on handlers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.errors import BusErrors
from penstock.testing.faults import crash_before_commit, duplicate, fail_every, slow
from penstock.testing.history import HistoryRecorder, read_history
from penstock.testing.history_report import Anomaly, HistoryReport, check_history
from penstock.testing.journals import MemoryJournals
from penstock.testing.recording import assert_published, record, settle
from penstock.testing.schedules import ScheduleFailed, SeededSchedule, run_schedule, run_schedules
from penstock.testing.worker import InlineWorker, simulated_system

if TYPE_CHECKING:
    from penstock.testing.buses import BusConformance
    from penstock.testing.journal_suite import JournalConformance
    from penstock.testing.queues import QueueConformance
    from penstock.testing.stores import StoreConformance
    from penstock.testing.subsystem_suite import ScalableSubsystemConformance
    from penstock.testing.transports import TransportConformance

__all__ = [
    "Anomaly",
    "BusConformance",
    "BusErrors",
    "HistoryRecorder",
    "HistoryReport",
    "InlineWorker",
    "JournalConformance",
    "MemoryJournals",
    "QueueConformance",
    "ScalableSubsystemConformance",
    "ScheduleFailed",
    "SeededSchedule",
    "SimulatedDisk",
    "StoreConformance",
    "TransportConformance",
    "VirtualClock",
    "assert_published",
    "check_history",
    "crash_before_commit",
    "duplicate",
    "fail_every",
    "read_history",
    "record",
    "run_schedule",
    "run_schedules",
    "settle",
    "simulated_system",
    "slow",
]

# They need pytest and hypothesis; the other tools do not.
SUITES = {
    "BusConformance": "penstock.testing.buses",
    "JournalConformance": "penstock.testing.journal_suite",
    "QueueConformance": "penstock.testing.queues",
    "ScalableSubsystemConformance": "penstock.testing.subsystem_suite",
    "StoreConformance": "penstock.testing.stores",
    "TransportConformance": "penstock.testing.transports",
}


def __getattr__(name: str) -> object:
    if name in SUITES:
        return getattr(importlib.import_module(SUITES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
