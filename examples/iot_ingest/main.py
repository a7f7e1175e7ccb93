"""Sensors at full speed on the hot path, a database that stands still for a while, and what producers feel of it.

Run it: `python examples/iot_ingest/main.py`. Readings go through the ring. When the database stops, the ring and
the queue behind it fill up: the pressure rises, sensors are slowed down, then refused, and leave readings
out. Alarms always pass. When the database is back, the pressure falls and all sensors go on. The numbers
must agree in the end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

from penstock import (
    BackpressureState,
    BackpressureStateChanged,
    BackpressureThresholds,
    BusLimits,
    Event,
    MessageBus,
    ScalableMessageBus,
    critical,
    errors,
    hot_path,
    topic,
)

FAST = os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1"
SENSORS = 200
READINGS = 100 if FAST else 1_000
"""How many each sensor takes before the outage, and how many after it."""
ALARM_EVERY = 10
SHED_ENOUGH = 500
"""The outage ends when so many readings were refused."""
SLOW_READINGS = 1_500
SECONDS_MAX = 120.0


@topic("readings")
@hot_path
class Reading(Event):
    sensor: int
    number: int
    celsius: float


@topic("alarms")
@critical
class Alarm(Event):
    sensor: int
    number: int


class Database:
    """Takes readings, unless it stands still. It is slow at first when it has stood still."""

    def __init__(self) -> None:
        self._slow = 0
        self.rows = 0
        self.last: dict[int, int] = {}
        self._running = asyncio.Event()
        self._running.set()

    def stop(self) -> None:
        self._running.clear()

    def go_on(self) -> None:
        self._slow = SLOW_READINGS
        self._running.set()

    async def store(self, reading: Reading) -> None:
        if not self._running.is_set():
            await self._running.wait()
        if self._slow:
            self._slow -= 1
            await asyncio.sleep(0.001)
        assert reading.number > self.last.get(reading.sensor, -1), (
            "a sensor's readings stay in order"
        )
        self.last[reading.sensor] = reading.number
        self.rows += 1


class Site:
    """All sensors, and what became of what they measured."""

    def __init__(self, bus: ScalableMessageBus) -> None:
        self._bus = bus
        self.taken = 0
        self.accepted = 0
        self.left_out = 0
        self.alarms = 0
        self.enough = asyncio.Event()

    async def measure(self, sensor: int, first: int, until: asyncio.Event | None = None) -> None:
        """Take readings: so many, or until somebody says so."""
        number = first
        while number < first + READINGS if until is None else not until.is_set():
            await self._send(sensor, number)
            number += 1
            await asyncio.sleep(0)  # who is not delayed gives way to the others by itself

    async def _send(self, sensor: int, number: int) -> None:
        self.taken += 1
        if number % ALARM_EVERY == 0:
            self.alarms += 1
            await self._bus.publish(Alarm(sensor, number))
        try:
            await self._bus.publish(Reading(sensor, number, 20.0 + number % 7))
            self.accepted += 1
        except errors.LoadShed as refused:
            self.left_out += 1
            if self.left_out >= SHED_ENOUGH:
                self.enough.set()
            await asyncio.sleep(seconds_to_wait(refused))


def seconds_to_wait(refused: errors.LoadShed) -> float:
    """What the error says about when to come back."""
    seconds = refused.retry_after
    assert isinstance(seconds, float)
    return seconds


class Levels:
    """The pressure over time."""

    def __init__(self, bus: ScalableMessageBus) -> None:
        self._bus, self._start = bus, time.monotonic()
        self.seen: list[BackpressureState] = []
        bus.backpressure.on_backpressure_changed(self._changed)

    def _changed(self, change: BackpressureStateChanged) -> None:
        self.seen.append(change.current)
        full = self._bus.backpressure.monitor.utilisation
        after = time.monotonic() - self._start
        bar = "#" * round(30 * full)
        print(f"  {after:6.2f} s  {change.current.name:8}  {bar:30} {full:4.0%} full")


async def phase(site: Site, first: int, until: asyncio.Event | None = None) -> None:
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as sensors:
        for sensor in range(SENSORS):
            sensors.create_task(site.measure(sensor, first, until))


async def outage(site: Site, database: Database, first: int) -> None:
    """The database stands still until enough readings were refused; then it goes on."""
    database.stop()
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as everything:
        over = asyncio.Event()
        for sensor in range(SENSORS):
            everything.create_task(site.measure(sensor, first, over))
        await site.enough.wait()
        over.set()
        database.go_on()


def check(site: Site, database: Database, alarms: Counter[int], levels: Levels) -> None:
    """The numbers must agree, or the example fails."""
    assert site.taken == site.accepted + site.left_out
    assert database.rows == site.accepted
    assert sum(alarms.values()) == site.alarms
    up = [BackpressureState.WARNING, BackpressureState.CRITICAL, BackpressureState.SHEDDING]
    assert [level for level in up if level in levels.seen] == up
    assert levels.seen[-1] is BackpressureState.NORMAL


async def ingest() -> None:
    bus = ScalableMessageBus(
        MessageBus(name="site"),
        ring_capacity=4_096,  # small, so that the outage is short
        limits=BusLimits(max_message_queue_size=256),
        thresholds=BackpressureThresholds(warning=0.5, critical=0.7, shedding=0.85),
    )
    database, alarms = Database(), Counter[int]()
    bus.subscribe(Reading, database.store)
    bus.subscribe(Alarm, lambda alarm: alarms.update([alarm.sensor]))
    async with bus:
        site, levels = Site(bus), Levels(bus)
        print(f"{SENSORS} sensors, a ring of 4,096 slots:")
        await phase(site, 0)
        await bus.settle(SECONDS_MAX)
        print(f"  {database.rows:,} readings are stored. The database stands still ...")
        await outage(site, database, READINGS)
        await bus.settle(SECONDS_MAX)
        bus.backpressure.monitor.evaluate()
        print("  ... and is back. All sensors go on.")
        await phase(site, 10_000_000)
        await bus.settle(SECONDS_MAX)
        check(site, database, alarms, levels)
        figures = bus.statistics()
        assert figures.events_published == figures.events_processed, figures
    print(
        f"  {site.taken:,} readings taken = {database.rows:,} stored + {site.left_out:,} left out,"
    )
    print(f"  {site.alarms:,} alarms, none of them lost: PASS")


if __name__ == "__main__":
    asyncio.run(ingest())
