"""Offsets in a store of their own: whole objects, locks elsewhere, and everybody who reads them."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from penstock import Retention, TopicConfig, WalMessageQueue
from penstock.errors import (
    Closed,
    DamagedFile,
    KeyNotFound,
    NotSupported,
    StoreFailed,
    SubscriberBusy,
)
from penstock.log.compaction import Compactor
from penstock.log.names import topic_key
from penstock.log.offsets import OffsetFile
from penstock.log.repair import repair
from penstock.log.retention import find_needs, retain
from penstock.log.slots import SLOT_BYTES, SlottedFile
from penstock.log.verify import verify
from penstock.stores import MemoryStore, ObjectStore, open_store
from penstock.testing.queue_fixtures import numbered, values_of
from penstock.testing.worker import simulated_system
from tests.log.small_log import HOUR_MS, KEYS, TOPIC, SmallLog, keep_for_ever, log_key
from tests.log.strategies import flip

KEY = "groups/billing/orders-0.offset"
SMALL = TopicConfig(segment_bytes_max=300, retention=Retention(bytes_max=1))
NOWHERE = "s3://bucket?endpoint=http://127.0.0.1:1&region=x"

pytestmark = pytest.mark.acceptance(19, 45)


@pytest.fixture(params=["s3", "objects", "memory", "sqlite"])
def offsets(request, tmp_path, unique):
    """The stores that need nothing but whole values, and some that can do more."""
    make = {
        "s3": lambda: ObjectStore(request.getfixturevalue("s3_url"), prefix=unique),
        "objects": lambda: ObjectStore(f"file://{tmp_path}/offsets"),
        "memory": MemoryStore,
        "sqlite": lambda: open_store(f"sqlite:{tmp_path}/offsets.db"),
    }
    with make[request.param]() as store:
        yield store


@pytest.fixture
def objects():
    with ObjectStore("memory:///") as store:
        yield store


def damage(store, *slots):
    """One bit of each of these slots."""
    content = store.read(KEY)
    for slot in slots:
        content = flip(content, (slot * SLOT_BYTES + 20) * 8)
    store.write(KEY, content)


# -------------------------------------------------------------------------------------- the file


def test_committing_nine_and_then_three_leaves_nine(offsets):
    own = MemoryStore()
    assert OffsetFile(own, "billing", TOPIC, 0, offsets).commit(9, 1_000) == 9
    assert OffsetFile(own, "billing", TOPIC, 0, offsets).commit(3, 2_000) == 9
    assert OffsetFile(own, "billing", TOPIC, 0, offsets).read() == (9, 1_000, 0)
    OffsetFile(own, "billing", TOPIC, 0, offsets).reset(4, 3_000)
    assert OffsetFile(own, "billing", TOPIC, 0, offsets).read() == (4, 3_000, 0)
    assert own.size(KEY) == 0, "it is there for its lock alone"


def test_each_commit_is_a_whole_object_of_the_next_generation(objects):
    file = OffsetFile(MemoryStore(), "billing", TOPIC, 0, objects)
    for generation, offset in enumerate((1, 5, 7), start=2):
        file.commit(offset, offset)
        assert objects.size(KEY) == 2 * SLOT_BYTES
        assert SlottedFile(objects, KEY, b"OFFS").read().generation == generation
        # Where a write in place would not touch it.
        newest = objects.read(KEY)[generation % 2 * SLOT_BYTES :][8:16]
        assert int.from_bytes(newest, "little") == generation
    assert objects.statistics().writes == 3


@pytest.mark.parametrize("commits", [[7], [3, 7], [1, 2, 7]])
@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_slot_of_an_object_is_reported_and_costs_nothing(objects, commits, slot):
    file = OffsetFile(MemoryStore(), "billing", TOPIC, 0, objects)
    for offset in commits:
        file.commit(offset, offset)
    damage(objects, slot)
    assert file.read() == (7, 7, 1)
    assert file.commit(8, 8) == 8
    assert file.read() == (8, 8, 0), "the next commit mends it"


def test_a_damaged_object_is_refused_until_somebody_says_where_to_go_on(offsets):
    file = OffsetFile(MemoryStore(), "billing", TOPIC, 0, offsets)
    file.commit(9, 1)
    damage(offsets, 0, 1)
    with pytest.raises(DamagedFile, match="Seek the subscriber"):
        file.read()
    with pytest.raises(DamagedFile):
        file.commit(99, 1)
    file.reset(4, 2)
    assert file.read() == (4, 2, 0)


def test_a_cut_object_is_damage(objects):
    file = OffsetFile(MemoryStore(), "billing", TOPIC, 0, objects)
    file.commit(9, 1)
    content = objects.read(KEY)
    objects.write(KEY, content[: SLOT_BYTES + 100])
    assert file.read() == (9, 1, 1)
    objects.write(KEY, content[:100])
    with pytest.raises(DamagedFile):
        file.read()


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_an_object_goes_on_as_a_file_and_back(objects, commits):
    """The bytes are the same: offsets are moved by copying them."""
    own = MemoryStore()
    file = OffsetFile(own, "billing", TOPIC, 0, objects)
    for offset in range(1, commits + 1):
        file.commit(offset, 0)
    own.write(KEY, objects.read(KEY))
    moved = OffsetFile(own, "billing", TOPIC, 0)
    assert moved.commit(10, 0) == 10
    assert moved.commit(11, 0) == 11
    assert moved.read() == (11, 0, 0)
    objects.write(KEY, own.read(KEY))
    assert OffsetFile(own, "billing", TOPIC, 0, objects).read() == (11, 0, 0)


# ----------------------------------------------------------------------------- several processes

COMMIT = """
import sys
from penstock.log.offsets import OffsetFile
from penstock.stores import DirectoryStore, ObjectStore

