"""The bus: the one object that programs talk to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from penstock.bus.approval import Approval
from penstock.bus.approvals import Approvals
from penstock.bus.batching import Batcher, Batching
from penstock.bus.commands import Commands, raise_failure
from penstock.bus.dispatch import Dispatch, drop_notes
from penstock.bus.encoding import MessageCodec
from penstock.bus.exits import end_loop
from penstock.bus.failures import ErrorCallback, PlainFailures, guarded, log_failed
from penstock.bus.groups import AtomicGroup, grouped
from penstock.bus.handlers import Filter, Handler, Target
from penstock.bus.history import EventHistory, event_log_of
from penstock.bus.inlet import BusInlet
from penstock.bus.intake import PUBLISH_TIMEOUT_SECONDS, Intake, PressureCallback, QueueOptions
from penstock.bus.journal import JournalLog
from penstock.bus.middleware import MessageObserver, Middleware
from penstock.bus.registry import Registry
from penstock.bus.schedule import Schedule
from penstock.bus.session import Session
from penstock.bus.statistics import BusStatistics, StopReport, bus_statistics
from penstock.bus.timers import Timers
from penstock.errors import Closed, DeadlineExceeded, UsageError, WouldDeadlock
from penstock.messages import DEFAULT_SESSION, NORMAL, Command, CommandResult, Envelope
from penstock.names import check_label, check_name
from penstock.system import System

logger = logging.getLogger("penstock.bus")

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

COMMAND_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 30.0
HALT_TIMEOUT_SECONDS = 5.0
"""How long ``stop`` waits for handlers that it has cancelled."""
SETTLE_TIMEOUT_SECONDS = 30.0


class MessageBus(BusInlet):
    """Commands and events inside one process.

    ``async with MessageBus() as bus`` starts it; events that were published before wait for that.
    A bus belongs to the event loop that started it; only :meth:`publish_nowait` may be called from
    other threads. Any number of buses may exist; they know nothing of each other.

    Every message class has a lane: its events are handled in order (by priority, then first come
    first served), one at a time unless its handlers ask for more ``concurrency``, and delay no
    other class. ``queue`` bounds each lane.

    With a ``log``, such as an open ``WalMessageQueue``, what is scheduled and what waits for
    approval survives a restart; each bus on a log has a ``name`` of its own. ``codec`` says how
    messages are stored. With ``event_log`` every event is kept in the log too, in the background;
    after a crash those that were not settled are handled again, unless ``redeliver`` is False:
    see ``bus.history``.
    """

    def __init__(
        self,
        *,
        name: str = "bus",
        queue: QueueOptions | None = None,
        system: System | None = None,
        log: JournalLog | None = None,
        codec: MessageCodec | None = None,
        event_log: bool = False,
        redeliver: bool = True,
    ) -> None:
        self.name = check_name("bus", name)
        self._system = system or System()
        self._timers = Timers(self._system.clock)
        self._registry = Registry()
        self._dispatch = Dispatch(self._registry, PlainFailures(self._tell))
        self._commands = Commands(self._registry, self._timers)
        self._intake = Intake(self._dispatch, self._timers, queue or QueueOptions(), self._system)
        self._log = log
        self._codec = codec or MessageCodec()
        self.schedule = Schedule(self._intake, self._timers, self._codec, log, name)
        self.approvals = Approvals(
            self._intake, self._commands, self._timers, self._codec, log, name
        )
        keeper = event_log_of(log) if event_log else None
        self.history = EventHistory(self._intake, self._codec, keeper, name, redeliver=redeliver)
        self._starting = asyncio.Lock()
        self._sessions: dict[str, Session] = {}
        self._error_callbacks: list[ErrorCallback] = []
        self._running = False
        self._stopping: asyncio.Future[StopReport] | None = None

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to handle events, those first that were published before. Idempotent."""
        async with self._starting:
            if self._intake.refusal is not None:
                raise self._intake.refusal.again()
            if not self._running:
                await self._open()
                self._running = True
                self._intake.start()
                await self.history.deliver_again()

    async def _open(self) -> None:
        try:
            await self.schedule.open()
            await self.approvals.open()
            await self.history.open()
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        await self.history.close()
        await self.schedule.close()
        await self.approvals.close()

    async def stop(
        self, *, drain: bool = True, timeout: float = STOP_TIMEOUT_SECONDS
    ) -> StopReport:
        """Refuse new messages, handle what is queued, and stop. Idempotent.

        Commands that are being executed are waited for too. What is not handled within
        ``timeout``, or at all when ``drain`` is False, is in the report; handlers that still run
        then are cancelled, and who still waits for the bus gets Closed.
        """
        if self._intake.is_nested():
            raise WouldDeadlock("a handler cannot stop its bus: the bus would wait for it")
        if self._stopping is None:
            self._intake.refusal = Closed(f"bus {self.name!r} is stopped: make a new one to go on")
            self._stopping = asyncio.ensure_future(self._stop(drain=drain, timeout=timeout))
        return await asyncio.shield(self._stopping)

    async def _stop(self, *, drain: bool, timeout: float) -> StopReport:
        self.schedule.pause()
        self.approvals.pause()
        if drain and self._running:
            try:
                async with self._timers.deadline(timeout, "drain the bus"):
                    await self._drain()
            except DeadlineExceeded:
                logger.warning(
                    "bus %r stops with %d events", self.name, self._dispatch.counters.unsettled
                )
        undrained = await self._halt()
        for envelope in undrained:
            drop_notes(envelope)
        await self.history.close(orderly=drain)
        async with self._starting:
            await self._close()
        self._running = False
        self._timers.close()
        return StopReport(tuple(undrained))

    async def _drain(self) -> None:
        self._intake.empty_inbox()
        await self.history.flush()
        while self._dispatch.busy or self._commands.running:
            await self._dispatch.idle()
            await self._commands.idle()

    async def _halt(self) -> list[Envelope]:
        """Stop all work and give back the events that were not finished."""
        assert self._intake.refusal is not None
        self._intake.halt()
        await self._dispatch.cancel(self._timers.deadline(HALT_TIMEOUT_SECONDS, "end the handlers"))
        await self._timers.interrupt(self._intake.refusal)
        unfinished = self._intake.stop() + self._parked()
        # One that is in work for a handler may wait for another one as well.
        return list({id(envelope): envelope for envelope in unfinished}.values())

    async def settle(self, timeout: float = SETTLE_TIMEOUT_SECONDS) -> None:
        """Wait until every event that was published is handled, with what followed from it.

        Retries are waited for; events that are scheduled for later are not.
        """
        if self._intake.is_nested():
            raise WouldDeadlock(
                "a handler cannot wait for the bus to settle: it is part of the work"
            )
        self._intake.empty_inbox()
        async with self._timers.deadline(timeout, "settle the bus"):
            while self._dispatch.busy or self.schedule.busy:
                await self.schedule.idle()
                await self._dispatch.idle()

    # Handlers

    def on(self, *targets: Target, **options: Any) -> Callable[[Function], Function]:
        """Register the decorated function for events; see :meth:`subscribe`."""
        if not targets:
            raise UsageError("name what to listen to: @bus.on(OrderPlaced) or @bus.on('orders.*')")

        def register(function: Function) -> Function:
            for target in targets:
                self.subscribe(target, function, **options)
            return function

        return register

    def subscribe(
        self,
        target: Target,
        function: Callable[..., Any],
        *,
        name: str = "",
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        where: Filter | None = None,
        subclasses: bool = False,
        concurrency: int = 1,
        batch: Batching | int | None = None,
        **options: Any,
    ) -> Handler:
        """Call the function for every event of a class, or of the topics that a glob matches.

        The function is sync or async and takes the event, or the event and its envelope. With
        ``subclasses`` it gets events of derived classes too. With ``batch`` it takes a list.
        ``where`` is asked before each call. ``close()`` of what is returned ends it.
        """
        self._check_options(options)
        handler = Handler(
            function,
            target,
            name=name,
            session=session,
            priority=priority,
            where=where,
            subclasses=subclasses,
            concurrency=concurrency,
            options=options,
        )
        if batch is not None:
            batching = Batching(batch) if isinstance(batch, int) else batch
            handler.batch = Batcher(handler, batching, self._dispatch, self._timers)
        self._prepare(handler)
        self._registry.add(handler)
        self._know(target)
        self.schedule.handlers_changed()
        self.history.handlers_changed()
        return handler

    def handles(self, kind: type, **options: Any) -> Callable[[Function], Function]:
        """Register the decorated function as the one handler of a command."""

        def register(function: Function) -> Function:
            self.handle(kind, function, **options)
            return function

        return register

    def handle(
        self,
        kind: type,
        function: Callable[..., Any],
        *,
        name: str = "",
        session: str = DEFAULT_SESSION,
        approval: Approval | None = None,
        **options: Any,
    ) -> Handler:
        """Register the one handler of a command; DuplicateHandler when there is one.

        With ``approval``, commands wait until somebody approves them: see ``bus.approvals``.
        """
        self._check_options(options)
        if approval is not None:
            options["approval"] = approval
            self._commands.gate = self.approvals.gate
        handler = Handler(function, kind, name=name, session=session, options=options)
        self._prepare(handler)
        self._registry.add_command(handler)
        self.approvals.handlers_changed()
        self._know(kind)
        return handler

    def _know(self, target: Target) -> None:
        """Messages of this class may come back from the log."""
        if self._log is not None and isinstance(target, type):
            self._codec.register(target)

    def session(self, name: str) -> Session:
        """Open a session; ``async with`` closes it and removes its handlers."""
        if check_label("session", name) == DEFAULT_SESSION or name in self._sessions:
            raise UsageError(
                f"a session cannot be called {name!r}: it is reserved, or open already"
            )
        session = self._sessions[name] = Session(self, name)
        return session

    def close_session(self, session: Session) -> None:
        """Forget a session and its handlers; ``session.close()`` calls it."""
        self._registry.close_session(session.name)
        self._sessions.pop(session.name, None)

    def add_filter(self, accepts: Filter) -> None:
        """Let only those events in that the filter accepts."""
        self._intake.filters.append(accepts)

    def use(self, middleware: Middleware, *, events: bool = True, commands: bool = True) -> None:
        """Wrap a middleware around every event, every command, or both; the first is outermost."""
        if events:
            self._dispatch.middleware.append(middleware)
            self._registry.touch()
        if commands:
            self._commands.middleware.append(middleware)

    def observe(self, observer: MessageObserver) -> None:
        """Let an observer, such as :class:`Tracing`, mark what is published and see it handled."""
        self._intake.stamp = observer.stamp
        self.use(observer.middleware)

    def on_error(self, callback: ErrorCallback) -> None:
        """Call back with every error of an event handler."""
        self._error_callbacks.append(callback)

    def on_pressure(self, callback: PressureCallback) -> None:
        """Call back when a queue passes its high mark, and when it is back at its low one."""
        self._intake.pressure_callbacks.append(self._guarded(callback))

    # Events

    def atomic(
        self, *, durable: bool = False, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> AbstractAsyncContextManager[AtomicGroup]:
        """Publish several events, all or none: those of the block, when it ends without an error.

        With ``durable`` a crash leaves all of them or none too.
        """
        return grouped(self._intake, self.history if durable else None, timeout)

    # Commands

    async def execute(
        self,
        command: Command[Result],
        *,
        session: str = DEFAULT_SESSION,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = COMMAND_TIMEOUT_SECONDS,
    ) -> CommandResult[Result]:
        """Run a command by its one handler, in the calling task, and return how it ended.

        Never raises for what the handler or the bus did: ``result.code`` and ``result.error`` say
        it. After ``timeout`` the handler is cancelled; one that swallows that is waited for.
        """
        self._intake.check_open()
        envelope = self._intake.enclose(
            command, session, headers=headers, correlation_id=correlation_id
        )
        return await self._commands.execute(envelope, timeout)

    async def send(
        self,
        command: Command[Result],
        *,
        session: str = DEFAULT_SESSION,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = COMMAND_TIMEOUT_SECONDS,
    ) -> Result:
        """As :meth:`execute`, but returns the handler's result and raises what went wrong.

        NoHandler, DeadlineExceeded, RateLimited, CircuitOpen, or HandlerFailed with the handler's
        error as its cause.
        """
        result = await self.execute(
            command,
            session=session,
            headers=headers,
            correlation_id=correlation_id,
            timeout=timeout,
        )
        raise_failure(result)
        return result.result  # type: ignore[return-value]  # it succeeded

    # Looking at it

    def topics(self) -> list[str]:
        """The topics and patterns that somebody listens to."""
        return self._registry.topics()

    def statistics(self) -> BusStatistics:
        """The figures of this moment."""
        sessions = len(self._sessions)
        return bus_statistics(self.name, self._dispatch, self._commands, self._intake, sessions)

    # What a wrapper changes

    def _tell(self, handler: Handler, envelope: Envelope, error: BaseException) -> None:
        if not self._error_callbacks:
            log_failed(handler, envelope, error)
        for callback in self._error_callbacks:
            self._guarded(callback)(handler, envelope, error)

    def _guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        return guarded(callback, self._exit)

    def _exit(self, error: BaseException) -> None:
        """A callback ends the program: between events, once the bus runs."""
        if self._dispatch.loop is None:
            raise error
        end_loop(self._dispatch, error)

    def _parked(self) -> list[Envelope]:
        """Events that wait for another call of a handler."""
        return []

    def _prepare(self, handler: Handler) -> None:
        """Put in front of a handler what the bus offers."""

    def _check_options(self, options: Mapping[str, Any]) -> None:
        if options:
            raise UsageError(
                f"MessageBus has no option {', '.join(sorted(options))}: retries, breakers and "
                "dead letters come with ResilientMessageBus"
            )
