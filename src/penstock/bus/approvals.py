"""``bus.approvals``: asking, deciding, expiring; see :mod:`penstock.bus.approval`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import msgspec

from penstock.bus.approval import (
    Approval,
    ApprovalOutcome,
    ApprovalResult,
    ApprovalStatistics,
    ApprovalVerdict,
    DecidedCallback,
    PendingApproval,
    RequestedCallback,
)
from penstock.bus.approval_records import (
    Decided,
    Request,
    StoredApproval,
    answer,
    load,
    not_pending,
    raise_unless_approved,
    show,
    store,
)
from penstock.bus.commands import Commands
from penstock.bus.encoding import MessageCodec
from penstock.bus.handlers import Handler
from penstock.bus.intake import Intake
from penstock.bus.journal import JournalLog
from penstock.bus.keeper import Keeper
from penstock.bus.policies import Policies
from penstock.bus.timers import Timers
from penstock.errors import (
    ApprovalDenied,
    ApprovalExpired,
    BufferFull,
    Closed,
    InvalidMessage,
    PenstockError,
)
from penstock.messages import Command, CommandResult, Envelope, Event

logger = logging.getLogger("penstock.bus")

PENDING_MAX = 10_000
RESULTS_MAX = 1_000

Function = TypeVar("Function", bound=Callable[..., Any])


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
        self._policies = Policies(timers)
        self._on_requested: list[RequestedCallback] = []
        self._on_decided: list[DecidedCallback] = []
        self._results: deque[ApprovalResult] = deque(maxlen=RESULTS_MAX)
        self._counts: Counter[ApprovalVerdict] = Counter()
        self._unreadable = 0
        self._deciding: set[asyncio.Task[None]] = set()
        self._approved: list[Request] = []
        """Approved, without a caller, and nobody handles them yet."""
        self._paused = False

    # Looking and deciding

    def pending(self) -> list[PendingApproval]:
        """What waits for a decision, the oldest first."""
        return [request.shown for request in self._requests.values() if not request.deciding]

    async def approve(self, name: str, *, by: str) -> None:
        """Let the command run; NotPending when it is decided, expired or withdrawn.

        On disk before the handler is called. Cancelled, it is decided all the same.
        """
        await self._decide(name, Decided(ApprovalVerdict.APPROVED, by))

    async def deny(self, name: str, *, by: str, reason: str = "") -> None:
        """Do not let the command run; NotPending when it is decided, expired or withdrawn."""
        await self._decide(name, Decided(ApprovalVerdict.DENIED, by, reason))

    def policy(self, function: Function) -> Function:
        """Ask this function first; the first policy that decides counts. Also as a decorator.

        It gets the PendingApproval and returns a Decision, or None to leave it to the next one and
        to a human; it may be async. If it raises, or returns anything else (InvalidDecision), the
        command ends with that error and does not run.
        """
        self._policies.add(function)
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
            approved=self._counts[ApprovalVerdict.APPROVED],
            denied=self._counts[ApprovalVerdict.DENIED],
            expired=self._counts[ApprovalVerdict.EXPIRED],
            withdrawn=self._counts[ApprovalVerdict.WITHDRAWN],
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
        for key, value in held.items():
            self._load(key.removeprefix("a/"), value)

    def pause(self) -> None:
        """Let the callers go: the bus stops. What is in the journal stays there."""
        self._paused = True
        for request in self._requests.values():
            self._stop_timer(request)
            answer(request, Closed("the bus stopped before the command was approved"))
        self._requests.clear()

    async def close(self) -> None:
        """Let another bus have the journal."""
        self.pause()
        await asyncio.gather(*self._deciding, return_exceptions=True)
        await self._keeper.close()

    async def gate(
        self, envelope: Envelope, timeout: float, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Run a command when it may; raises ApprovalDenied or ApprovalExpired."""
        handler = self._handler(envelope)
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
        shown = show(envelope, now, now + round(approval.expires * 1000))
        due = self._timers.clock.monotonic() + approval.expires
        verdict = await self._policies.ask(shown, approval.expires)
        if verdict is not None:
            self._count(shown, verdict)
            raise_unless_approved(shown, verdict)
            return False
        if len(self._requests) >= PENDING_MAX:
            raise BufferFull(f"{PENDING_MAX} commands wait for approval, which is the limit")
        request = Request(shown, envelope, timeout)
        request.caller = asyncio.get_running_loop().create_future()
        await self._wait(request, due - self._timers.clock.monotonic())
        return True

    async def _wait(self, request: Request, seconds: float) -> None:
        name = request.shown.id
        self._requests[name] = request
        assert request.caller is not None
        try:
            if self._keeper.durable:
                request.sealed = self._codec.encode_envelope(request.envelope)
                await self._keeper.write({f"a/{name}": store(request)})
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
        self._count(request.shown, Decided(ApprovalVerdict.WITHDRAWN))

    # Deciding

    async def _decide(self, name: str, verdict: Decided) -> None:
        request = self._requests.get(name)
        if request is None or request.deciding:
            raise not_pending(name)
        request.deciding = True
        # By a task, so that what is on disk and what is in memory stay together.
        deciding = asyncio.ensure_future(self._record(request, verdict))
        self._deciding.add(deciding)
        deciding.add_done_callback(self._deciding.discard)
        await asyncio.shield(deciding)

    async def _record(self, request: Request, verdict: Decided) -> None:
        name = request.shown.id
        approved_by = verdict.by if verdict.verdict is ApprovalVerdict.APPROVED else None
        change = None
        if approved_by is not None and self._keeper.durable:
            change = store(request, approved_by)
        try:
            await self._keeper.write({f"a/{name}": change})
        except BaseException:
            request.deciding = False
            if request.timer is not None and request.timer.callback is None:
                self._expire(request)  # its time came while it was being decided
            raise
        if self._requests.get(name) is request:
            self._finish(request, verdict)
        elif not (self._paused and self._keeper.durable):
            raise not_pending(name)

    def _expire(self, request: Request) -> None:
        if not request.deciding and not self._paused:
            self._keeper.post({f"a/{request.shown.id}": None})
            self._finish(request, Decided(ApprovalVerdict.EXPIRED))

    def _finish(self, request: Request, verdict: Decided) -> None:
        self._forget(request)
        self._count(request.shown, verdict)
        if request.caller is not None:
            try:
                raise_unless_approved(request.shown, verdict)
            except PenstockError as error:
                answer(request, error)
            else:
                answer(request, None)
        elif verdict.verdict is ApprovalVerdict.APPROVED:
            self._approved.append(request)
            self.handlers_changed()

    def _forget(self, request: Request) -> None:
        self._stop_timer(request)
        if self._requests.get(request.shown.id) is request:
            del self._requests[request.shown.id]

    def _count(self, shown: PendingApproval, verdict: Decided) -> None:
        self._counts[verdict.verdict] += 1
        logger.info("approval %s of %s: %s", shown.id, type(shown.command).__name__, verdict)
        self._call_back(self._on_decided, ApprovalOutcome(shown, *verdict))

    # After a restart

    def _load(self, name: str, value: bytes) -> None:
        try:
            stored = load(value)
            planned = self._codec.decode_envelope(stored.envelope)
        except (InvalidMessage, msgspec.MsgspecError) as error:
            self._unreadable += 1
            logger.error("command %s stays in the journal: %s", name, error)  # noqa: TRY400
        else:
            # A later start of the bus is no handler's doing.
            Context().run(self._resume, name, planned, stored)

    def _resume(self, name: str, planned: Envelope, stored: StoredApproval) -> None:
        envelope = self._intake.enclose(
            planned.message,
            planned.session,
            planned.priority,
            planned.headers,
            planned.correlation_id,
        )
        envelope.given_id, envelope.causation_id = name, planned.causation_id
        shown = show(envelope, stored.requested_ms, stored.expires_ms)
        request = Request(shown, envelope, stored.timeout, stored.envelope)
        soon = asyncio.get_running_loop().call_soon
        if stored.approved_by is not None:
            self._approved.append(request)
            soon(self.handlers_changed, context=Context())
            return
        self._requests[name] = request
        left_ms = stored.expires_ms - self._timers.clock.time_ms()
        if left_ms > 0:
            self._start_timer(request, left_ms / 1000)
        else:
            soon(self._expire, request, context=Context())  # its callbacks are about to be set

    def handlers_changed(self) -> None:
        """Run approved commands that have no caller, if somebody handles them now."""
        approved, self._approved = self._approved, []
        for request in approved:
            if self._paused or self._handler(request.envelope) is None:
                self._approved.append(request)
            else:
                self._intake.dispatch.spawn(self._run_alone(request))

    def _handler(self, envelope: Envelope) -> Handler | None:
        return self._commands.registry.command(type(envelope.message), envelope.session)

    async def _run_alone(self, request: Request) -> None:
        """Run an approved command whose caller is gone."""
        name = request.shown.id
        self._cleared.add(name)
        try:
            result = await self._commands.execute(request.envelope, request.timeout)
        finally:
            self._cleared.discard(name)
        self._keep(ApprovalResult(request.shown, result))
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
