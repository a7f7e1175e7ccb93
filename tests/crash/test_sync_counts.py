"""When the log syncs: an acknowledgement never says more than is true."""

import asyncio
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from penstock.log.queue import WalMessageQueue
from penstock.log.topic import FsyncPolicy, TopicConfig
from penstock.stores.directory import DirectoryStore
from penstock.system import Buffer, OsFiles, System
from penstock.testing.clock import VirtualClock
from penstock.testing.worker import SimulatedSystem, simulated_system
from tests.crash.disks import need
from tests.crash.rigs import run_under_strace, seed_of
from tests.crash.said import Kind, Spec


@dataclass
class SegmentState:
    """How far a segment was written, and how much of that a finished sync covers."""

    written: int = 0
    durable: int = 0


class WatchedFiles(OsFiles):
    """Notes of each file how far it was written and how far a finished sync covers it."""

    def __init__(self) -> None:
        self.states: dict[str, SegmentState] = {}
        self.syncs = 0
        self._lock = threading.Lock()

    def _state(self, descriptor: int) -> SegmentState:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        with self._lock:
            return self.states.setdefault(path, SegmentState())

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        super().write(descriptor, buffers, position)
        state = self._state(descriptor)
        state.written = max(state.written, position + sum(map(len, buffers)))

    def sync(self, descriptor: int) -> None:
        state = self._state(descriptor)
        covered = state.written
        super().sync(descriptor)
        state.durable = max(state.durable, covered)
        if self._is_segment(descriptor):
            self.syncs += 1

    def _is_segment(self, descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log")

    @property
    def segments(self) -> list[SegmentState]:
        return [state for path, state in self.states.items() if path.endswith(".log")]

    @property
    def unsynced(self) -> int:
        return sum(state.written - state.durable for state in self.segments)


@pytest.mark.acceptance(53)
async def test_every_message_is_acknowledged_after_the_sync_that_covers_it(tmp_path):
    files = WatchedFiles()
    async with WalMessageQueue(tmp_path, system=System(files=files)) as queue:
        await queue.create_topic("orders", TopicConfig(segment_bytes_max=2_000))
        before = files.syncs
        for number in range(50):
            acknowledged = await queue.publish("orders", b"%d" % number * 20)
            assert acknowledged.durable
            assert files.unsynced == 0
            assert queue.durable_offset("orders") == number + 1
        # One for each acknowledgement, and one for each segment that was sealed.
        rolls = len(files.segments) - 1
        assert files.syncs - before == 50 + rolls


@pytest.mark.acceptance(53)
async def test_publishers_share_a_sync(tmp_path):
    files = WatchedFiles()
    wrong = []
    async with WalMessageQueue(tmp_path, system=System(files=files)) as queue:
        await queue.create_topic("orders")

        async def publish(number: int) -> None:
            acknowledged = await queue.publish("orders", b"%d" % number)
            if not acknowledged.offset < queue.durable_offset("orders"):
                wrong.append(acknowledged)

        await asyncio.gather(*map(publish, range(500)))
        assert not wrong
        assert files.unsynced == 0
        assert files.syncs < 50


@pytest.mark.acceptance(53)
def test_strace_sees_the_sync_before_the_acknowledgement(tmp_path):
    """No layer of ours in between: the system calls themselves, in their order."""
    need("strace", "strace")
    config = {"fsync": "every_message"}
    spec = Spec(str(tmp_path / "log"), "orders", 1, 1, config=config, steps=20, simple=True)
    trace = tmp_path / "trace"
    calls = "trace=fdatasync,pwritev,pwritev2,pwrite64,write"
    child, code = run_under_strace(spec, ["-y", "-e", calls], trace)
    assert code == 0
    assert len(child.said(Kind.ACKNOWLEDGED)) == 20
    dirty = False
    acknowledged = writes = 0
    for line in trace.read_text().splitlines():
        if "pwrite" in line and ".log>" in line:
            dirty = True
            writes += 1
        elif "fdatasync(" in line and ".log>" in line:
            dirty = False
        elif " write(1<" in line and f'"\\{Kind.ACKNOWLEDGED:o}\\1' in line:
            acknowledged += 1
            assert not dirty, line
    assert acknowledged == 20
    assert writes >= 20


@pytest.mark.acceptance(54)
async def test_every_n_messages_syncs_at_least_each_hundred_and_tells_how_far(tmp_path):
    files = WatchedFiles()
    config = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES)
    assert config.fsync_messages == 100
    async with WalMessageQueue(tmp_path, system=System(files=files)) as queue:
        await queue.create_topic("orders", config)
        before = files.syncs
        behind = []
        for number in range(1_000):
            acknowledged = await queue.publish("orders", b"%d" % number)
            durable = queue.durable_offset("orders")
            behind.append(number + 1 - durable)
            # What says that it is durable is, and what is below the durable offset.
            assert acknowledged.durable == (number < durable) or not acknowledged.durable
            if durable == number + 1:
                assert files.unsynced == 0
        assert max(behind) == 99
        assert files.syncs - before >= 10
        assert (await queue.publish("orders", b"now", durable=True)).durable
        assert files.unsynced == 0


