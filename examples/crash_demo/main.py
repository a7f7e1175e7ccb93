"""Kill a writer with SIGKILL, again and again, and count: nothing acknowledged is lost.

Run `make demo` for the whole tour, or `python examples/crash_demo/main.py`. The README beside this file explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import RecoveryReport, WalMessageQueue

TOPIC = "orders"
SUBSCRIBER = "billing"
RECORD_BYTES = 100
FAST = os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1"
RECORDS = 6_000 if FAST else 300_000
BATCH = 200
KILLS = 2 if FAST else 3
REPORT = struct.Struct("<Q")  # what a child tells its parent: one number

console = Console(highlight=False)


def record(number: int) -> bytes:
    """Record `number`: 100 bytes that no other number has."""
    return (b"%020d" % (number * 2_654_435_761)) * 5


# ------------------------------------------------------------------------- the child processes


async def write(directory: str, first: int, end: int) -> None:
    """Publish the records first … end - 1 and report after each acknowledgement."""
    report(first)
    async with WalMessageQueue(directory) as queue:
        for start in range(first, end, BATCH):
            stop = min(start + BATCH, end)
            await queue.publish_many(TOPIC, [record(number) for number in range(start, stop)])
            report(stop)  # the records below `stop` are acknowledged: the fsync is done


async def write_until_killed(directory: str, first: int, end: int) -> None:
    """The same, but never come to an end by itself."""
    await write(directory, first, end)
    await asyncio.Event().wait()


async def consume(directory: str, first: int, end: int) -> None:
    """Consume from `first`, commit up to `end`, take one more batch, and wait for the end."""
    async with WalMessageQueue(directory) as queue:
        await queue.create_topic(TOPIC)
        async with queue.subscribe(TOPIC, SUBSCRIBER, start=first) as subscription:
            async for batch in subscription.batches(BATCH):
                if batch.records[0].offset >= end:
                    report(batch.next_offset)  # delivered, not committed
                    await asyncio.Event().wait()
                await subscription.commit(batch)
                report(batch.next_offset)


def report(number: int) -> None:
    """Tell the parent; so few bytes are one whole write into the pipe or none."""
    os.write(sys.stdout.fileno(), REPORT.pack(number))


class Child:
    """A process of ours that reports numbers, and that can be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, role: str, directory: str, first: int, end: int) -> Child:
        arguments = [__file__, role, directory, str(first), str(end)]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def reports(self) -> AsyncIterator[int]:
        """What it reports, to its end: a pipe keeps what was written before the kill."""
        assert self._process.stdout is not None
        while len(data := await self._process.stdout.read(REPORT.size)) == REPORT.size:
            yield REPORT.unpack(data)[0]

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Wait for it; its exit code, -9 when it was killed."""
        return await self._process.wait()


# ------------------------------------------------------------------------------- showing it


Show = Callable[[int], None]


@contextmanager
def progress(what: str, total: int, begin: int) -> Iterator[Show]:
    """A progress bar; a line for every fifth of the way where there is no terminal."""
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total, completed=begin)
            yield lambda count: bar.update(task, completed=count)
        return
    shown = begin * 5 // total

    def line(count: int) -> None:
        nonlocal shown
        if count * 5 // total > shown:
            shown = count * 5 // total
            say(f"  {what}: {count:,} of {total:,}")

    yield line


def say(text: str = "", style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True, markup=False)


def describe(found: RecoveryReport) -> str:
    cut = f"cut {found.bytes_cut:,} torn bytes" if found.bytes_cut else "nothing was torn"
    return f"checked {found.bytes_checked:,} bytes behind the last durable mark, {cut}"


# --------------------------------------------------------------------------------- the story


class Life(NamedTuple):
    """One writer process, from its start to its end."""

    end: str
    first: int
    acknowledged: int  # records below this number were acknowledged
    found: int  # records below this number were found afterwards
    wrong: int  # acknowledged records that were lost, moved or changed
    twice: int
    torn: int
    cut: int


async def live(directory: str, first: int, total: int, kill_at: int | None) -> tuple[str, int]:
    """Run a writer, kill it when `kill_at` is acknowledged; how it ended, and what it got to."""
    role = "write" if kill_at is None else "write-until-killed"
    child = await Child.start(role, directory, first, total)
    say(f"Writer {child.pid} starts at record {first:,}.")
    acknowledged = first
    with progress("acknowledged", total, first) as show:
        async for acknowledged in child.reports():
            show(acknowledged)
            if kill_at is not None and acknowledged >= kill_at:
                child.kill()
                kill_at = None
    code = await child.wait()
    end = {0: "finished", -9: "SIGKILL"}.get(code, f"exit code {code}")
    say(f"  {end} after {acknowledged - first:,} acknowledged records.")
    return end, acknowledged


def tear(directory: str) -> int:
    """Add half an entry to the end of the log, as a write that a power cut stops would."""
    folder = Path(directory, "topics", TOPIC, "0")
    newest = max(folder.glob("*.log"))
    half = newest.read_bytes()[: random.randrange(100, 2_000)]
    with newest.open("ab") as file:
        file.write(half)
    say(f"  Half an entry is added to {newest.name}: {len(half):,} bytes, as a torn write leaves.")
    return len(half)


async def reopen(directory: str) -> tuple[RecoveryReport, int, int, int]:
    """Open the log again and read it: the report, and how many records are found, wrong, twice."""
    async with WalMessageQueue(directory) as queue:
        [found] = await queue.recovery(TOPIC)
        seen: set[bytes] = set()
        count = wrong = 0
        async for one in queue.replay(TOPIC):
            wrong += one.offset != count or one.value != record(count)
            seen.add(one.value or b"")
            count += 1
    return found, count, wrong, count - len(seen)


async def lives(directory: str, total: int, kills: int) -> AsyncIterator[Life]:
    """Writers one after the other; each but the last is killed on its way."""
    first = 0
    for number in range(kills + 1):
        last = number == kills
        share = (number + random.uniform(0.5, 0.9)) / (kills + 1)
        kill_at = None if last else int(share * total)
        end, acknowledged = await live(directory, first, total, kill_at)
        torn = 0 if last else tear(directory)
        recovery, count, wrong, twice = await reopen(directory)
        say(f"  Opened again: {describe(recovery)}.")
        say(f"  {count:,} records are there; the first {acknowledged:,} were acknowledged.")
        lost = max(0, acknowledged - count) + wrong
        yield Life(end, first, acknowledged, count, lost, twice, torn, recovery.bytes_cut)
        first = count


async def subscriber_dies(directory: str, stop: int) -> int:
    """Let a subscriber commit about `stop` records and kill it in its next batch."""
    child = await Child.start("consume", directory, 0, stop)
    say(f"Subscriber {SUBSCRIBER!r}, process {child.pid}, starts to consume.")
    committed = delivered = 0
    async for number in child.reports():
        committed, delivered = delivered, number
        if committed >= stop:
            child.kill()
    await child.wait()
    say(
        f"  SIGKILL: it had committed {committed:,} records, "
        f"and had {delivered - committed:,} more in its hands."
    )
    return committed


async def subscriber_returns(directory: str, total: int) -> tuple[int, int]:
    """Subscribe again under the same name: where it starts, and how many records come."""
    first, count = -1, 0
    async with WalMessageQueue(directory) as queue:
        await queue.create_topic(TOPIC)
        async with queue.subscribe(TOPIC, SUBSCRIBER) as subscription:
            async for batch in subscription.batches():
                first = batch.records[0].offset if first < 0 else first
                count += len(batch)
                await subscription.commit(batch)
                if batch.next_offset >= total:
                    break
    return first, count


def table(all_lives: list[Life]) -> Table:
    """What each writer got acknowledged and what was found: each row adds up, and so does all."""
    grid = Table(title="What is left", title_justify="left")
    for name in ("writer", "end", "acknowledged", "in flight, found", "found", "lost", "twice"):
        grid.add_column(name, justify="left" if name in {"writer", "end"} else "right")
    for number, life in enumerate(all_lives, 1):
        in_flight = life.found - life.acknowledged
        cells = [life.acknowledged - life.first, in_flight, life.found - life.first]
        cells += [life.wrong, life.twice]
        grid.add_row(str(number), life.end, *[f"{cell:,}" for cell in cells])
    grid.add_section()
    grid.add_row("all", "", *[f"{cell:,}" for cell in totals(all_lives)])
    return grid


def totals(all_lives: list[Life]) -> tuple[int, int, int, int, int]:
    acknowledged = sum(life.acknowledged - life.first for life in all_lives)
    found = all_lives[-1].found
    wrong = max(life.wrong for life in all_lives)
    return acknowledged, found - acknowledged, found, wrong, max(life.twice for life in all_lives)


def note(facts: str, numbers: dict[str, int]) -> None:
    """Write what was counted into a file."""
    Path(facts).write_text(json.dumps(numbers), encoding="utf-8")


async def tell(directory: str, total: int, kills: int, facts: str | None) -> bool:
    """The whole story, its numbers into the file ``facts``; whether it ended well."""
    say(f"Penstock: {total:,} records of {RECORD_BYTES} bytes into {directory}, {BATCH} in a call.")
    say("A call returns after the fsync that covers its records; the writer then reports them.")
    say()
    all_lives, committed = [], 0
    async for life in lives(directory, total, kills):
        all_lives.append(life)
        if len(all_lives) == 1:
            committed = await subscriber_dies(directory, life.found // 2 // BATCH * BATCH)
        say()
    first, count = await subscriber_returns(directory, total)
    say(f"Subscriber {SUBSCRIBER!r} returns: it goes on at {first:,} and reads {count:,} more.")
    say(f"  {committed:,} committed before the kill + {count:,} = {committed + count:,}.")
    say()
    console.print(table(all_lives))
    acknowledged, in_flight, found, lost, twice = totals(all_lives)
    if facts:
        numbers = {"published": total, "found": found, "wrong": lost + twice}
        note(facts, numbers | {"committed": committed, "read_after_the_kill": count})
    ends = [life.end for life in all_lives]
    well = (
        (found, lost, twice) == (total, 0, 0)
        and (first, committed + count) == (committed, total)
        and ends == ["SIGKILL"] * kills + ["finished"]
        and all(life.cut >= life.torn and life.found >= life.acknowledged for life in all_lives)
    )
    more = f" ({in_flight:,} more were in flight at a kill)" if in_flight else ""
    say(
        f"{'PASS' if well else 'FAIL'}: {acknowledged:,} acknowledged, {found:,} found{more}, "
        f"{lost:,} lost, {twice:,} twice",
        style="bold green" if well else "bold red",
    )
    return well


def main() -> int:
    """Run the demo, or one of its children."""
    roles = {"write": write, "write-until-killed": write_until_killed, "consume": consume}
    if sys.argv[1:2] and sys.argv[1] in roles:
        role, directory, first, end = sys.argv[1:]
        asyncio.run(roles[role](directory, int(first), int(end)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, prog="crash_demo")
    parser.add_argument("--records", type=int, default=RECORDS, help="how many (%(default)s)")
    parser.add_argument("--kills", type=int, default=KILLS, help="how often (%(default)s)")
    parser.add_argument("--facts", help="write the numbers into this file, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        well = asyncio.run(tell(directory, options.records, options.kills, options.facts))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
