"""The machine around the log: limits, rights, forks, clocks, other processes."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import PenstockError, StoreFailed, SubscriberBusy
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import Retention, TopicConfig
from penstock.system import OsClock, System
from tests.crash.disks import Disk, need
from tests.crash.rigs import environment

PROGRAMS = Path(__file__).parent / "programs.py"


@contextmanager
def running(program: str, path: Path, *prefix: str) -> Iterator[subprocess.Popen[str]]:
    """A program of programs.py; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [*prefix, sys.executable, "-W", "error", str(PROGRAMS), program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output_of(program: str, path: Path, *prefix: str) -> list[str]:
    with running(program, path, *prefix) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output.splitlines()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def fill(path: Path, count: int = 10) -> None:
    async with WalMessageQueue(path) as queue:
        for number in range(count):
            await queue.publish("orders", b"%d" % number)


# ---------------------------------------------------------------------------------------- limits


def test_too_few_descriptors_are_a_typed_error_and_nothing_is_lost(tmp_path):
    lines = output_of("exhaust_descriptors", tmp_path)
    errors = {line for line in lines if line.startswith("error ")}
    counts = dict(line.split() for line in lines if not line.startswith("error "))
    assert int(counts["refused"]) > 0
    assert errors == {"error StoreFailed 24"}, errors
    assert int(counts["found"]) >= int(counts["acknowledged"]) > 0


def test_open_and_close_leak_no_descriptor(tmp_path):
    counts = [int(line) for line in output_of("leak", tmp_path)]
    assert len(counts) == 30
    assert counts[-1] <= counts[2], counts


# ---------------------------------------------------------------------------------------- rights


async def test_a_read_only_file_system_refuses_writing_and_can_be_read(tmp_path):
    with Disk(tmp_path) as disk:
        await fill(disk.root / "log")
        disk.remount("loop,ro")
        lines = output_of("read_only", disk.root / "log")
        assert lines[0].startswith("StoreFailed: ")
        assert "Read-only file system" in lines[0]
        assert lines[1] == "read 10"
        assert lines[2].startswith("UsageError: ")
        # Nothing was half made: the log opens and goes on when it may be written again.
        disk.remount("loop")
        async with WalMessageQueue(disk.root / "log") as queue:
            assert (await queue.publish("orders", b"more")).offset == 10


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids="{:03o}".format)
async def test_files_are_for_the_owner_alone_whatever_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        async with WalMessageQueue(tmp_path / "new" / "log") as queue:
            await queue.create_topic("orders", TopicConfig(segment_bytes_max=256))
            await queue.publish_many("orders", [b"value"] * 10)
            async with queue.subscribe("orders", "billing") as subscription:
                await subscription.commit(await anext(aiter(subscription)))
            await queue.publish_many("orders", [b"value"] * 10)
    finally:
        os.umask(before)
    found = list((tmp_path / "new").rglob("*"))
    assert len(found) > 8
    for path in [tmp_path / "new", *found]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} is {mode:o}"


@pytest.mark.parametrize("name", ["0/00000000000000000000.log", "0/head", "topic.json"])
async def test_a_link_in_the_place_of_a_file_is_refused(tmp_path, name):
    await fill(tmp_path / "log")
    target = tmp_path / "elsewhere"
    file = tmp_path / "log" / "topics" / "orders" / name
    file.rename(target)
    before = target.read_bytes()
    file.symlink_to(target)
    async with WalMessageQueue(tmp_path / "log") as queue:
        with pytest.raises(PenstockError):
            await queue.publish("orders", b"more")
    assert target.read_bytes() == before


async def test_a_link_in_the_place_of_an_offset_file_is_refused(tmp_path):
    await fill(tmp_path / "log")
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            await subscription.commit(await anext(aiter(subscription)))
        (file,) = (tmp_path / "log").rglob("*.offset")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("orders")
        with pytest.raises(StoreFailed):
            await queue.subscribe("orders", "billing").open()


# --------------------------------------------------------------------------------- other processes


async def test_a_subscriber_name_is_held_by_one_process_and_free_when_it_dies(tmp_path):
    await fill(tmp_path)
    with running("subscribe", tmp_path) as first:
        assert line_of(first) == "subscribed"
        assert output_of("subscribe", tmp_path) == ["SubscriberBusy"]
        async with WalMessageQueue(tmp_path) as queue:
            await queue.create_topic("orders")
            with pytest.raises(SubscriberBusy, match="billing"):
                await queue.subscribe("orders", "billing").open()
        first.kill()
        first.wait(120)
        async with WalMessageQueue(tmp_path) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert (await anext(aiter(subscription))).offset == 0


async def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    lines = output_of("fork_after_open", tmp_path)
    child = [line.split() for line in lines if line.startswith("child")]
    assert len(child) == 7
    assert {outcome for *_, outcome in child} == {"Forked"}, lines
    assert lines[-2:] == ["parent 1", "parent read 0"]
    async with WalMessageQueue(tmp_path) as queue:
        assert [record.value async for record in queue.replay("orders")] == [b"before", b"after"]


async def test_a_child_that_lives_on_holds_no_lock_of_its_dead_parent(tmp_path):
    with running("die_with_a_child", tmp_path) as parent:
        assert line_of(parent) == "forked"
        parent.wait(120)
        async with WalMessageQueue(tmp_path) as queue:
            await queue.publish("orders", b"free")
            async with queue.subscribe("orders", "billing") as subscription:
                assert (await anext(aiter(subscription))).value == b"free"


# ----------------------------------------------------------------------------------------- clocks


class JumpingClock(OsClock):
    """A wall clock that is off by so much."""

    shift_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.shift_ms


async def test_a_clock_that_goes_back_leaves_order_and_retention_alone(tmp_path):
    clock = JumpingClock()
    system = System(clock=clock)
    hour = 3_600_000
    retention = Retention(age_ms_max=24 * hour)
    config = TopicConfig(segment_bytes_max=256, retention=retention)
    async with WalMessageQueue(tmp_path, system=system) as queue:
        await queue.create_topic("orders", config)
        for shift in [0, -hour, -24 * 365 * hour, 5, 0, -1, 3 * hour, 0]:
            clock.shift_ms = shift
            await queue.publish_many("orders", [b"%d" % shift] * 3)
        records = [record async for record in queue.replay("orders")]
    times = [record.timestamp for record in records]
    assert times == sorted(times), "time goes back"
    assert [record.offset for record in records] == list(range(24))
    clock.shift_ms = -24 * 365 * hour
    async with WalMessageQueue(tmp_path, system=system) as queue:
        await queue.create_topic("orders")
        assert all(report.clean for report in await queue.recovery("orders"))
        assert (await queue.publish("orders", b"more")).offset == 24
        assert len([record async for record in queue.replay("orders")]) == 25


def test_a_process_whose_clock_is_years_behind_appends_in_order(tmp_path):
    faketime = need("faketime", "faketime")
    output_of("publish_now", tmp_path)
    (line,) = output_of("publish_now", tmp_path, faketime, "-f", "-5y")
    first, second = map(int, line.split())
    assert second >= first
