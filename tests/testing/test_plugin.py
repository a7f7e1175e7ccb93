"""The pytest plugin, as a user's project sees it, and the tools that come with it."""

import asyncio
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from penstock.errors import InvalidOption, UsageError
from penstock.messages import Event
from penstock.resilience.bus import ResilientMessageBus
from penstock.testing import (
    VirtualClock,
    assert_published,
    crash_before_commit,
    duplicate,
    fail_every,
    record,
    settle,
    slow,
)


class Ordered(Event):
    number: int = 0


class Shipped(Event):
    number: int = 0


# The fixtures


async def test_bus(bus, tmp_path):
    seen: list[Any] = []
    bus.subscribe(Ordered, seen.append)
    assert (await bus.publish_and_wait(Ordered(1))).handled == 1
    assert seen == [Ordered(1)]
    assert (tmp_path / "penstock").exists()


async def test_memory_bus_on_virtual_time(memory_bus, virtual_clock, tmp_path):
    seen: list[Any] = []
    memory_bus.subscribe(Ordered, slow(3_600, virtual_clock)(seen.append))
    await memory_bus.publish(Ordered(1))
    await settle(memory_bus, virtual_clock)
    assert seen == [Ordered(1)]
    assert virtual_clock.monotonic() == 3_600
    assert list(tmp_path.iterdir()) == []


async def test_bus_on_virtual_time(bus, virtual_clock, bus_errors):
    moments: list[float] = []

    @bus.on(Ordered)
    async def fail_twice(event):
        moments.append(virtual_clock.monotonic())
        if len(moments) < 3:
            raise LookupError

    bus_errors.expect(LookupError)
    await bus.publish(Ordered(1))
    await settle(bus, virtual_clock, patience=0.01)
    assert len(moments) == 3
    assert moments == sorted(moments)
    assert_published(bus, Ordered, count=1)


async def test_errors_that_are_expected(memory_bus, virtual_clock, bus_errors):
    @memory_bus.on(Ordered)
    def fail(event):
        raise LookupError(event.number)

    bus_errors.expect(LookupError)
    await memory_bus.publish(Ordered(1))
    await settle(memory_bus, virtual_clock)
    assert {one.error.args for one in bus_errors.seen} == {(1,)}


@pytest.mark.bus_errors_expected
async def test_errors_that_a_marker_expects(memory_bus, virtual_clock):
    memory_bus.subscribe(Ordered, fail_every(1, LookupError)(print))
    await memory_bus.publish(Ordered(1))
    await settle(memory_bus, virtual_clock)


# What was published


async def test_assert_published(memory_bus):
    await memory_bus.publish(Ordered(1))
    memory_bus.publish_nowait(Ordered(2))
    await memory_bus.publish_and_wait(Shipped(3))
    assert assert_published(memory_bus, Ordered) == [Ordered(1), Ordered(2)]
    assert assert_published(memory_bus, Ordered, count=1, where=lambda one: one.number == 2)
    assert len(assert_published(memory_bus, Event, count=3)) == 3
    with pytest.raises(AssertionError, match=r"2 × Ordered, not 3.*\n.*Ordered\(number=1\)"):
        assert_published(memory_bus, Ordered, count=3)
    with pytest.raises(AssertionError, match="not at least one"):
        assert_published(memory_bus, Shipped, where=lambda one: one.number == 4)


async def test_assert_published_needs_a_recording():
    async with ResilientMessageBus() as bus:
        with pytest.raises(UsageError, match="record"):
            assert_published(bus, Ordered)
        assert record(bus) is record(bus)
        await bus.publish(Ordered())
        assert_published(bus, Ordered, count=1)


# Faults


@pytest.mark.bus_errors_expected
async def test_fail_every(memory_bus, virtual_clock):
    fault = fail_every(3)
    seen: list[Any] = []
    memory_bus.subscribe(Ordered, fault(seen.append), retry=None)
    for number in range(9):
        await memory_bus.publish(Ordered(number))
    await settle(memory_bus, virtual_clock)
    assert [one.number for one in seen] == [0, 1, 3, 4, 6, 7]
    assert (fault.calls, fault.injected) == (9, 3)
    with pytest.raises(InvalidOption):
        fail_every(0)


