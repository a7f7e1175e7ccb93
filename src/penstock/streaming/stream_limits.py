"""The limits of streaming, as one value that can be changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scaling.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits(Limits):
    """What one ``StreamingScalingManager`` may take."""

    max_partitions: int = 128
    """Of one topic; the scaler goes no further."""
    max_consumers: int = 10
    """Of one topic; the scaler goes no further."""
    publish_queue_max: int = 10_000
    """Publish calls that wait for their turn: the capacity of the backpressure handler."""
    publishes_in_flight_max: int = 1_000
    """Publish calls that the transports have and have not acknowledged."""
    checkpoint_cache_entries_max: int = 10_000
    """Checkpoints in memory; all of them are in the store."""
    buffered_records_max: int = 10_000
    """Records that one consumer of ``run`` reads ahead; new consumers take it."""
