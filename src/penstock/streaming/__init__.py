"""Streaming: checkpoints, the parallel consumer, decisions on scale."""

from penstock.streaming.checkpoint import StreamCheckpoint
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.committing import AutoCommit
from penstock.streaming.ranges import OffsetRange, Position

__all__ = [
    "AutoCommit",
    "CheckpointStore",
    "OffsetRange",
    "Position",
    "StreamCheckpoint",
]
