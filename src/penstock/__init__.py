"""Penstock: an event bus and a durable log for Python.

This module is the public door. ``penstock.errors`` has every error, ``penstock.stores`` the places
a log can live in, ``penstock.testing`` what tests need. Everything else is the inside of the
house; ARCHITECTURE.md shows its rooms.
"""

from penstock.errors import PenstockError
from penstock.log.codec import Codec
from penstock.log.queue import WalMessageQueue
from penstock.log.receipts import Acknowledgement, BatchAcknowledgement, Receipt
from penstock.log.records import Record
from penstock.log.recovery import RecoveryReport
from penstock.log.statistics import PartitionStatistics, QueueStatistics, TopicStatistics
from penstock.log.subscription import RecordBatch, Subscription
from penstock.log.topic import FsyncPolicy, Retention, TopicConfig, WhenFull
from penstock.stores import open_store
from penstock.system import System

__all__ = [
    "Acknowledgement",
    "BatchAcknowledgement",
    "Codec",
    "FsyncPolicy",
    "PartitionStatistics",
    "PenstockError",
    "QueueStatistics",
    "Receipt",
    "Record",
    "RecordBatch",
    "RecoveryReport",
    "Retention",
    "Subscription",
    "System",
    "TopicConfig",
    "TopicStatistics",
    "WalMessageQueue",
    "WhenFull",
    "open_store",
]
