"""Penstock: an event bus and a durable log for Python.

This module is the public door. ``penstock.errors`` has every error, ``penstock.stores`` the places
a log can live in, ``penstock.testing`` what tests need. Everything else is the inside of the
house; ARCHITECTURE.md shows its rooms.
"""

from penstock import errors
from penstock.errors import PenstockError
from penstock.log.codec import Codec
from penstock.log.inspection import LostRange, Problem, VerifyReport
from penstock.log.maintenance import MaintenanceReport
from penstock.log.queue import WalMessageQueue
from penstock.log.receipts import Acknowledgement, BatchAcknowledgement, Receipt
from penstock.log.records import Record
from penstock.log.recovery import RecoveryReport
from penstock.log.repair import RepairReport, repair
from penstock.log.retention import RetentionInfo
from penstock.log.statistics import PartitionStatistics, QueueStatistics, TopicStatistics
from penstock.log.subscription import RecordBatch, Subscription
from penstock.log.topic import FsyncPolicy, Retention, TopicConfig, WhenFull
from penstock.log.verify import scrub, verify
from penstock.stores import open_store
from penstock.system import System

__all__ = [
    "Acknowledgement",
    "BatchAcknowledgement",
    "Codec",
    "FsyncPolicy",
    "LostRange",
    "MaintenanceReport",
    "PartitionStatistics",
    "PenstockError",
    "Problem",
    "QueueStatistics",
    "Receipt",
    "Record",
    "RecordBatch",
    "RecoveryReport",
    "RepairReport",
    "Retention",
    "RetentionInfo",
    "Subscription",
    "System",
    "TopicConfig",
    "TopicStatistics",
    "VerifyReport",
    "WalMessageQueue",
    "WhenFull",
    "errors",
    "open_store",
    "repair",
    "scrub",
    "verify",
]
