"""The one place where the parts of a program are registered to be looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from dataclasses import replace
from itertools import count
from threading import get_ident
from typing import Any, Self

from penstock.bus.timers import PendingCall, Timers
from penstock.errors import DeadlineExceeded, InvalidOption
from penstock.observe.grouping import grouped, judge, stall_of
from penstock.observe.health import health_of
from penstock.observe.progress import ProgressClocks
from penstock.observe.stacks import stack_of_thread
from penstock.observe.values import Cause, GroupActivity, GroupKind, Health, Snapshot, Stall
from penstock.observe.watched import LOOK_TIMEOUT_SECONDS, Position, Sight, Watched, Why
from penstock.observe.watching import watched
from penstock.system import SECOND_MS, System

logger = logging.getLogger("penstock.observe")

LOOK_SECONDS = 5.0
STALL_SECONDS = 30.0
ANSWER_SECONDS = 2.0
"""How long another thread waits for the event loop; after that it is blocked."""


class Observer:
    """Watches the parts of a program: ``async with Observer() as observer: observer.watch(bus)``.

    :meth:`snapshot` is all that is known, as one value; metrics, health routes, the command line and
    the dashboard read nothing else. What is in memory is of this moment. Logs and brokers are looked
    at every ``look_seconds``, or when :meth:`look` is called.

    A group that has something to do and did nothing for ``stall_seconds`` is **stalled**: that is a
    state with a cause. Watching costs the bus nothing for a message, but for the durations of
    handlers, which are measured by samples; ``durations=False`` leaves that out.

    Belongs to the event loop that started it. :meth:`snapshot` and :meth:`health` may be called from
    any thread; when the loop does not answer, that is the stall they tell of.
    """

    def __init__(
        self,
        *,
        look_seconds: float = LOOK_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        durations: bool = True,
        system: System | None = None,
    ) -> None:
        for option, value in (("look_seconds", look_seconds), ("stall_seconds", stall_seconds)):
            if not 0 < value < float("inf"):
                raise InvalidOption(f"{option} is {value}: use more than 0", option=option)
        self.stall_seconds = stall_seconds
        self.draining = False
        """Whether the process is about to stop: it is not ready for new work then."""
        self._look_seconds = look_seconds
        self._durations = durations
        self._system = system or System()
        self._timers = Timers(self._system.clock)
        self._parts: dict[int, Watched] = {}
        """What was asked for, by the identity of the part."""
        self._others: dict[int, Watched] = {}
        """What these stand on, as the log of a bus."""
        self._clocks = ProgressClocks(self._system)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._next: PendingCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked_ms: int | None = None
        self._stalls: dict[tuple[object, ...], Stall] = {}
        """Those that were told of."""
        self._latest = Snapshot(time_ms=self._system.clock.time_ms(), looked_ms=None)

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Look from now on, every ``look_seconds``. Idempotent."""
        if self._loop is None:
            self._loop, self._thread = asyncio.get_running_loop(), get_ident()
            self._timers = Timers(self._system.clock)
            self._later(0.0)

    async def close(self) -> None:
        """Look no more. What is watched goes on. Idempotent."""
        self._loop = None
        if self._next is not None:
            self._next.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._timers.close()

    # Parts

    def watch(self, part: Any, *, name: str | None = None) -> None:
        """Look at a part from now on: a bus, a log, a streaming manager, a transport, a pipeline.

        ``name`` is what it is called in figures; a bus has one of its own. Watching it again
        changes nothing. InvalidOption when nobody knows how to look at it.
        """
        if id(part) not in self._parts:
            self._others.pop(id(part), None)
            self._parts[id(part)] = self._make(part, name, asked=True)

    def unwatch(self, part: Any) -> None:
        """Look at a part no more; it need not have been watched."""
        self._parts.pop(id(part), None)

    def parts(self) -> dict[str, Any]:
        """What is looked at, by the names in a snapshot: also the logs that buses stand on."""
        return {one.name: one.subject for one in (*self._parts.values(), *self._others.values())}

    def _make(self, part: Any, name: str | None = None, *, asked: bool = False) -> Watched:
        made = watched(part, name, asked=asked, durations=self._durations, system=self._system)
        names = {one.name for one in (*self._parts.values(), *self._others.values())}
        made.name = next(name for name in _numbered(made.name) if name not in names)
        return made

    def _watched(self) -> list[Watched]:
        """All parts, and what they stand on, each once."""
        before, self._others = self._others, {}
        found = list(self._parts.values())
        for part in found:  # which grows
            for other in part.others():
                if id(other) not in self._parts and id(other) not in self._others:
                    made = before.get(id(other)) or self._make(other)
                    self._others[id(other)] = made
                    found.append(made)
        return found

    # Looking

    async def look(self, timeout: float = LOOK_TIMEOUT_SECONDS) -> Snapshot:
        """Look at all parts now, and return the snapshot of it.

        What does not answer within ``timeout`` counts as silent; nothing is raised for it.
        """
        looks = [self._look_at(part, timeout) for part in self._watched()]
        await asyncio.gather(*looks)
        self._looked_ms = self._system.clock.time_ms()
        return self._read()

    async def _look_at(self, part: Watched, timeout: float) -> None:
        try:
            async with self._timers.deadline(timeout, f"look at {part.name}"):
                await part.look()
            part.silent(None)
        except DeadlineExceeded as error:
            logger.warning("%s", error)
            part.silent(str(error))
        except Exception as error:
            logger.warning("cannot look at %s", part.name, exc_info=error)
            part.silent(f"{type(error).__name__}: {error}")

    def _later(self, seconds: float) -> None:
        self._next = self._timers.call_after(seconds, self._due)

    def _due(self) -> None:
        assert self._loop is not None
        self._task = self._loop.create_task(self._look_by_itself())

    async def _look_by_itself(self) -> None:
        try:
            await self.look()
        except Exception:
            logger.exception("cannot look")
        finally:
            if self._loop is not None:
                self._later(self._look_seconds)

    # Reading

    def now_ms(self) -> int:
        """The time of the clock that snapshots are made by, in milliseconds since 1970."""
        return self._system.clock.time_ms()

    def snapshot(self) -> Snapshot:
        """All that is known at this moment. From any thread."""
        loop = self._loop
        if loop is None or self._thread == get_ident() or not loop.is_running():
            return self._read()
        return self._ask(loop)

    def health(self) -> Health:
        """Whether the process does its work, and whether it should get more. From any thread."""
        snapshot = self.snapshot()
        troubles = [text for part in self._watched() for text in part.troubles()]
        return health_of(snapshot, troubles, draining=self.draining)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> Snapshot:
        """Let the event loop read; when it does not, that is worth a stall."""
        answer: Future[Snapshot] = Future()
        loop.call_soon_threadsafe(_answer, self._read, answer)
        try:
            return answer.result(ANSWER_SECONDS)
        except TooLate:
            blocked = self._blocked()
            return replace(self._latest, stalls=(blocked, *self._latest.stalls))

    def _blocked(self) -> Stall:
        now = self._system.clock.time_ms()
        since = min(now, self._latest.time_ms)
        stack = stack_of_thread(self._thread)
        return Stall(
            source="event loop",
            group="",
            topic="",
            partition=None,
            offset=None,
            since_ms=since,
            seconds=(now - since) / SECOND_MS,
            cause=Cause.LOOP_BLOCKED,
            detail=f"the event loop is held up in {stack[-1] if stack else 'unknown code'}",
            stack=stack,
        )

    def _read(self) -> Snapshot:
        parts = self._watched()
        sight = Sight()
        for part in parts:
            part.read(sight)
        explain = _explainer(parts)
        seen = self._clocks.observe(_once([one for part in parts for one in part.positions()]))
        judged = [judge(*one, explain, self.stall_seconds) for one in seen]
        stalled = [one for one in judged if one.state is GroupActivity.STALLED]
        self._latest = Snapshot(
            time_ms=self._system.clock.time_ms(),
            looked_ms=self._looked_ms,
            buses=tuple(sight.buses),
            logs=tuple(sight.logs),
            topics=tuple(sight.topics),
            groups=grouped(judged),
            streams=tuple(sight.streams),
            transports=tuple(sight.transports),
            queries=tuple(sight.queries),
            stalls=tuple(sorted(map(stall_of, stalled), key=lambda one: -one.seconds)),
        )
        self._log_stalls(self._latest.stalls)
        return self._latest

    def _log_stalls(self, stalls: tuple[Stall, ...]) -> None:
        """Say once that a group stands still, and once that it goes on."""
        before, self._stalls = self._stalls, {_place(one): one for one in stalls}
        for place, stall in self._stalls.items():
            if place not in before:
                logger.warning("%s", stall.explain(), extra=_fields(stall))
        for place, stall in before.items():
            if place not in self._stalls:
                where = f"{stall.group} on {stall.topic}"
                logger.info("%s goes on", where, extra=_fields(stall))


def _explainer(parts: list[Watched]) -> Callable[[Position], Why | None]:
    def explain(position: Position) -> Why | None:
        return next((why for part in parts if (why := part.explain(position)) is not None), None)

    return explain


def _once(positions: list[Position]) -> list[Position]:
    """Each group once: a query of Spark is a group of the log, when that is watched too."""
    logged = {one.group for one in positions if one.kind is GroupKind.LOG}
    return [one for one in positions if one.kind is not GroupKind.SPARK or one.group not in logged]


def _place(stall: Stall) -> tuple[object, ...]:
    return stall.source, stall.group, stall.topic, stall.partition


def _fields(stall: Stall) -> dict[str, Any]:
    return {
        "topic": stall.topic,
        "partition": stall.partition,
        "offset": stall.offset,
        "group": stall.group,
        "cause": str(stall.cause),
    }


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _answer(read: Callable[[], Snapshot], answer: Future[Snapshot]) -> None:
    try:
        answer.set_result(read())
    except Exception as error:
        answer.set_exception(error)