async def test_a_fault_as_middleware(memory_bus):
    seen: list[Any] = []
    memory_bus.subscribe(Ordered, lambda event, envelope: seen.append((event, envelope.id)))
    fault = fail_every(2)
    memory_bus.use(fault.middleware)
    await memory_bus.publish(Ordered(1))
    await memory_bus.settle()
    assert not (await memory_bus.publish_and_wait(Ordered(2))).success
    assert len(seen) == 1


@pytest.mark.bus_errors_expected
async def test_crash_before_commit(memory_bus, virtual_clock):
    seen: list[Any] = []
    memory_bus.subscribe(Ordered, crash_before_commit()(seen.append))
    await memory_bus.publish(Ordered(1))
    await settle(memory_bus, virtual_clock)
    assert seen == [Ordered(1), Ordered(1)]
    assert memory_bus.statistics().events_processed == 1


async def test_duplicate_keeps_the_arguments_of_a_handler(memory_bus):
    seen: list[Any] = []

    @memory_bus.on(Ordered)
    @duplicate()
    async def handle(event, envelope):
        seen.append(envelope.id)

    await memory_bus.publish_and_wait(Ordered())
    assert len(seen) == 2
    assert len(set(seen)) == 1


# The clock


async def test_run_until_lets_time_pass_only_when_nothing_else_happens():
    clock = VirtualClock()
    moments: list[float] = []

    async def work():
        for _ in range(3):
            done = asyncio.Event()
            clock.call_after(10, done.set)
            for _ in range(100):
                await asyncio.sleep(0)
                assert not done.is_set()
            await done.wait()
            moments.append(clock.monotonic())
        return "done"

    assert await clock.run_until(work()) == "done"
    assert moments == [10, 20, 30]


async def test_run_until_waits_for_threads_when_there_is_no_timer():
    clock = VirtualClock()
    assert await clock.run_until(asyncio.to_thread(sum, [1, 2])) == 3
    assert clock.monotonic() == 0


async def test_run_until_cancelled_cancels():
    clock = VirtualClock()
    inner = asyncio.ensure_future(asyncio.Event().wait())
    outer = asyncio.ensure_future(clock.run_until(inner))
    await asyncio.sleep(0)
    outer.cancel()
    await asyncio.wait([inner, outer])
    assert inner.cancelled()


async def test_two_may_run_until():
    clock = VirtualClock()

    async def wait(seconds):
        done = asyncio.Event()
        clock.call_after(seconds, done.set)
        await done.wait()
        return clock.monotonic()

    both = await asyncio.gather(clock.run_until(wait(1)), clock.run_until(wait(5)))
    assert list(both) == [1, 5]


# In a project of somebody else

PROJECT = """
import pytest
from penstock.messages import Event


class Paid(Event):
    pass


def fail(event):
    raise LookupError("no such account")


@pytest.mark.asyncio
async def test_fails_at_the_end(memory_bus):
    memory_bus.subscribe(Paid, fail, retry=None)
    await memory_bus.publish_and_wait(Paid())


@pytest.mark.asyncio
@pytest.mark.bus_errors_expected
async def test_passes(memory_bus):
    memory_bus.subscribe(Paid, fail, retry=None)
    await memory_bus.publish_and_wait(Paid())

"""


PLAIN = """
def test_sync():
    pass
"""


def run_pytest(tmp_path, project, *options):
    (tmp_path / "test_project.py").write_text(textwrap.dedent(project))
    (tmp_path / "conftest.py").write_text(
        "from importlib.metadata import entry_points\n"
        "if not any('penstock' in one.value for one in entry_points(group='pytest11')):\n"
        "    pytest_plugins = ['penstock.testing.plugin']\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:xdist", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_errors_of_handlers_fail_the_test_that_does_not_expect_them(tmp_path):
    finished = run_pytest(tmp_path, PROJECT)
    assert "2 passed, 1 error" in finished.stdout, finished.stdout
    assert "no such account" in finished.stdout
    assert "raised by test_project.fail" in finished.stdout


def test_a_project_without_pytest_asyncio_is_not_disturbed(tmp_path):
    finished = run_pytest(tmp_path, PLAIN, "-p", "no:asyncio")
    assert "1 passed" in finished.stdout, finished.stdout + finished.stderr
