"""An approval on its way: what waits, how it is kept in the journal, how it is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from penstock.bus.approval import ApprovalVerdict, PendingApproval
from penstock.bus.timers import PendingCall
from penstock.errors import ApprovalDenied, ApprovalExpired, NotPending, PenstockError
from penstock.messages import Envelope


class StoredApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command in the journal that waits for its approval, or has it and is not done."""

    envelope: bytes
    requested_ms: int
    expires_ms: int
    timeout: float
    approved_by: str | None = None


load = msgspec.msgpack.Decoder(StoredApproval).decode
"""An approval from bytes."""


@dataclass(slots=True, eq=False)
class Request:
    """A command that waits."""

    shown: PendingApproval
    envelope: Envelope
    timeout: float
    sealed: bytes = b""
    caller: asyncio.Future[None] | None = None
    """Who waits; None after a restart."""
    timer: PendingCall | None = None
    deciding: bool = False


class Decided(NamedTuple):
    """What is done at a decision."""

    verdict: ApprovalVerdict
    by: str | None = None
    reason: str = ""


def answer(request: Request, error: PenstockError | None) -> None:
    """Let the caller go on, with an error or without."""
    caller = request.caller
    if caller is None or caller.done():
        return
    if error is None:
        caller.set_result(None)
    else:
        caller.set_exception(error)


def raise_unless_approved(shown: PendingApproval, verdict: Decided) -> None:
    """Raise ApprovalDenied or ApprovalExpired."""
    if verdict.verdict is ApprovalVerdict.DENIED:
        raise ApprovalDenied(
            f"{verdict.by} did not approve {shown.id}: {verdict.reason or 'no reason given'}",
            approval_id=shown.id,
            reason=verdict.reason,
            decided_by=verdict.by,
        )
    if verdict.verdict is ApprovalVerdict.EXPIRED:
        raise ApprovalExpired(
            f"nobody approved {shown.id} before {shown.expires.isoformat()}", approval_id=shown.id
        )


def not_pending(name: str) -> NotPending:
    """The error for an approval that is over."""
    return NotPending(f"approval {name} is decided, expired or withdrawn", id=name)


def store(request: Request, approved_by: str | None = None) -> bytes:
    """A request as bytes."""
    shown = request.shown
    stored = StoredApproval(
        request.sealed,
        round(shown.requested.timestamp() * 1000),
        round(shown.expires.timestamp() * 1000),
        request.timeout,
        approved_by,
    )
    return msgspec.msgpack.encode(stored)


def show(envelope: Envelope, requested_ms: int, expires_ms: int) -> PendingApproval:
    """What is shown of a command."""
    return PendingApproval(
        id=envelope.id,
        command=envelope.message,
        requested=_time(requested_ms),
        expires=_time(expires_ms),
        session=envelope.session,
        headers=envelope.headers,
        correlation_id=envelope.correlation,
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
