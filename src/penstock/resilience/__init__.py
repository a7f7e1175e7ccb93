"""Resilience: retries, circuit breakers, dead letters, error tracking. One policy a file."""

from penstock.resilience.breaker import (
    BreakerOptions,
    BreakerState,
    BreakerStatistics,
    CircuitBreaker,
)
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.dead_letters import (
    DeadLetter,
    DeadLetterCommandEvent,
    DeadLetterEvent,
    DeadLetterFilter,
    DeadLetterOptions,
    DeadLetterQueue,
    DeadLetterStatistics,
    LetterCodec,
    Reason,
    ReplayReport,
    ReplayStep,
    WhenDeadLettersFull,
)
from penstock.resilience.letters import Edit as LetterEdit
from penstock.resilience.retry import Retry
from penstock.resilience.tracking import ErrorStatistics, RecentError, TrackedFailures

__all__ = [
    "BreakerOptions",
    "BreakerState",
    "BreakerStatistics",
    "CircuitBreaker",
    "DeadLetter",
    "DeadLetterCommandEvent",
    "DeadLetterEvent",
    "DeadLetterFilter",
    "DeadLetterOptions",
    "DeadLetterQueue",
    "DeadLetterStatistics",
    "ErrorStatistics",
    "LetterCodec",
    "LetterEdit",
    "Reason",
    "RecentError",
    "ReplayReport",
    "ReplayStep",
    "ResilientMessageBus",
    "Retry",
    "TrackedFailures",
    "WhenDeadLettersFull",
]
