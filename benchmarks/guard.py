"""A guard against getting slower, that does not ask how fast the machine is.

Each workload is done twice. Once its steps are counted: the instructions of the interpreter, in all threads. The
count is the same on every machine, busy or not, so tests hold it. Once its processor time is compared with a loop that
never changes, by turns, and the least of several rounds counts: that sees compiled code and the system too, and needs a
machine that is quiet. The limits are over what guard.json keeps, for this Python and with or without the compiled
twin. ``python -m benchmarks.guard`` shows the counts, ``--time`` the times too; ``--write`` keeps them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.model import Load
from benchmarks.publishers import NO_SYNC, TOPIC, fill, opened
from benchmarks.scale.books import Tick
from penstock import (
    Event,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    WalMessageQueue,
)

BASELINE = Path(__file__).with_suffix(".json")
LIMIT = 1.3
"""A cost of so many times the kept one is a regression."""
COUNTED = 0.05
"""Of the work that is timed, so much is counted: counting is slow, and exact."""
ROUNDS_MIN, ROUNDS_MAX = 3, 15
"""It goes on while the ratio is above the limit: noise only ever adds."""
PAYLOAD_BYTES = 100

Clock = Callable[[], float]
Work = Callable[[], float]
"""Does its work once; what it took."""


class Ping(Event, frozen=True):
    """What the bus carries here."""

    number: int


def reference() -> float:
    """Calls, dictionaries, bytes and integers, as the inner loops have them."""
    start = time.process_time()
    kept: dict[int, bytes] = {}
    for number in range(30_000):
        kept[number & 1023] = _piece(b"0123456789", number)
    assert len(kept) == 1024
    return time.process_time() - start


def _piece(data: bytes, number: int) -> bytes:
    return data[number % 7 :] + b"%d" % number


@asynccontextmanager
async def _warm_log() -> AsyncIterator[tuple[WalMessageQueue, list[bytes]]]:
    values = Load(PAYLOAD_BYTES, 0, 0).values()
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), NO_SYNC) as queue:
            await queue.publish_many(TOPIC, values)
            yield queue, values


async def publish_many(clock: Clock, times: float) -> float:
    """Blocks of 1,000 records to the log."""
    async with _warm_log() as (queue, values):
        start = clock()
        for _ in range(round(100 * times)):
            await queue.publish_many(TOPIC, values)
        return clock() - start


async def publish_nowait(clock: Clock, times: float) -> float:
    """Single records to the log."""
    async with _warm_log() as (queue, values):
        start = clock()
        for _ in range(round(20 * times)):
            receipt = [queue.publish_nowait(TOPIC, value) for value in values][-1]
            await receipt.wait()
        return clock() - start


async def read(clock: Clock, times: float) -> float:
    """Records of the log as objects, in batches."""
    count = math.ceil(60 * times) * 1_000
    with tempfile.TemporaryDirectory() as folder:
        await asyncio.to_thread(fill, Path(folder), Load(PAYLOAD_BYTES, 0, 0), count)
        async with opened(Path(folder), NO_SYNC) as queue, queue.subscribe(TOPIC, "guard") as one:
            start = clock()
            while count > 0:
                batch = await one.next_batch(records_max=1_000)
                assert all(len(record.value or b"") == PAYLOAD_BYTES for record in batch.records)
                count -= len(batch)
            return clock() - start


async def bus(clock: Clock, times: float) -> float:
    """Events through the resilient bus, in bursts."""
    async with ResilientMessageBus() as one:
        return await _through(one, clock, Ping, round(6_000 * times), 1_000)


async def hot(clock: Clock, times: float) -> float:
    """Events through a hot topic, in bursts."""
    async with ScalableMessageBus(ResilientMessageBus()) as one:
        return await _through(one, clock, Tick, round(60_000 * times), 10_000)


async def _through(
    one: MessageBus, clock: Clock, kind: Callable[[int], Any], count: int, burst: int
) -> float:
    seen: list[int] = []
    one.subscribe(kind, lambda event: seen.append(event.number))  # type: ignore[arg-type]
    start = clock()
    for first in range(0, count, burst):
        for number in range(first, min(count, first + burst)):
            one.publish_nowait(kind(number))
        await one.settle()
    assert len(seen) == count
    return clock() - start


GUARDED: dict[str, Callable[[Clock, float], Coroutine[Any, Any, float]]] = {
    "publish_many": publish_many,
    "publish_nowait": publish_nowait,
    "read": read,
    "bus": bus,
    "hot": hot,
}
STEADY = tuple(name for name in GUARDED if name != "hot")
"""Those whose steps are the same each time: a hot topic takes more or fewer at a time, as it comes."""


class Steps:
    """Counts the instructions of Python that run, in this thread and in those that start meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def now(self) -> float:
        """How many there were."""
        return self.count

    def _see(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._see

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count everything that begins inside."""
        usual = sys.gettrace()
        threading.settrace(self._see)
        sys.settrace(self._see)
        try:
            yield
        finally:
            sys.settrace(usual)
            threading.settrace(usual)


def steps_of(name: str, good_enough: float = 0) -> float:
    """Instructions of a workload: the least of some rounds, as threads that wait for each other add to it."""
    least = float("inf")
    for _ in range(ROUNDS_MIN):
        steps = Steps()
        with steps.counting():
            least = min(least, asyncio.run(GUARDED[name](steps.now, COUNTED)))
        if least <= good_enough:
            break
    return least


@dataclass
class Cost:
    """The least that the work and the loop took."""

    work: float = float("inf")
    loop: float = float("inf")
    rounds: int = 0

    @property
    def ratio(self) -> float:
        """How many loops the work is worth."""
        return self.work / self.loop

    def measure(self, work: Work) -> None:
        """One round."""
        self.loop = min(self.loop, reference())
        self.work = min(self.work, work())
        self.rounds += 1


def timed(name: str) -> Work:
    """The processor time of a workload."""
    return lambda: asyncio.run(GUARDED[name](time.process_time, 1))


def cost_of(work: Work, good_enough: float) -> Cost:
    """Rounds until the ratio is good enough, or there were many."""
    cost = Cost()
    while cost.rounds < ROUNDS_MIN or (cost.ratio > good_enough and cost.rounds < ROUNDS_MAX):
        cost.measure(work)
    return cost


def kind_of_python() -> str:
    """What a baseline is good for."""
    twin = "compiled" if "penstock._speedups" in sys.modules else "plain"
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}-{twin}"


def baseline(of: str) -> Mapping[str, float]:
    """The ``steps`` or ``times`` that are kept for this Python; nothing when there are none."""
    kept: dict[str, dict[str, dict[str, float]]] = json.loads(BASELINE.read_text())
    return kept.get(kind_of_python(), {}).get(of, {})


def write(*, times: bool) -> None:
    """Keep what is found now."""
    kept = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    mine = kept.setdefault(kind_of_python(), {})
    mine["steps"] = {name: steps_of(name) for name in STEADY}
    if times:
        mine["times"] = {name: round(cost_of(timed(name), 0).ratio, 3) for name in GUARDED}
    BASELINE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def slower(of: str, measure: Callable[[str, float], float]) -> list[str]:
    """The workloads that cost more than the limit allows; each is told."""
    found = []
    for name, kept in baseline(of).items():
        cost = measure(name, kept * LIMIT)
        print(f"{of:6} {name:16} {cost:12,.3f}, kept {kept:12,.3f}: {cost / kept:5.2f} times")
        if cost > kept * LIMIT:
            found.append(name)
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Show the costs; 1 when one of them is a regression."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what is found now")
    parser.add_argument("--time", action="store_true", help="processor time too")
    options = parser.parse_args(given)
    if options.write:
        write(times=options.time)
    found = slower("steps", steps_of)
    if options.time:
        found += slower("times", lambda name, limit: cost_of(timed(name), limit).ratio)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
