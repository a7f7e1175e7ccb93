"""``bus.approvals``: asking, deciding, expiring; see :mod:`penstock.bus.approval`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.bus.approval import (
    Approval,
    ApprovalOutcome,
    ApprovalResult,
    ApprovalStatistics,
    DecidedCallback,
    Decision,
    PendingApproval,
    Policy,
    RequestedCallback,
    Verdict,
)
from penstock.bus.commands import Commands
from penstock.bus.encoding import MessageCodec
from penstock.bus.intake import Intake
from penstock.bus.journal import JournalLog
from penstock.bus.keeper import Keeper
from penstock.bus.timers import PendingCall, Timers
from penstock.errors import (
    ApprovalDenied,
    ApprovalExpired,
    BufferFull,
    Closed,
    DeadlineExceeded,
    InvalidDecision,
    InvalidMessage,
    NotPending,
    PenstockError,
)
from penstock.messages import Code, Command, CommandResult, Envelope, Event

logger = logging.getLogger("penstock.bus")

PENDING_MAX = 10_000
RESULTS_MAX = 1_000

Function = TypeVar("Function", bound=Callable[..., Any])


class StoredApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command in the journal that waits for its approval, or has it and is not done."""

    envelope: bytes
    requested_ms: int
    expires_ms: int
    timeout: float
    approved_by: str | None = None


_stored = msgspec.msgpack.Decoder(StoredApproval).decode


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


class Verdicts(NamedTuple):
    """What is done at a decision."""

    verdict: Verdict
    by: str | None = None
    reason: str = ""


