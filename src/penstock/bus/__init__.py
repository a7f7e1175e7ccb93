"""The in-process bus: typed commands and events.

What a program needs every day is in ``penstock`` itself; the rest of the bus is here: the values
that its calls return, filters (``penstock.bus.filters``) and middleware.
"""

import penstock.bus.filters as filters
from penstock.bus.approval import (
    Approval,
    ApprovalOutcome,
    ApprovalResult,
    ApprovalStatistics,
    ApprovalVerdict,
    Decision,
    PendingApproval,
)
from penstock.bus.approvals import Approvals
from penstock.bus.batching import BatchFailed, Batching
from penstock.bus.bus import MessageBus
from penstock.bus.delivery import Failure, Outcome
from penstock.bus.drive import current_envelope
from penstock.bus.encoding import MessageCodec
from penstock.bus.formats import Format
from penstock.bus.groups import AtomicGroup
from penstock.bus.handlers import Handler
from penstock.bus.intake import QueueOptions
from penstock.bus.journal import Journal, JournalLog
from penstock.bus.middleware import MessageObserver, Middleware, Next
from penstock.bus.middlewares import Logging, RateLimit, RetryMiddleware, Validation
from penstock.bus.queue import BoundedEventQueue, EventQueueStatistics, Overflow
from penstock.bus.recurrence import Missed
from penstock.bus.schedule import Schedule, ScheduledEvent, ScheduleStatistics
from penstock.bus.session import Session
from penstock.bus.statistics import BusStatistics, HandlerStatistics, StopReport
from penstock.bus.timing import Timing
from penstock.bus.tracing import Tracing

__all__ = [
    "Approval",
    "ApprovalOutcome",
    "ApprovalResult",
    "ApprovalStatistics",
    "ApprovalVerdict",
    "Approvals",
    "AtomicGroup",
    "BatchFailed",
    "Batching",
    "BoundedEventQueue",
    "BusStatistics",
    "Decision",
    "EventQueueStatistics",
    "Failure",
    "Format",
    "Handler",
    "HandlerStatistics",
    "Journal",
    "JournalLog",
    "Logging",
    "MessageBus",
    "MessageCodec",
    "MessageObserver",
    "Middleware",
    "Missed",
    "Next",
    "Outcome",
    "Overflow",
    "PendingApproval",
    "QueueOptions",
    "RateLimit",
    "RetryMiddleware",
    "Schedule",
    "ScheduleStatistics",
    "ScheduledEvent",
    "Session",
    "StopReport",
    "Timing",
    "Tracing",
    "Validation",
    "current_envelope",
    "filters",
]
