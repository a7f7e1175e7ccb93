"""A shop in its rush hour: a slow bank, orders that cannot be paid, pressure, and a SIGKILL in the middle.

Run `make demo` for the whole tour, or `python examples/rush_hour/main.py`. The README beside this file explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import penstock
from penstock import (
    BackpressureState,
    BackpressureStateChanged,
    BreakerOptions,
    Event,
    Retry,
    ScalableMessageBus,
    WalMessageQueue,
    errors,
    topic,
)

FAST = os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1"
ORDERS = 3_000 if FAST else 60_000
PUBLISHERS = 64
LAG_MAX = 500 if FAST else 8_000
"""As many orders may wait for the bank before the pressure is full."""
SHAKY_EVERY, STOLEN_EVERY = 100, 1_000
"""Every hundredth call to the bank fails at first; every thousandth card was stolen."""
SLOW_FROM, SLOW_TO = 0.25, 0.5
"""From the one part of all orders on the bank is slow, until the pressure is critical; to the other at most."""
KILL_AT, KILL_AT_LAST = 0.55, 0.75
"""Between these parts of all orders the shop is killed: as soon as orders wait for the bank."""
AGAIN = Retry(attempts=3, delay=0.01)
MOSTLY_FAILING = BreakerOptions(failures=None, failure_rate=0.5)
"""A few failures among thousands of calls are no reason to leave the bank alone."""
REPORT_SECONDS = 0.1
SECONDS_MAX = 300.0
STEPS = 5
"""How often it is told how far the bank is."""
BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 48

console = Console(highlight=False)


@topic("orders", key="number")
class OrderPlaced(Event):
    number: int
    cents: int


@dataclass(frozen=True)
class Moment:
    """What the shop says about itself, ten times a second and when the pressure changes."""

    published: int
    waiting: int
    """Orders in the log that were not paid yet."""
    paid: int
    letters: int
    level: str
    full: float


# ------------------------------------------------------------------------------- the shop process


class Bank:
    """Keeps what was paid in a file of its own; shaky, slow for a while, and strict about stolen cards."""

    def __init__(self, folder: Path) -> None:
        # Not synced: what is asked here is what a kill of the process takes.
        self._file = sqlite3.connect(folder / "bank.db", isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=OFF")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS paid (number INTEGER PRIMARY KEY, times INTEGER)"
        )
        self.paid = 0
        [(self.paid,)] = self._file.execute("SELECT count(*) FROM paid")
        self._shaken: set[int] = set()
        self.is_slow = False

    async def pay(self, order: OrderPlaced) -> None:
        """Note the order, once however often it comes."""
        if order.number % STOLEN_EVERY == 0:
            raise errors.NonRetryable("the card was stolen")
        if order.number % SHAKY_EVERY == 0 and order.number not in self._shaken:
            self._shaken.add(order.number)
            raise ConnectionError("the bank hung up")
        if self.is_slow:
            await asyncio.sleep(0.002)
        [(times,)] = self._file.execute(
            "INSERT INTO paid VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times",
            (order.number,),
        )
        self.paid += times == 1
        if self.paid == int(SLOW_FROM * ORDERS):
            self.is_slow = True
        elif self.paid == int(SLOW_TO * ORDERS):
            self.is_slow = False

    def notice(self, change: BackpressureStateChanged) -> None:
        """The queue of customers is so long that a second counter opens."""
        if change.current >= BackpressureState.CRITICAL:
            self.is_slow = False


async def missing(folder: Path) -> list[int]:
    """The orders that are not in the log yet."""
    async with WalMessageQueue(folder / "log") as queue:
        await queue.create_topic("orders")
        there = {json.loads(one.value or b"")["number"] async for one in queue.replay("orders")}
    return [number for number in range(ORDERS) if number not in there]


class Till:
    """Publishes orders as fast as the bus lets it: many at once, and each waits for its own fsync."""

    def __init__(self, bus: ScalableMessageBus, numbers: list[int]) -> None:
        self._bus = bus
        self._left = iter(numbers)
        self.published = ORDERS - len(numbers)

    async def publish_all(self) -> None:
        async with asyncio.TaskGroup() as publishers:
            for _ in range(PUBLISHERS):
                publishers.create_task(self._one_after_the_other())

    async def _one_after_the_other(self) -> None:
        for number in self._left:
            await self._keep_trying(OrderPlaced(number, cents=100 + number % 900))
            self.published += 1

    async def _keep_trying(self, order: OrderPlaced) -> None:
        while True:
            try:
                return await self._bus.publish(order)
            except errors.LoadShed as refused:
                await asyncio.sleep(float(str(refused.fields["retry_after"])))


async def shop(folder: Path) -> None:
    """Publish what is missing, pay everything, report; ends when nothing is left to do."""
    numbers = await missing(folder)
    bank = Bank(folder)
    async with penstock.open(f"log:{folder / 'log'}", name="shop", lag_max=LAG_MAX) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(OrderPlaced, bank.pay, group="bank", retry=AGAIN, breaker=MOSTLY_FAILING)
        till = Till(bus, numbers)

        def notice(change: BackpressureStateChanged) -> None:
            bank.notice(change)
            tell(bus, bank, till)

        bus.backpressure.on_backpressure_changed(notice)
        async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as work:
            work.create_task(till.publish_all())
            while not tell(bus, bank, till):  # noqa: ASYNC110 (a report ten times a second)
                await asyncio.sleep(REPORT_SECONDS)


def tell(bus: ScalableMessageBus, bank: Bank, till: Till) -> bool:
    """Report; whether all is done, and the pressure as it was in the beginning."""
    letters = len(bus.dead_letters)
    pressure = bus.backpressure.monitor
    waiting = max(0, till.published - bank.paid - letters)
    level = pressure.level.name
    moment = Moment(till.published, waiting, bank.paid, letters, level, pressure.utilisation)
    print(json.dumps(asdict(moment)), flush=True)
    return int(bank.paid) + letters >= ORDERS and level == "NORMAL"


# ------------------------------------------------------------------------------------ the watcher


class Shop:
    """The process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.moments: list[Moment] = []

    @classmethod
    async def start(cls, folder: Path) -> Shop:
        pipe = asyncio.subprocess.PIPE
        arguments = [__file__, "--shop", str(folder)]
        return cls(await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe))

    async def says(self) -> AsyncIterator[Moment]:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.endswith(b"\n"):
                self.moments.append(Moment(**json.loads(line)))
                yield self.moments[-1]

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        return await self._process.wait()


