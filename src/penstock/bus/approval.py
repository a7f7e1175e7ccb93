"""Commands that wait for a yes: of a policy, or of a human.

``@bus.handles(RefundOrder, approval=Approval(expires=3600))`` makes every ``RefundOrder`` wait.
``await bus.execute(command)`` returns when somebody has approved it and the handler is done, or
with ``Code.DENIED`` or ``Code.EXPIRED``. The wait for the approval is bounded by its expiry alone;
the timeout of the command counts from the approval on. Middleware runs when the handler does.

When the bus has a log, what waits survives a restart: it is listed again, can be decided, and
expires at its time, or at the start when that has passed. Its caller is gone then, so the handler
of an approved command runs in a task of the bus, and :meth:`Approvals.results` and the log have
how it ended. A process that dies between the approval and the end of the handler runs the handler
again, with the same id; what was denied, expired or withdrawn never runs.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.errors import InvalidOption
from penstock.messages import CommandResult

EXPIRES_SECONDS = 3_600.0
EXPIRES_SECONDS_MAX = 366 * 24 * 3600.0


class Decision(enum.Enum):
    """What a policy says; None stands for "a human decides"."""

    APPROVE = "approve"
    DENY = "deny"


class ApprovalVerdict(enum.Enum):
    """How the wait for an approval ended."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The caller was cancelled."""


@dataclass(frozen=True, slots=True)
class Approval:
    """What a handler asks for: commands wait for an approval, this long at most, in seconds."""

    expires: float = EXPIRES_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.expires <= EXPIRES_SECONDS_MAX:
            raise InvalidOption(
                f"an approval that expires after {self.expires} s: use more than 0 and up to "
                f"{EXPIRES_SECONDS_MAX:.0f} s",
                option="expires",
            )


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A command that waits for its approval."""

    id: str
    command: Any
    requested: datetime
    expires: datetime
    session: str
    headers: Mapping[str, str]
    correlation_id: str


@dataclass(frozen=True, slots=True)
class ApprovalOutcome:
    """How an approval ended."""

    approval: PendingApproval
    verdict: ApprovalVerdict
    by: str | None = None
    """Who decided; None when nobody did."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalResult:
    """How a command ended that was approved after a restart, when it had no caller any more."""

    approval: PendingApproval
    result: CommandResult[Any]


@dataclass(frozen=True, slots=True)
class ApprovalStatistics:
    """The approvals of a bus."""

    pending: int
    approved: int
    denied: int
    expired: int
    withdrawn: int
    """The caller was cancelled before a decision."""
    unreadable: int
    """Commands of the journal that did not decode. They stay there."""


Policy = Callable[[PendingApproval], Decision | Awaitable[Decision | None] | None]
RequestedCallback = Callable[[PendingApproval], Any]
DecidedCallback = Callable[[ApprovalOutcome], Any]
