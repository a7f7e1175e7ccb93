"""A bus with the life of an application: it starts with it, and drains when it stops."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

from penstock import ScalableMessageBus, errors
from penstock import open as open_bus
from penstock.bus import StopReport
from penstock.observe import Observer

logger = logging.getLogger("penstock.integrations")

DRAIN_SECONDS = 20.0
"""Less than the 30 seconds that Kubernetes gives a process after SIGTERM."""

Function = TypeVar("Function", bound=Callable[..., Any])
OpenBus = Callable[[], AbstractAsyncContextManager[ScalableMessageBus]]
OpenPart = Callable[[], AbstractAsyncContextManager[Any]]


class Service:
    """A bus and its observer, for programs that are run by a web framework or a process manager.

    ``service = Service("log:./data")`` can stand at the top of a module: handlers are registered with
    ``@service.on(...)`` and ``@service.handles(...)``, and the bus is opened with the application:
    ``FastAPI(lifespan=service.lifespan)``, ``Starlette(lifespan=service.lifespan)``,
    ``Litestar(lifespan=[service.lifespan])``, or ``async with service``. It can be opened again
    after it was closed.

    When the application stops, it is not ready any more, the bus takes no new messages, and what is
    queued is handled, for ``drain_seconds`` at most. What is left then is logged, and, on a log,
    handled after the next start.

    ``url`` may be a function that opens another bus than ``penstock.open(url, **options)``. ``also``
    opens other parts beside it, such as streams; they are watched too.
    """

    def __init__(
        self,
        url: str | OpenBus,
        *,
        observer: Observer | None = None,
        drain_seconds: float = DRAIN_SECONDS,
        also: tuple[OpenPart, ...] = (),
        **options: Any,
    ) -> None:
        if not 0 < drain_seconds < float("inf"):
            raise errors.InvalidOption(
                f"drain_seconds is {drain_seconds}: use more than 0", option="drain_seconds"
            )
        self.observer = observer or Observer()
        self.report: StopReport | None = None
        """What the last stop could not finish."""
        self._open: OpenBus = url if callable(url) else lambda: open_bus(url, **options)
        self._drain_seconds = drain_seconds
        self._also = also
        self._handlers: list[Callable[[ScalableMessageBus], object]] = []
        self._bus: ScalableMessageBus | None = None
        self._stack: AsyncExitStack | None = None

    # Handlers

    def on(self, *targets: Any, **options: Any) -> Callable[[Function], Function]:
        """Register the decorated function for events, whenever the bus is open."""

        def register(function: Function) -> Function:
            self.setup(lambda bus: bus.on(*targets, **options)(function))
            return function

        return register

    def handles(self, kind: type, **options: Any) -> Callable[[Function], Function]:
        """Register the decorated function as the handler of a command, whenever the bus is open."""

        def register(function: Function) -> Function:
            self.setup(lambda bus: bus.handles(kind, **options)(function))
            return function

        return register

    def setup(self, prepare: Callable[[ScalableMessageBus], object]) -> None:
        """Call a function with the bus each time it is opened; at once when it is open."""
        self._handlers.append(prepare)
        if self._bus is not None:
            prepare(self._bus)

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """The lifespan of an application, whatever the framework."""
        async with self:
            yield

    async def start(self) -> None:
        """Open the bus, register the handlers, begin to look."""
        if self._stack is not None:
            raise errors.UsageError("the service runs already")
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(self._open())
            for prepare in self._handlers:
                prepare(bus)
            self.observer.watch(bus)
            stack.callback(self.observer.unwatch, bus)
            for open_part in self._also:
                part = await stack.enter_async_context(open_part())
                self.observer.watch(part)
                stack.callback(self.observer.unwatch, part)
            await self.observer.start()
            stack.push_async_callback(self.observer.close)
            self.observer.draining = False
            self._bus, self._stack = bus, stack.pop_all()

    async def stop(self) -> None:
        """Drain and close. Idempotent."""
        bus, stack, self._stack = self._bus, self._stack, None
        if bus is None or stack is None:
            return
        self.observer.draining = True
        try:
            self.report = await bus.stop(timeout=self._drain_seconds)
            left = len(self.report.undrained)
            if left:
                logger.warning("stopped with %d events that were not handled", left)
        finally:
            self._bus = None
            await stack.aclose()

    @property
    def bus(self) -> ScalableMessageBus:
        """The bus, while the application runs."""
        if self._bus is None:
            raise errors.UsageError(
                "the service does not run: give its lifespan to the application, or use async with"
            )
        return self._bus

    def get_bus(self) -> ScalableMessageBus:
        """The bus, as a dependency: ``Depends(service.get_bus)``."""
        return self.bus

    # Without a framework

    async def run(self) -> StopReport:
        """Run until SIGTERM or SIGINT, then drain; for programs that have no web framework."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        try:
            async with self:
                await told.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        assert self.report is not None, "it was stopped"
        return self.report