def say(text: str = "", style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


def is_time_to_kill(now: Moment) -> bool:
    enough = KILL_AT if now.waiting else KILL_AT_LAST
    return now.paid >= enough * ORDERS


class News:
    """Says when the pressure changes, and how far the bank is at every fifth of the way."""

    def __init__(self) -> None:
        self._level = "NORMAL"
        self._steps = 0

    def tell(self, now: Moment) -> None:
        if now.level != self._level:
            self._level = now.level
            say(
                f"  pressure {now.level:8} {now.full:4.0%} full: {now.waiting:,} orders wait for the bank"
            )
        steps = (now.paid + now.letters) * STEPS // ORDERS
        if steps > self._steps:
            self._steps = steps
            say(f"  paid: {now.paid:,} of {ORDERS:,}; dead letters: {now.letters:,}")


async def watch(folder: Path, *, kill: bool) -> tuple[int, list[Moment]]:
    """Run the shop, tell how it goes; kill it in the middle."""
    process = await Shop.start(folder)
    news = News()
    async for now in process.says():
        news.tell(now)
        if kill and is_time_to_kill(now):
            process.kill()
            kill = False
    return await process.wait(), process.moments


def chart(before: list[Moment], after: list[Moment]) -> Table:
    """How full the pressure was, and how many orders waited, over time."""
    grid = Table(title="Over time; | is the SIGKILL", title_justify="left", show_header=False)
    most = max(one.waiting for one in (*before, *after)) or 1
    rows: dict[str, tuple[list[float], list[float], float]] = {
        "pressure": ([one.full for one in before], [one.full for one in after], 1),
        "waiting": ([one.waiting for one in before], [one.waiting for one in after], most),
    }
    step = max(1, -(-(len(before) + len(after)) // WIDTH))
    for name, (first, second, whole) in rows.items():
        line = f"{bars(first, whole, step)}|{bars(second, whole, step)}"
        highest = max(*first, *second)
        grid.add_row(name, line, f"at most {highest:.0%}" if whole == 1 else f"at most {highest:,}")
    return grid


def bars(values: Sequence[float], whole: float, step: int) -> str:
    """A block for every ``step`` values: the highest of them."""
    parts = [values[at : at + step] for at in range(0, len(values), step)]
    return "".join(BLOCKS[min(8, round(8 * max(part) / whole))] for part in parts)


@dataclass(frozen=True)
class Result:
    """What is in the log, at the bank, and among the dead letters, counted from the files."""

    published: int
    paid: int
    again: int
    letters: int

    @property
    def adds_up(self) -> bool:
        return self.published == ORDERS == self.paid + self.letters


async def count(folder: Path) -> Result:
    left = await missing(folder)
    file = sqlite3.connect(folder / "bank.db")
    [(paid, times)] = file.execute("SELECT count(*), coalesce(sum(times), 0) FROM paid")
    file.close()
    async with penstock.open(f"log:{folder / 'log'}", name="shop") as bus:
        letters = {letter.offset for letter in bus.dead_letters.list()}
    return Result(ORDERS - len(left), paid, times - paid, len(letters))


def table(result: Result) -> Table:
    grid = Table(title="What became of the orders", title_justify="left")
    for title in ("published", "paid", "dead letters", "lost", "paid again after the kill"):
        grid.add_column(title, justify="right")
    lost = result.published - result.paid - result.letters
    cells = (result.published, result.paid, result.letters, lost, result.again)
    grid.add_row(*[f"{cell:,}" for cell in cells])
    return grid


def note(facts: str, result: Result, before: list[Moment], after: list[Moment]) -> None:
    """Write what was counted, and how it went, into a file."""
    counted = {"orders": ORDERS, "published": result.published}
    counted |= {"paid": result.paid, "dead_letters": result.letters}
    moments = [*before, *after]
    curves = {
        "pressure": [one.full for one in moments],
        "waiting": [one.waiting for one in moments],
        "killed_at": len(before),
    }
    Path(facts).write_text(json.dumps(counted | curves), encoding="utf-8")


async def story(folder: Path, facts: str | None = None) -> bool:
    """The whole of it; whether the numbers add up."""
    say(
        f"A shop takes {ORDERS:,} orders, {PUBLISHERS} at a time, each synced, and pays them at a bank."
    )
    say("The bank hangs up now and then, refuses stolen cards, and is slow for a while.")
    killed, before = await watch(folder, kill=True)
    say(
        f"  SIGKILL after {before[-1].paid:,} paid orders, {before[-1].waiting:,} in the log and not paid."
    )
    say("  The shop starts again, from the log.")
    ended, after = await watch(folder, kill=False)
    result = await count(folder)
    if facts:
        note(facts, result, before, after)
    say()
    console.print(chart(before, after))
    console.print(table(result))
    rose = any(one.level != "NORMAL" for one in (*before, *after))
    fell = after[-1].level == "NORMAL"
    well = result.adds_up and (killed, ended) == (-9, 0) and rose and fell
    say(
        f"{'PASS' if well else 'FAIL'}: {result.published:,} published = {result.paid:,} paid + "
        f"{result.letters:,} dead letters; the pressure "
        f"{'rose' if rose else 'DID NOT RISE'} and {'fell' if fell else 'DID NOT FALL'}",
        style="bold green" if well else "bold red",
    )
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="rush_hour")
    parser.add_argument("--shop", help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="keep everything in this folder")
    parser.add_argument("--facts", help="write the numbers into this file, as JSON")
    options = parser.parse_args()
    if options.shop:
        asyncio.run(shop(Path(options.shop)))
        return 0
    if options.keep:
        folder = Path(options.keep)
        if (folder / "bank.db").exists():
            parser.error(f"{folder} has a shop in it already: name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        well = asyncio.run(story(folder, options.facts))
        say(f"Look at it: penstock dashboard --url log:{folder / 'log'}")
        return 0 if well else 1
    with tempfile.TemporaryDirectory(prefix="penstock-rush-hour-") as made:
        return 0 if asyncio.run(story(Path(made), options.facts)) else 1


if __name__ == "__main__":
    sys.exit(main())