own, url, prefix, parity = sys.argv[1:]
file = OffsetFile(DirectoryStore(own), "billing", "orders", 0, ObjectStore(url, prefix=prefix))
for offset in range(int(parity), 120, 2):
    assert file.commit(offset, offset) >= offset
    found = file.read()
    assert found is not None and found.offset >= offset, (found, offset)
"""


def test_two_processes_only_move_an_object_forward(tmp_path, s3_url, unique):
    started = [
        subprocess.Popen([sys.executable, "-c", COMMIT, tmp_path, s3_url, unique, parity])
        for parity in ("0", "1")
    ]
    assert [process.wait(50) for process in started] == [0, 0]
    with open_store(str(tmp_path)) as own, ObjectStore(s3_url, prefix=unique) as offsets:
        found = OffsetFile(own, "billing", TOPIC, 0, offsets).read()
        assert found is not None
        assert found.offset == 119


CONSUME = """
import asyncio, sys
from penstock import WalMessageQueue
from penstock.stores import ObjectStore

async def main():
    path, url, prefix = sys.argv[1:]
    offsets = ObjectStore(url, prefix=prefix)
    async with WalMessageQueue(path, offsets=offsets) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            async for record in subscription:
                await subscription.commit(record)
                break
            print("holding", flush=True)
            sys.stdin.readline()