# ------------------------------------------------------------------------------- virtual time


def queue_on(system: SimulatedSystem) -> WalMessageQueue:
    return WalMessageQueue(DirectoryStore("/data/log", system=system), system=system)


async def settle(system: SimulatedSystem) -> None:
    """Let the loop hear what the worker did."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.acceptance(55)
async def test_timed_makes_everything_durable_within_a_second_of_idleness():
    system = simulated_system()
    config = TopicConfig(fsync=FsyncPolicy.TIMED)
    assert config.fsync_interval_ms == 1_000
    async with queue_on(system) as queue:
        await queue.create_topic("orders", config)
        for number in range(10):
            assert not (await queue.publish("orders", b"%d" % number)).durable
        assert queue.durable_offset("orders") == 0
        system.clock.advance(0.999)
        await settle(system)
        assert queue.durable_offset("orders") == 0
        system.clock.advance(0.001)
        await settle(system)
        assert queue.durable_offset("orders") == 10


@pytest.mark.acceptance(55)
@pytest.mark.parametrize("interval_ms", [1_000, 50])
async def test_timed_loses_at_most_one_interval_in_a_power_cut(request, interval_ms):
    chance = random.Random(seed_of(request))
    system = simulated_system(chance.getrandbits(32))
    config = TopicConfig(
        fsync=FsyncPolicy.TIMED, fsync_interval_ms=interval_ms, segment_bytes_max=2_000
    )
    published: list[float] = []
    states = 0
    longest = 0.0
    async with queue_on(system) as queue:
        await queue.create_topic("orders", config)
        for _ in range(300):
            await queue.publish("orders", b"%d" % len(published) + bytes(50))
            published.append(system.clock.monotonic())
            system.clock.advance(chance.uniform(0, interval_ms / 5_000))
            if chance.random() > 0.07:
                continue
            for disk in system.files.crash_states(limit=8, random=chance):
                states += 1
                found = await count_after(disk, system.clock)
                if found < len(published):
                    window = system.clock.monotonic() - published[found]
                    longest = max(longest, window)
                    assert window <= interval_ms / 1000
    print(f"{request.node.name}: {states} power cuts, longest window {longest:.3f} s")
    assert longest > 0, "nothing was ever lost: the test sees nothing"


async def count_after(disk, clock: VirtualClock) -> int:
    """How many records are there after a power cut; each must be the one that was published."""
    system = simulated_system(disk=disk, clock=VirtualClock(clock.time_ms()))
    async with queue_on(system) as queue:
        values = [record.value async for record in queue.replay("orders")]
    assert values == [b"%d" % number + bytes(50) for number in range(len(values))]
    return len(values)
