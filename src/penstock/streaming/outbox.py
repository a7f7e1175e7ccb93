"""What was published and is not acknowledged: it waits in the backpressure handler for its turn.

Calls that wait together travel together: each topic has one batch on its way, and what comes
meanwhile is the next one. So records of one topic keep the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.bus.timers import Timers
from penstock.errors import BufferFull, Closed, UsageError
from penstock.pressure.drops import Dropped
from penstock.pressure.streaming import StreamingBackpressureHandler
from penstock.streaming.transport_statistics import TransportMeter
from penstock.system import Clock
from penstock.transports.base import Transport
from penstock.transports.records import Produced

BATCH_RECORDS_MAX = 16_384


@dataclass(slots=True, eq=False)
class PublishCall:
    """One call of ``publish`` or ``publish_many`` on its way."""

    transport: Transport
    meter: TransportMeter
    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, bytes] | None] | None
    timestamps: Sequence[int] | None
    began: float
    future: asyncio.Future[Produced] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Outbox:
    """Takes calls from the handler's queue and brings them to their transports.

    At most ``in_flight_max`` calls are at the transports. The others wait in the handler, which
    does to their publishers what its strategy says. Belongs to one event loop.
    """

    def __init__(
        self,
        handler: StreamingBackpressureHandler[PublishCall],
        clock: Clock,
        in_flight_max: int,
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._timers = Timers(clock)
        self._in_flight_max = in_flight_max
        self._in_flight = 0
        self._lanes: dict[tuple[int, str], list[PublishCall]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        handler.on_drop(_dropped)

    @property
    def in_flight(self) -> int:
        """Calls that the transports have."""
        return self._in_flight

    def resize(self, in_flight_max: int) -> None:
        """Let another number of calls be at the transports; effective at once."""
        self._in_flight_max = in_flight_max
        self._spread()

    async def send(self, call: PublishCall, *, critical: bool, timeout: float) -> Produced:
        """Queue a call and wait for its acknowledgement.

        Refused by the handler (LoadShed), or cancelled while it waits for room, nothing was sent.
        Cancelled or too late (DeadlineExceeded) after that, it may have been.
        """
        try:
            async with self._timers.deadline(timeout, f"publish to {call.topic}"):
                await self._handler.publish(call, critical=critical, timeout=timeout)
                self._spread()
                return await call.future
        except BaseException as error:
            call.future.cancel()  # what is not on its way yet need not go
            call.meter.not_sent(len(call.values), error)
            raise

    async def close(self, timeout: float) -> None:
        """Send what was accepted, then refuse. DeadlineExceeded when that takes too long."""
        try:
            async with self._timers.deadline(timeout, "send what was published"):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        finally:
            self._handler.close()
            for task in self._tasks:
                task.cancel()
            for call in self._handler.take_nowait(len(self._handler) or 1):
                _fail(call, Closed("streaming was closed before this was sent"))

    # Inside

    def _spread(self) -> None:
        """Give waiting calls to the lanes of their topics, as many as may be on their way."""
        room = self._in_flight_max - self._in_flight
        if room <= 0 or not len(self._handler):
            return
        for call in self._handler.take_nowait(room):
            self._in_flight += 1
            place = (id(call.transport), call.topic)
            lane = self._lanes.get(place)
            if lane is None:
                lane = self._lanes[place] = []
                self._start(place, lane)
            lane.append(call)

    def _start(self, place: tuple[int, str], lane: list[PublishCall]) -> None:
        # It begins with the next turn of the loop: what others publish in this one comes along.
        task = asyncio.get_running_loop().create_task(self._run(place, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, place: tuple[int, str], lane: list[PublishCall]) -> None:
        try:
            while lane:
                calls = _portion(lane)
                del lane[: len(calls)]
                try:
                    await _send([call for call in calls if not call.future.done()], self._clock)
                finally:
                    self._in_flight -= len(calls)
                self._spread()
        finally:
            del self._lanes[place]
            for call in lane:
                self._in_flight -= 1
                _fail(call, Closed("streaming was closed before this was sent"))


def _portion(lane: list[PublishCall]) -> list[PublishCall]:
    """The first calls, as many as make one batch; at least one."""
    records = 0
    for count, call in enumerate(lane):
        records += len(call.values)
        if count and records > BATCH_RECORDS_MAX:
            return lane[:count]
    return list(lane)


async def _send(calls: list[PublishCall], clock: Clock) -> None:
    if not calls:
        return
    try:
        produced = await _produce(calls, clock)
    except UsageError as error:
        if len(calls) == 1:
            _fail(calls[0], error)
            return
        # Nothing was sent, and one of them is to blame: the others must not suffer for it.
        for call in calls:
            await _send([call], clock)
    except asyncio.CancelledError:
        for call in calls:
            _fail(call, Closed("streaming was closed; this may or may not have been sent"))
        raise
    except Exception as error:
        for call in calls:
            _fail(call, error)
    else:
        _succeed(calls, produced, clock.monotonic())


async def _produce(calls: list[PublishCall], clock: Clock) -> Produced:
    first = calls[0]
    if len(calls) == 1:
        return await first.transport.produce(
            first.topic,
            first.values,
            keys=first.keys,
            headers=first.headers,
            timestamps=first.timestamps,
        )
    return await first.transport.produce(
        first.topic,
        [value for call in calls for value in call.values],
        keys=_column(calls, "keys"),
        headers=_column(calls, "headers"),
        timestamps=_column(calls, "timestamps", clock.time_ms()),
    )


def _column(calls: list[PublishCall], name: str, missing: Any = None) -> list[Any] | None:
    """One column of all calls together; None when none of them has it."""
    columns = [getattr(call, name) for call in calls]
    if all(column is None for column in columns):
        return None
    return [
        value
        for call, column in zip(calls, columns, strict=True)
        for value in (column if column is not None else [missing] * len(call.values))
    ]


def _succeed(calls: list[PublishCall], produced: Produced, now: float) -> None:
    for call in calls:
        call.meter.sent(len(call.values), now - call.began)
        if not call.future.done():
            call.future.set_result(produced)
    calls[0].meter.batch_sent()


def _fail(call: PublishCall, error: BaseException) -> None:
    if not call.future.done():
        call.future.set_exception(error)


def _dropped(told: Dropped) -> None:
    call: PublishCall = told.item
    _fail(
        call,
        BufferFull(f"{call.topic}: dropped to make room for what came later", topic=call.topic),
    )