asyncio.run(main())
"""


async def test_a_name_is_held_and_resumed_across_processes(tmp_path, s3_url, unique):
    path = tmp_path / "data"
    with ObjectStore(s3_url, prefix=unique) as offsets:
        async with WalMessageQueue(path, offsets=offsets) as queue:
            await queue.publish_many("orders", numbered(3))
            pipe = asyncio.subprocess.PIPE
            arguments = ["-c", CONSUME, str(path), s3_url, unique]
            child = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=pipe, stdout=pipe
            )
            assert child.stdout is not None
            async with asyncio.timeout(40):
                assert await child.stdout.readline() == b"holding\n"
            with pytest.raises(SubscriberBusy, match="another process"):
                await queue.subscribe("orders", "billing").open()
            child.kill()
            await child.communicate()
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 2) == numbered(2, 1)


# --------------------------------------------------------------------------------------- upkeep


async def fill(queue):
    """Ten segments, and a subscriber that has consumed half of one."""
    await queue.create_topic("orders", SMALL)
    subscription = queue.subscribe("orders", "billing")
    await subscription.open()
    for start in range(0, 30, 3):
        await queue.publish_many("orders", numbered(3, start))
    return subscription


def removed(reports):
    return sum(report.segments_removed for report in reports)


async def test_retention_waits_for_a_subscriber_whose_offsets_are_elsewhere(tmp_path, offsets):
    own = str(tmp_path / "data") if offsets.capabilities.durable else "memory:"
    async with WalMessageQueue(own, offsets=offsets, maintenance_interval=None) as queue:
        subscription = await fill(queue)
        assert removed(await queue.maintain()) == 0
        (info,) = await queue.retention("orders")
        assert info.blocked_by == "subscriber 'billing', which needs offset 0"
        await values_of(subscription, 15)
        await subscription.commit()
        assert removed(await queue.maintain()) > 0
        (info,) = await queue.retention("orders")
        assert 0 < info.earliest_offset <= 15
        assert info.blocked_by == "subscriber 'billing', which needs offset 15"


@pytest.mark.parametrize("trouble", ["unreachable", "no bucket", "not named"])
async def test_without_the_offsets_store_nothing_is_removed(tmp_path, s3_url, unique, trouble):
    """Also not what lies behind the start of a subscriber, which may have gone back."""
    path = tmp_path / "data"
    with ObjectStore(s3_url, prefix=unique) as offsets:
        async with WalMessageQueue(path, offsets=offsets, maintenance_interval=None) as queue:
            await (await fill(queue)).forget()
            async with queue.subscribe("orders", "billing", start="latest") as subscription:
                await subscription.seek(0)
    absent = s3_url.replace("s3://penstock", "s3://absent")
    store = {
        "unreachable": lambda: ObjectStore(NOWHERE, retry_config={"max_retries": 0}),
        "no bucket": lambda: ObjectStore(absent, prefix=unique),
        "not named": lambda: None,
    }[trouble]()
    async with WalMessageQueue(path, offsets=store, maintenance_interval=None) as queue:
        await queue.create_topic("orders")
        before = queue.store.list("topics/orders/")
        reports = await queue.maintain()
        assert removed(reports) == 0
        assert queue.store.list("topics/orders/") == before
        if trouble == "unreachable":
            assert isinstance(reports[0].error, StoreFailed)
            with pytest.raises(StoreFailed):
                await queue.retention("orders")


class Slow(MemoryStore):
    """Does not answer for a while."""

    def __init__(self):
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def read(self, key, start=0, length=None):
        self.asked.set()
        self.answers.wait()
        return super().read(key, start, length)


async def test_publishers_do_not_wait_for_the_offsets_store():
    """Every sealed segment makes retention look at the offsets: on its own thread."""
    with MemoryStore() as store, Slow() as offsets:
        async with WalMessageQueue(store, offsets=offsets) as queue:
            subscription = await fill(queue)
            await values_of(subscription, 30)
            await subscription.commit()
        offsets.answers.clear()
        offsets.asked.clear()
        async with WalMessageQueue(store, offsets=offsets) as queue:
            try:
                for _ in range(10):
                    await queue.publish_many("orders", numbered(3), timeout=20)
                assert await asyncio.to_thread(offsets.asked.wait, 20)
            finally:
                offsets.answers.set()


def test_retention_and_compaction_ask_the_offsets_store(objects):
    log = SmallLog()
    log.append((b"a", b"0"))
    log.append((b"a", None))
    log.append_segments(3)
    file = OffsetFile(log.store, "billing", TOPIC, 0, objects)
    file.reset(1, 0)
    log.topic.add_subscriber("billing", {0: 0})
    assert find_needs(log.store, log.state, 0, objects).lowest == 1
    now = log.clock.time_ms() + 100 * HOUR_MS
    compactor = Compactor(log.store, KEYS, offsets=objects)
    compactor.run(now)
    assert (1, b"a", None) in log.stored(0), "the tombstone is not consumed yet"
    assert retain(log.reader(), log.store, None, now, objects) == 0
    file.commit(4, 0)
    assert compactor.is_due(now)
    compactor.run(now)
    assert (1, b"a", None) not in log.stored(0)
    assert retain(log.reader(), log.store, None, now, objects) > 0


async def test_a_tombstone_goes_when_the_offsets_elsewhere_are_behind_it(objects):
    system = simulated_system()
    small = TopicConfig(segment_bytes_max=256, compact_keys=True, retention=keep_for_ever())
    async with WalMessageQueue(
        "memory:", offsets=objects, system=system, defaults=small, maintenance_interval=None
    ) as queue:
        await queue.publish("orders", b"0", key=b"a")
        await queue.publish("orders", None, key=b"a")
        for _ in range(3):
            await queue.publish("orders", bytes(300))
        async with queue.subscribe("orders", "billing") as subscription:
            system.clock.advance(30 * HOUR_MS / 1000)
            for kept in (True, False):
                await queue.maintain()
                assert kept is any([one.key == b"a" async for one in queue.replay("orders")])
                await subscription.seek("latest")


# ---------------------------------------------------------------------------- verify and repair


def checked(objects):
    """Three segments and a subscriber that has committed to the objects."""
    log = SmallLog()
    log.append_segments(3)
    file = OffsetFile(log.store, "billing", TOPIC, 0, objects)
    for offset in (0, 1, 2):
        file.reset(offset, 0)
    log.topic.add_subscriber("billing", {0: 0})
    log.log.close()
    return log


def test_verify_looks_into_the_offsets_store(objects):
    log = checked(objects)
    assert verify(log.store, offsets=objects).clean
    (problem,) = verify(log.store).problems
    assert (problem.file, problem.kind) == (KEY, "offset")
    assert "offsets=" in problem.message
    damage(objects, 0)
    (problem,) = verify(log.store, offsets=objects).problems
    assert problem.harmless
    damage(objects, 1)
    (problem,) = verify(log.store, offsets=objects).problems
    assert not problem.harmless
    assert "no slot passes its checks" in problem.message


def test_repair_mends_a_slot_and_leaves_what_only_a_person_knows(objects):
    log = checked(objects)
    damage(objects, 0)
    report = repair(log.store, TOPIC, offsets=objects, system=log.system)
    assert [(action.file, action.kind) for action in report.actions] == [(KEY, "offset")]
    assert report.remaining == []
    assert verify(log.store, offsets=objects).clean
    damage(objects, 0, 1)
    report = repair(log.store, TOPIC, offsets=objects, system=log.system)
    assert [problem.file for problem in report.remaining] == [KEY]


def test_repair_finds_the_subscribers_in_the_offsets_store(objects):
    log = checked(objects)
    log.store.delete(topic_key(TOPIC))
    log.store.delete(KEY)  # the empty file with the lock
    report = repair(log.store, TOPIC, offsets=objects, system=log.system)
    assert report.remaining == []
    assert log.state.subscribers == {"billing": {0: 2}}


def test_repair_gives_out_no_offset_that_was_consumed(objects):
    """The head and every segment are gone: the offsets are all that is left to tell."""
    log = checked(objects)
    for key in (*map(log_key, (0, 1, 2)), KEYS.head):
        log.store.delete(key)
    repair(log.store, TOPIC, offsets=objects, system=log.system)
    log.open()
    assert log.append((None, b"next")) == 2


def test_the_offsets_store_may_be_named_by_a_url(tmp_path):
    own, apart = f"sqlite:{tmp_path}/log.db", f"sqlite:{tmp_path}/offsets.db"
    with open_store(own) as store, open_store(apart) as offsets:
        log = SmallLog(store)
        log.append_segments(3)
        OffsetFile(store, "billing", TOPIC, 0, offsets).reset(1, 0)
        log.topic.add_subscriber("billing", {0: 1})
    assert verify(own, offsets=apart).clean
    assert repair(own, TOPIC, offsets=apart).remaining == []
    with pytest.raises(KeyNotFound, match="there is no log at"):
        verify(own, offsets=f"sqlite:{tmp_path}/absent.db")


# ------------------------------------------------------------------------------------ the queue


@pytest.mark.parametrize("less", [MemoryStore, lambda: ObjectStore("memory:///")])
def test_offsets_are_not_kept_where_a_power_cut_takes_them(tmp_path, less):
    with less() as store:
        with pytest.raises(NotSupported, match=r"committed offset must.*durable store"):
            WalMessageQueue(tmp_path / "data", offsets=store)


def test_a_refused_queue_closes_what_it_opened(tmp_path, monkeypatch):
    made = []

    def opening(url, **options):
        made.append(open_store(url, **options))
        return made[-1]

    monkeypatch.setattr("penstock.log.queue.open_store", opening)
    with pytest.raises(NotSupported):
        WalMessageQueue(f"sqlite:{tmp_path}/data.db", offsets="memory:")
    assert len(made) == 2
    for store in made:
        with pytest.raises(Closed):
            store.list()


async def test_the_queue_closes_the_store_that_it_opened(tmp_path):
    async with WalMessageQueue("memory:", offsets=f"sqlite:{tmp_path}/offsets.db") as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing"):
            assert queue.offsets.list() == [KEY]
    with pytest.raises(Closed):
        queue.offsets.list()
    with MemoryStore() as mine:
        async with WalMessageQueue("memory:", offsets=mine):
            pass
        assert mine.list() == []


async def test_offsets_that_are_not_found_say_how_to_name_their_store(objects):
    with MemoryStore() as store:
        async with WalMessageQueue(store, offsets=objects) as queue:
            await (await fill(queue)).close()
        async with WalMessageQueue(store) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                with pytest.raises(DamagedFile, match=r"offsets=\.\.\."):
                    subscription.positions()


async def test_a_power_cut_keeps_the_offsets_that_are_elsewhere(objects):
    """The log is cut back to what is durable, the offset was never ahead of that."""
    system = simulated_system()
    objects.capabilities = replace(objects.capabilities, durable=True)  # it outlives this disk
    async with WalMessageQueue("/data/log", offsets=objects, system=system) as queue:
        await queue.publish_many("orders", numbered(5))
        async with queue.subscribe("orders", "billing") as subscription:
            await values_of(subscription, 3)
            await subscription.commit()
    for disk in system.files.crash_states(5):
        again = simulated_system(disk=disk)
        async with WalMessageQueue("/data/log", offsets=objects, system=again) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 2) == numbered(2, 3)
