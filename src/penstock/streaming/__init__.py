"""Streaming: checkpoints, the parallel consumer, decisions on scale."""

from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_member import Member, Rebalance
from penstock.log.group_state import GroupState, TopicPartition
from penstock.scaling.rate import RateMeasure
from penstock.streaming.autoscaling import Autoscaler
from penstock.streaming.checkpoint import StreamCheckpoint
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.committing import AutoCommit
from penstock.streaming.database import DatabaseCheckpoints, DatabaseClaim
from penstock.streaming.database_loop import CheckpointedBatch, ExactlyOnce, exactly_once
from penstock.streaming.key_lanes import StreamRecord
from penstock.streaming.parallel import ParallelConsumer
from penstock.streaming.parallel_values import AfterPoison, ParallelStatistics, ParkedRecord
from penstock.streaming.ranges import OffsetRange, Position
from penstock.streaming.scalability import (
    Measurement,
    ScalabilityConfig,
    ScalingAction,
    ScalingDecision,
)

__all__ = [
    "AfterPoison",
    "AutoCommit",
    "Autoscaler",
    "CheckpointStore",
    "CheckpointedBatch",
    "DatabaseCheckpoints",
    "DatabaseClaim",
    "ExactlyOnce",
    "GroupCoordinator",
    "GroupState",
    "Measurement",
    "Member",
    "OffsetRange",
    "ParallelConsumer",
    "ParallelStatistics",
    "ParkedRecord",
    "Position",
    "RateMeasure",
    "Rebalance",
    "ScalabilityConfig",
    "ScalingAction",
    "ScalingDecision",
    "StreamCheckpoint",
    "StreamRecord",
    "TopicPartition",
    "exactly_once",
]
