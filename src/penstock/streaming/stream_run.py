"""Consumers that handle a topic for a group, as many as are asked for, kept alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import msgspec

from penstock.bus.timers import Timers
from penstock.errors import Closed, DeadlineExceeded, UsageError
from penstock.streaming.parallel_values import check_at_least
from penstock.streaming.run_values import Executor, MemberFigures, RunMember, RunStatistics
from penstock.system import Clock

logger = logging.getLogger("penstock.streaming")

RESTART_SECONDS, RESTART_SECONDS_MAX = 0.1, 30.0
"""A consumer that died is started again after the first; each time twice as long, to the last."""
STABLE_SECONDS = 60.0
"""Who lived so long begins with the short wait again."""

MakeMember = Callable[[], RunMember]


class _Place:
    """One consumer: the member that is there now, and the task that keeps it alive."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member: RunMember | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopping = False


class StreamRun:
    """Consumers of a topic for a group. Made by ``StreamingScalingManager.run``.

    ``async with streams.run(...) as run`` starts it and stops it; the scaler, or
    :meth:`scale_to`, adds consumers and takes them away. A consumer that dies is started again
    after a while that grows; what it had not committed comes again, to it or to another member.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        make: MakeMember,
        *,
        executor: Executor,
        consumers: int,
        stop_seconds: float,
        clock: Clock,
        on_start: Callable[[StreamRun], Awaitable[object]],
        on_stop: Callable[[StreamRun], object],
    ) -> None:
        check_at_least("consumers", consumers, 1)
        self.topic, self.group, self.executor = topic, group, executor
        self._make = make
        self._wanted = consumers
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._timers = Timers(clock)
        self._on_start, self._on_stop = on_start, on_stop
        self._places: list[_Place] = []
        self._numbers = 0
        self._restarts = 0
        self._last_error: BaseException | None = None
        self._before = MemberFigures()
        """The figures of consumers that are gone."""
        self._started = self._stopped = False
        self._scaling = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def consumers(self) -> int:
        """How many consumers there are to be."""
        return self._wanted

    async def start(self) -> None:
        """Start the consumers. Idempotent."""
        if self._stopped:
            raise Closed(f"the run of {self.topic!r} was stopped")
        if not self._started:
            await self._on_start(self)
            self._started = True
            await self.scale_to(self._wanted)

    async def scale_to(self, consumers: int) -> None:
        """Have another number of consumers; returns when those that go have let go.

        The newest go first. They finish what they have begun, and commit it.
        """
        check_at_least("consumers", consumers, 1)
        if not self._started or self._stopped:
            raise UsageError(f"the run of {self.topic!r} is not running")
        async with self._scaling:
            self._wanted = consumers
            while len(self._places) < consumers:
                self._add()
            await self._remove(self._places[consumers:], self._stop_seconds)

    async def stop(self, timeout: float | None = None) -> None:
        """Stop all consumers. They finish what they have begun, and commit it. Idempotent.

        Those that are not done in time are cancelled or killed; what they had comes again.
        """
        if self._stopped:
            return
        self._stopped = True
        self._on_stop(self)
        async with self._scaling:
            await self._remove(
                list(self._places), self._stop_seconds if timeout is None else timeout
            )

    def statistics(self) -> RunStatistics:
        """The figures of this moment."""
        now = {place.name: _figures(place) for place in self._places}
        every = [self._before, *now.values()]
        return RunStatistics(
            topic=self.topic,
            group=self.group,
            executor=self.executor,
            consumers=self._wanted,
            alive=sum(bool(one.assigned) for one in now.values()),
            handled=sum(one.handled for one in every),
            failures=sum(one.failures for one in every),
            dead_letters=sum(one.dead_letters for one in every),
            parked=sum(one.parked for one in now.values()),
            restarts=self._restarts,
            last_error=None if self._last_error is None else str(self._last_error),
            assignment={name: tuple(sorted(one.assigned)) for name, one in now.items()},
        )

    def figures(self) -> MemberFigures:
        """All consumers as one, as a worker process tells of itself."""
        every = [_figures(place) for place in self._places]
        total = self._before
        for one in every:
            total = _added(total, one)
        return msgspec.structs.replace(
            total,
            parked=sum(one.parked for one in every),
            assigned=frozenset().union(*(one.assigned for one in every)),
            partitions={number: work for one in every for number, work in one.partitions.items()},
        )

    def work(self) -> Mapping[int, tuple[int, int | None]]:
        """Partition → what is handled, and since when the oldest record waits, in these consumers."""
        return {
            number: (work.handled, work.oldest_ms)
            for place in self._places
            for number, work in _figures(place).partitions.items()
        }

    # Inside

    def _add(self) -> None:
        self._numbers += 1
        place = _Place(f"consumer-{self._numbers}")
        self._places.append(place)
        place.task = asyncio.get_running_loop().create_task(self._keep(place))

    async def _keep(self, place: _Place) -> None:
        """Run a member, and another one when it died, until the place is given up."""
        wait = RESTART_SECONDS
        while not place.stopping:
            began = self._clock.monotonic()
            try:
                place.member = self._make()
                await place.member.run()
            except Exception as error:
                self._note(place, error)
            finally:
                self._before = _added(self._before, _figures(place))
                place.member = None
            if self._clock.monotonic() - began >= STABLE_SECONDS:
                wait = RESTART_SECONDS
            await self._pause(place, wait)
            wait = min(2 * wait, RESTART_SECONDS_MAX)

    async def _pause(self, place: _Place, seconds: float) -> None:
        if not place.stopping:
            await self._timers.sleep(seconds)

    def _note(self, place: _Place, error: Exception) -> None:
        self._last_error = error
        if not place.stopping:
            self._restarts += 1
            logger.warning(
                "%s of %s for %s died",
                place.name,
                self.topic,
                self.group,
                exc_info=error,
                extra={"topic": self.topic, "group": self.group, "attempt": self._restarts},
            )

    async def _remove(self, places: list[_Place], seconds: float) -> None:
        tasks = [place.task for place in places if place.task is not None]
        for place in places:
            place.stopping = True
            if place.member is not None:
                place.member.stop()
            elif place.task is not None:
                place.task.cancel()  # it waits to start again
        if tasks:
            try:
                async with self._timers.deadline(seconds, "stop consumers"):
                    await asyncio.wait(tasks)
            except DeadlineExceeded:
                logger.warning(
                    "consumers of %s did not stop in %g s",
                    self.topic,
                    seconds,
                    extra={"topic": self.topic, "group": self.group},
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for place in places:
            self._places.remove(place)


def _figures(place: _Place) -> MemberFigures:
    return MemberFigures() if place.member is None else place.member.figures()


def _added(one: MemberFigures, other: MemberFigures) -> MemberFigures:
    return MemberFigures(
        handled=one.handled + other.handled,
        failures=one.failures + other.failures,
        dead_letters=one.dead_letters + other.dead_letters,
    )