class Approvals:
    """The commands of a bus that wait for their approval. Used on the loop of the bus.

    At most 10,000 wait; the next one ends with BufferFull.
    """

    def __init__(
        self,
        intake: Intake,
        commands: Commands,
        timers: Timers,
        codec: MessageCodec,
        log: JournalLog | None,
        name: str,
    ) -> None:
        self._intake = intake
        self._commands = commands
        self._timers = timers
        self._codec = codec
        self._keeper = Keeper(log, f"{name}.approvals")
        self._requests: dict[str, Request] = {}
        self._cleared: set[str] = set()
        """Approved commands that run without a caller."""
        self._policies: list[Policy] = []
        self._on_requested: list[RequestedCallback] = []
        self._on_decided: list[DecidedCallback] = []
        self._results: deque[ApprovalResult] = deque(maxlen=RESULTS_MAX)
        self._counts: Counter[Verdict] = Counter()
        self._unreadable = 0

    # Looking and deciding

    def pending(self) -> list[PendingApproval]:
        """What waits for a decision, the oldest first."""
        return [request.shown for request in self._requests.values() if not request.deciding]

    async def approve(self, name: str, *, by: str) -> None:
        """Let the command run; NotPending when it is decided, expired or withdrawn.

        On disk before the handler is called. Cancelled, it is decided all the same.
        """
        await self._decide(name, Verdicts(Verdict.APPROVED, by))

    async def deny(self, name: str, *, by: str, reason: str = "") -> None:
        """Do not let the command run; NotPending when it is decided, expired or withdrawn."""
        await self._decide(name, Verdicts(Verdict.DENIED, by, reason))

    def policy(self, function: Function) -> Function:
        """Ask this function first; the first policy that decides counts. Also as a decorator.

        It gets the PendingApproval and returns a Decision, or None to leave it to the next one and
        to a human; it may be async. If it raises, or returns anything else (InvalidDecision), the
        command ends with that error and does not run.
        """
        self._policies.append(function)
        return function

    def on_requested(self, callback: Function) -> Function:
        """Call back with every PendingApproval that a human has to decide. Also as a decorator."""
        self._on_requested.append(callback)
        return callback

    def on_decided(self, callback: Function) -> Function:
        """Call back with every ApprovalOutcome. Also as a decorator."""
        self._on_decided.append(callback)
        return callback

    def results(self) -> list[ApprovalResult]:
        """How commands ended that had no caller after a restart: the last thousand of them."""
        return list(self._results)

    def statistics(self) -> ApprovalStatistics:
        """The figures of this moment."""
        return ApprovalStatistics(
            pending=len(self._requests),
            approved=self._counts[Verdict.APPROVED],
            denied=self._counts[Verdict.DENIED],
            expired=self._counts[Verdict.EXPIRED],
            withdrawn=self._counts[Verdict.WITHDRAWN],
            unreadable=self._unreadable,
        )

    # For the bus

    async def open(self) -> None:
        """Take over what waited before; SubscriberBusy when another bus has this name."""
        if not self._keeper.durable:
            return
        self._codec.register(Event)
        self._codec.register(Command)
        held = await self._keeper.open()
        # When the program has registered its handlers and callbacks, in its next lines.
        asyncio.get_running_loop().call_soon(self._resume, held, context=Context())

    def pause(self) -> None:
        """Let the callers go: the bus stops. What is in the journal stays there."""
        for request in self._requests.values():
            self._stop_timer(request)
            _answer(request, Closed("the bus stopped before the command was approved"))
        self._requests.clear()

    async def close(self) -> None:
        """Let another bus have the journal."""
        self.pause()
        await self._keeper.close()

    async def gate(
        self, envelope: Envelope, timeout: float, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Run a command when it may; raises ApprovalDenied or ApprovalExpired."""
        handler = self._commands.registry.command(type(envelope.message), envelope.session)
        approval = None if handler is None else handler.options.get("approval")
        if approval is None or envelope.id in self._cleared:
            return await run()
        waited = await self._ask(envelope, approval, timeout)
        try:
            return await run()
        finally:
            if waited:
                self._keeper.post({f"a/{envelope.id}": None})

    # Asking

    async def _ask(self, envelope: Envelope, approval: Approval, timeout: float) -> bool:
        """Return when the command is approved; whether that was left to a human."""
        now = self._timers.clock.time_ms()
        shown = _shown(envelope, now, now + round(approval.expires * 1000))
        due = self._timers.clock.monotonic() + approval.expires
        verdict = await self._ask_policies(shown, approval.expires)
        if verdict is not None:
            self._count(shown, verdict)
            _raise_unless_approved(shown, verdict)
            return False
        if len(self._requests) >= PENDING_MAX:
            raise BufferFull(f"{PENDING_MAX} commands wait for approval, which is the limit")
        request = Request(shown, envelope, timeout)
        request.caller = asyncio.get_running_loop().create_future()
        await self._wait(request, due - self._timers.clock.monotonic())
        return True

    async def _ask_policies(self, shown: PendingApproval, seconds: float) -> Verdicts | None:
        if not self._policies:
            return None
        try:
            async with self._timers.deadline(seconds, "ask the approval policies"):
                return await self._first_answer(shown)
        except DeadlineExceeded:
            return Verdicts(Verdict.EXPIRED)

    async def _first_answer(self, shown: PendingApproval) -> Verdicts | None:
        for policy in self._policies:
            answer: Any = policy(shown)
            if isawaitable(answer):
                answer = await answer
            name = getattr(policy, "__qualname__", repr(policy))
            if answer is Decision.APPROVE:
                return Verdicts(Verdict.APPROVED, name)
            if answer is Decision.DENY:
                return Verdicts(Verdict.DENIED, name, "the policy says no")
            if answer is not None:
                raise InvalidDecision(
                    f"policy {name} answered {answer!r}: return Decision.APPROVE, Decision.DENY, "
                    "or None when a human decides",
                    policy=name,
                    answer=answer,
                )
        return None

    async def _wait(self, request: Request, seconds: float) -> None:
        name = request.shown.id
        self._requests[name] = request
        assert request.caller is not None
        try:
            if self._keeper.durable:
                request.sealed = self._codec.encode_envelope(request.envelope)
                await self._keeper.write({f"a/{name}": _store(request)})
            if self._requests.get(name) is request:  # nobody was faster than the disk
                self._start_timer(request, seconds)
                self._call_back(self._on_requested, request.shown)
            await request.caller
        except (Closed, ApprovalDenied, ApprovalExpired):
            raise
        except BaseException:
            self._withdraw(request)
            raise

    def _withdraw(self, request: Request) -> None:
        """The caller is gone, or the journal did not take it: it never runs."""
        self._forget(request)
        self._keeper.post({f"a/{request.shown.id}": None})
        self._count(request.shown, Verdicts(Verdict.WITHDRAWN))

    # Deciding

    async def _decide(self, name: str, verdict: Verdicts) -> None:
        request = self._requests.get(name)
        if request is None or request.deciding:
            raise _not_pending(name)
        request.deciding = True
        # By a task, so that what is on disk and what is in memory stay together.
        deciding = self._intake.dispatch.spawn(self._record(request, verdict))
        await asyncio.shield(deciding)

    async def _record(self, request: Request, verdict: Verdicts) -> None:
        name = request.shown.id
        approved_by = verdict.by if verdict.verdict is Verdict.APPROVED else None
        change = None
        if approved_by is not None and self._keeper.durable:
            change = _store(request, approved_by)
        try:
            await self._keeper.write({f"a/{name}": change})
        except BaseException:
            request.deciding = False
            if request.timer is not None and request.timer.callback is None:
                self._expire(request)  # its time came while it was being decided
            raise
        if self._requests.get(name) is not request:
            raise _not_pending(name)
        self._finish(request, verdict)

    def _expire(self, request: Request) -> None:
        if not request.deciding:
            self._keeper.post({f"a/{request.shown.id}": None})
            self._finish(request, Verdicts(Verdict.EXPIRED))

    def _finish(self, request: Request, verdict: Verdicts) -> None:
        self._forget(request)
        self._count(request.shown, verdict)
        if request.caller is not None:
            try:
                _raise_unless_approved(request.shown, verdict)
            except PenstockError as error:
                _answer(request, error)
            else:
                _answer(request, None)
        elif verdict.verdict is Verdict.APPROVED:
            self._intake.dispatch.spawn(self._run_alone(request))

    def _forget(self, request: Request) -> None:
        self._stop_timer(request)
        if self._requests.get(request.shown.id) is request:
            del self._requests[request.shown.id]

    def _count(self, shown: PendingApproval, verdict: Verdicts) -> None:
        self._counts[verdict.verdict] += 1
        logger.info("approval %s of %s: %s", shown.id, type(shown.command).__name__, verdict)
        self._call_back(self._on_decided, ApprovalOutcome(shown, *verdict))

    # After a restart

    def _resume(self, held: Mapping[str, bytes]) -> None:
        for key, value in held.items():
            stored = _stored(value)
            try:
                planned = self._codec.decode_envelope(stored.envelope)
            except InvalidMessage as error:
                self._unreadable += 1
                logger.error("a command stays in the journal: %s", error)  # noqa: TRY400
            else:
                self._resume_one(key.removeprefix("a/"), planned, stored)

    def _resume_one(self, name: str, planned: Envelope, stored: StoredApproval) -> None:
        envelope = self._intake.enclose(
            planned.message,
            planned.session,
            planned.priority,
            planned.headers,
            planned.correlation_id,
        )
        envelope.given_id, envelope.causation_id = name, planned.causation_id
        shown = _shown(envelope, stored.requested_ms, stored.expires_ms)
        request = Request(shown, envelope, stored.timeout, stored.envelope)
        if stored.approved_by is not None:
            self._intake.dispatch.spawn(self._run_alone(request))
            return
        self._requests[name] = request
        left_ms = stored.expires_ms - self._timers.clock.time_ms()
        if left_ms <= 0:
            self._expire(request)
        else:
            self._start_timer(request, left_ms / 1000)

    async def _run_alone(self, request: Request) -> None:
        """Run an approved command whose caller is gone."""
        name = request.shown.id
        self._cleared.add(name)
        try:
            result = await self._commands.execute(request.envelope, request.timeout)
        finally:
            self._cleared.discard(name)
        self._keep(ApprovalResult(request.shown, result))
        if result.code is not Code.NO_HANDLER:  # a program that has one may come
            self._keeper.post({f"a/{name}": None})

    def _keep(self, ended: ApprovalResult) -> None:
        self._results.append(ended)
        result: CommandResult[Any] = ended.result
        level = logging.INFO if result.success else logging.ERROR
        logger.log(
            level,
            "command %s, approved after a restart, ended with %s",
            ended.approval.id,
            result.code,
            exc_info=result.error,
        )

    # Timers and callbacks

    def _start_timer(self, request: Request, seconds: float) -> None:
        request.timer = self._timers.call_after(seconds, partial(self._expire, request))

    def _stop_timer(self, request: Request) -> None:
        if request.timer is not None:
            request.timer.cancel()

    def _call_back(self, callbacks: list[Callable[[Any], Any]], argument: Any) -> None:
        for callback in callbacks:
            try:
                result = callback(argument)
            except Exception:
                logger.exception("a callback of the approvals failed")
            else:
                if isawaitable(result):
                    self._intake.dispatch.spawn(_awaited(result))


async def _awaited(result: Awaitable[Any]) -> None:
    try:
        await result
    except Exception:
        logger.exception("a callback of the approvals failed")


def _answer(request: Request, error: PenstockError | None) -> None:
    caller = request.caller
    if caller is None or caller.done():
        return
    if error is None:
        caller.set_result(None)
    else:
        caller.set_exception(error)


def _raise_unless_approved(shown: PendingApproval, verdict: Verdicts) -> None:
    if verdict.verdict is Verdict.DENIED:
        raise ApprovalDenied(
            f"{verdict.by} did not approve {shown.id}: {verdict.reason or 'no reason given'}",
            approval_id=shown.id,
            reason=verdict.reason,
            decided_by=verdict.by,
        )
    if verdict.verdict is Verdict.EXPIRED:
        raise ApprovalExpired(
            f"nobody approved {shown.id} before {shown.expires.isoformat()}", approval_id=shown.id
        )


def _not_pending(name: str) -> NotPending:
    return NotPending(f"approval {name} is decided, expired or withdrawn", id=name)


def _store(request: Request, approved_by: str | None = None) -> bytes:
    shown = request.shown
    stored = StoredApproval(
        request.sealed,
        round(shown.requested.timestamp() * 1000),
        round(shown.expires.timestamp() * 1000),
        request.timeout,
        approved_by,
    )
    return msgspec.msgpack.encode(stored)


def _shown(envelope: Envelope, requested_ms: int, expires_ms: int) -> PendingApproval:
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
