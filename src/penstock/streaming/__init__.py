"""Streaming: publishing and subscribing over any transport, checkpoints, parallel consumers, scale."""

from penstock.log.columns import Columns
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_member import Member, Rebalance
from penstock.log.group_state import GroupState, TopicPartition
from penstock.log.producer import Producer
from penstock.log.sequences import SequenceAcknowledgement
from penstock.log.transaction import Transaction
from penstock.log.transaction_staging import StagedRecords
from penstock.log.transactions import Transactions
from penstock.streaming.autoscaling import Autoscaler
from penstock.streaming.checkpoint import StreamCheckpoint
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.committing import AutoCommit
from penstock.streaming.database import DatabaseCheckpoints, DatabaseClaim
from penstock.streaming.database_loop import CheckpointedBatch, ExactlyOnce, exactly_once
from penstock.streaming.event_stream import EventStream
from penstock.streaming.key_lanes import KeyedRecord
from penstock.streaming.lag_pressure import GroupLag, LagLimit, LagPressure
from penstock.streaming.manager import StreamingScalingManager
from penstock.streaming.parallel import ParallelConsumer
from penstock.streaming.parallel_values import AfterPoison, ParallelStatistics, ParkedRecord
from penstock.streaming.ranges import OffsetRange, Position
from penstock.streaming.run_values import Executor, RunOptions, RunStatistics
from penstock.streaming.scalability import (
    Measurement,
    ScalabilityConfig,
    ScalingAction,
    ScalingDecision,
)
from penstock.streaming.scaler import ScalingOutcome, ScalingRecord
from penstock.streaming.stream_event import StreamEvent
from penstock.streaming.stream_limits import StreamLimits
from penstock.streaming.stream_run import StreamRun
from penstock.streaming.transform import Outgoing, Transform, TransformStatistics
from penstock.streaming.transport_statistics import TransportStatistics

__all__ = [
    "AfterPoison",
    "AutoCommit",
    "Autoscaler",
    "CheckpointStore",
    "CheckpointedBatch",
    "Columns",
    "DatabaseCheckpoints",
    "DatabaseClaim",
    "EventStream",
    "ExactlyOnce",
    "Executor",
    "GroupCoordinator",
    "GroupLag",
    "GroupState",
    "KeyedRecord",
    "LagLimit",
    "LagPressure",
    "Measurement",
    "Member",
    "OffsetRange",
    "Outgoing",
    "ParallelConsumer",
    "ParallelStatistics",
    "ParkedRecord",
    "Position",
    "Producer",
    "Rebalance",
    "RunOptions",
    "RunStatistics",
    "ScalabilityConfig",
    "ScalingAction",
    "ScalingDecision",
    "ScalingOutcome",
    "ScalingRecord",
    "SequenceAcknowledgement",
    "StagedRecords",
    "StreamCheckpoint",
    "StreamEvent",
    "StreamLimits",
    "StreamRun",
    "StreamingScalingManager",
    "TopicPartition",
    "Transaction",
    "Transactions",
    "Transform",
    "TransformStatistics",
    "TransportStatistics",
    "exactly_once",
]
