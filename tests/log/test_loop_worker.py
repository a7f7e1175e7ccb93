"""Commits on the event loop: one for all that a turn brings, no thread, and the same promises."""

import asyncio
import errno
import threading

import pytest

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from penstock.errors import InvalidOption, Poisoned, StoreFailed, UsageError
from penstock.log.loop_worker import LoopWorker
from penstock.system import Helpers, OsFiles, System
from penstock.testing.queue_fixtures import everything, numbered, settle
from penstock.testing.worker import simulated_system


def make(store, **options):
    return WalMessageQueue(store, commit_on="loop", maintenance_interval=None, **options)


def simulated(system, **options):
    return make("/data/log", system=system, **options)


def values(records):
    return [one.value for one in records]


class TestCommits:
    async def test_no_thread_commits(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.publish_many("orders", numbered(10))
            names = [thread.name for thread in threading.enumerate()]
            assert not [name for name in names if name.startswith("penstock-commit")]

    async def test_what_comes_in_one_turn_is_synced_once(self):
        system = simulated_system()
        async with simulated(system) as queue:
            await queue.create_topic("orders")
            await queue.publish("orders", b"first")
            before = queue.statistics()
            done = await asyncio.gather(*(queue.publish("orders", one) for one in numbered(64)))
            after = queue.statistics()
            assert [one.offset for one in done] == list(range(1, 65))
            assert all(one.durable for one in done)
            assert after.store.syncs - before.store.syncs == 1

    async def test_records_handed_over_one_by_one_share_the_commit(self):
        async with simulated(simulated_system()) as queue:
            await queue.create_topic("orders")
            receipts = [queue.publish_nowait("orders", one) for one in numbered(1_000)]
            assert not receipts[0].done, "nothing is written before the loop has its turn"
            assert (await receipts[-1].wait()).durable
            assert {id(one) for one in receipts} == {id(receipts[0])}
            assert values(await everything(queue, "orders")) == numbered(1_000)

    async def test_other_threads_may_publish(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.create_topic("orders")
            receipts = await asyncio.to_thread(
                lambda: [queue.publish_nowait("orders", one) for one in numbered(100)]
            )
            await asyncio.gather(*(one.wait() for one in receipts))
            assert values(await everything(queue, "orders")) == numbered(100)

    async def test_several_partitions_are_synced_side_by_side(self, tmp_path):
        async with make(tmp_path, defaults=TopicConfig(partitions=4)) as queue:
            done = await queue.publish_many("orders", numbered(100))
            assert done.durable
            assert {part: end for part, (_, end) in done.ranges.items()} == dict.fromkeys(
                range(4), 25
            )

    async def test_a_timed_sync_comes_by_itself(self, tmp_path):
        timed = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=1)
        async with make(tmp_path, defaults=timed) as queue:
            done = await queue.publish("orders", b"a")
            await queue.wait_durable("orders", done.offset)
            assert queue.durable_offset("orders") == 1

    async def test_what_lingers_is_committed_later_or_when_the_batch_is_full(self, tmp_path):
        slow = TopicConfig(linger_ms=60_000, batch_records_max=3)
        async with make(tmp_path, defaults=slow) as queue:
            await queue.create_topic("orders")
            first = queue.publish_nowait("orders", b"0")
            await asyncio.sleep(0)
            assert not first.done
            queue.publish_nowait("orders", b"1")
            queue.publish_nowait("orders", b"2")
            assert (await first.wait()).count == 3

    async def test_another_partition_count_is_used_at_once(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.publish_many("orders", numbered(4))
            await queue.repartition("orders", 2)
            done = await queue.publish_many("orders", numbered(4))
            assert len(done.ranges) == 2


async def publishers(queue, count, calls):
    """So many tasks with so many calls each; the syncs that took."""
    before = queue.statistics().store.syncs

    async def publisher():
        for _ in range(calls):
            assert (await queue.publish_many("orders", numbered(3))).durable

    await asyncio.gather(*(publisher() for _ in range(count)))
    return queue.statistics().store.syncs - before


class TestALoneCall:
    async def test_is_committed_before_it_waits(self):
        async with simulated(simulated_system()) as queue:
            await queue.publish_many("orders", numbered(3))
            call = queue.publish_many("orders", numbered(3))
            call.send(None)  # the first step; no turn of the loop has passed
            assert queue.durable_offset("orders") == 6
            with pytest.raises(StopIteration) as done:
                call.send(None)
            assert done.value.value.ranges == {0: (3, 6)}

    async def test_lets_others_have_their_turn(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.create_topic("orders")
            turns: list[int] = []
            for number in range(3):
                asyncio.get_running_loop().call_soon(turns.append, number)
                await queue.publish_many("orders", numbered(3))
                assert turns[-1] == number

    async def test_is_one_that_nobody_would_share(self):
        async with simulated(simulated_system()) as queue:
            await queue.publish_many("orders", numbered(3))
            assert await publishers(queue, 1, 10) == 10
            # Who comes first cannot know of the others; from then on they share.
            assert await publishers(queue, 4, 10) == 11
            # The last commit was shared, so the next one waits for others, and the ones after it do not.
            assert await publishers(queue, 1, 10) == 10

    async def test_comes_behind_what_waits_for_the_loop(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.publish_many("orders", numbered(3))
            single = queue.publish_nowait("orders", b"before")
            await queue.publish_many("orders", numbered(3))
            assert single.done
            found = values(await everything(queue, "orders"))
            assert found == [*numbered(3), b"before", *numbered(3)]

    async def test_comes_behind_another_partition_count(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.publish_many("orders", numbered(4))
            moving = asyncio.ensure_future(queue.repartition("orders", 2))
            worker = queue._running.around.worker
            while not worker._jobs:
                await asyncio.sleep(0)
            done = await queue.publish_many("orders", numbered(4))
            await moving
            assert len(done.ranges) == 2

    async def test_waits_where_records_linger(self, tmp_path):
        slow = TopicConfig(linger_ms=60_000)
        async with make(tmp_path, defaults=slow) as queue:
            await queue.create_topic("orders")
            first = asyncio.ensure_future(queue.publish_many("orders", numbered(3)))
            await asyncio.sleep(0)
            assert queue.durable_offset("orders") == 0
            await queue.flush()
            assert (await first).ranges == {0: (0, 3)}

    async def test_that_is_cancelled_was_published_and_the_next_is_alone_again(self):
        async with simulated(simulated_system()) as queue:
            await queue.publish_many("orders", numbered(3))
            call = queue.publish_many("orders", numbered(3))
            call.send(None)
            with pytest.raises(asyncio.CancelledError):
                call.throw(asyncio.CancelledError)
            assert await publishers(queue, 1, 2) == 2
            assert queue.durable_offset("orders") == 12


class TestFailures:
    @pytest.mark.parametrize("operation", ["write", "sync"])
    async def test_a_lone_call_hears_what_went_wrong(self, operation):
        system = simulated_system()
        async with simulated(system) as queue:
            await queue.publish_many("orders", numbered(5))
            system.files.fail(operation, path="*/orders/0/*.log")
            with pytest.raises(StoreFailed):
                await queue.publish_many("orders", [b"5"])
            with pytest.raises(Poisoned, match="open the queue again"):
                await queue.publish_many("orders", [b"6"])
            assert queue.durable_offset("orders") == 5

    @pytest.mark.parametrize("operation", ["write", "sync"])
    async def test_nothing_is_acknowledged_after_a_failure(self, operation):
        system = simulated_system()
        async with simulated(system) as queue:
            await queue.publish_many("orders", numbered(5))
            system.files.fail(operation, path="*/orders/0/*.log")
            with pytest.raises(StoreFailed):
                await queue.publish("orders", b"5")
            with pytest.raises(Poisoned, match="open the queue again"):
                await queue.publish_many("orders", [b"6"])
            with pytest.raises(Poisoned):
                await queue.flush()
            assert queue.durable_offset("orders") == 5
        async with simulated(simulated_system(disk=system.files.kill())) as queue:
            found = values(await everything(queue, "orders"))
            assert found[:5] == numbered(5)
            assert found[5:] in ([], [b"5"])

    async def test_a_cancelled_publish_is_only_forgotten(self, tmp_path):
        async with make(tmp_path) as queue:
            await queue.create_topic("orders")
            publishing = asyncio.ensure_future(queue.publish("orders", b"a"))
            await asyncio.sleep(0)
            publishing.cancel()
            await queue.publish("orders", b"b")
            assert values(await everything(queue, "orders")) == [b"a", b"b"]

    async def test_a_full_disk_is_told(self):
        system = simulated_system()
        async with simulated(system) as queue:
            await queue.publish("orders", b"a")
            system.files.fail("write", path="*.log", error=errno.ENOSPC)
            with pytest.raises(StoreFailed, match="free some space"):
                await queue.publish("orders", b"b")

    def test_there_are_two_choices(self, tmp_path):
        with pytest.raises(InvalidOption, match=r"'thread' .* or 'loop'") as caught:
            WalMessageQueue(tmp_path, commit_on="fork")  # type: ignore[arg-type]
        assert caught.value.fields["option"] == "commit_on"


class Interrupting(OsFiles):
    """A signal comes in the middle of a call."""

    def __init__(self):
        self.at = ""

    def _strike(self, call):
        if self.at == call:
            self.at = ""
            raise SystemExit(3)

    def sync(self, descriptor):
        self._strike("sync")
        super().sync(descriptor)

    def try_lock(self, descriptor):
        self._strike("lock")
        return super().try_lock(descriptor)


@pytest.mark.parametrize("call", ["lock", "sync"])
def test_a_commit_that_a_signal_interrupts_is_told_to_who_waits_and_to_who_flushes(tmp_path, call):
    files = Interrupting()
    queue = make(tmp_path, system=System(files=files))
    receipts = []

    async def begin():
        await queue.open()
        await queue.publish("orders", b"first")
        receipts.append(queue.publish_nowait("orders", b"second"))
        files.at = call
        await asyncio.Event().wait()

    async def end():
        with pytest.raises(StoreFailed, match="interrupted by SystemExit"):
            await queue.flush()
        with pytest.raises(StoreFailed, match="interrupted by SystemExit"):
            await receipts[0].wait()
        await queue.close()

    with asyncio.Runner() as runner:
        with pytest.raises(SystemExit):
            runner.run(begin())
        runner.run(end())


def test_a_helper_is_never_left_at_work(monkeypatch):
    """Whatever comes while the first job runs, the others have ended when it is known."""
    helpers, ended = Helpers("test"), []
    begun, go = threading.Event(), threading.Event()

    def first():
        begun.wait(60)
        threading.Timer(0.01, go.set).start()
        raise KeyboardInterrupt

    def second():
        begun.set()
        go.wait(60)
        ended.append("second")

    with pytest.raises(KeyboardInterrupt):
        helpers.run_all([first, second])
    assert ended == ["second"]
    helpers.close()


def test_a_loop_that_moves_to_another_thread_is_woken(tmp_path):
    loop = asyncio.new_event_loop()
    queue = make(tmp_path)
    loop.run_until_complete(queue.open())
    loop.run_until_complete(queue.create_topic("orders"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        receipt = queue.publish_nowait("orders", b"from the thread that opened it")
        waiting = asyncio.run_coroutine_threadsafe(receipt.wait(), loop)
        assert waiting.result(60).durable
        asyncio.run_coroutine_threadsafe(queue.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


class TestClosing:
    async def test_closing_writes_what_was_accepted_and_stops_the_timers(self, tmp_path):
        lazy = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=3_600_000)
        queue = make(tmp_path, defaults=lazy)
        async with queue:
            await queue.publish("orders", b"a")
            queue.publish_nowait("orders", b"b")
        assert not queue._running.around.worker._timers
        async with make(tmp_path) as again:
            assert values(await everything(again, "orders")) == [b"a", b"b"]

    async def test_a_closed_worker_takes_no_jobs(self):
        worker = LoopWorker("test", asyncio.get_running_loop())
        ran = []
        worker.submit(lambda: ran.append("before"))
        await asyncio.to_thread(worker.close)
        worker.submit(lambda: ran.append("after"))
        worker.submit_after(0, lambda: ran.append("later"))
        await settle()
        assert ran == ["before"]

    async def test_a_job_whose_callback_a_signal_prevented_runs_with_the_next(self, monkeypatch):
        worker = LoopWorker("test", asyncio.get_running_loop())
        ran: list[int] = []

        def interrupted(call):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(worker, "_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                worker.submit(lambda: ran.append(1))
        worker.submit(lambda: ran.append(2))
        await settle()
        assert ran == [1, 2]
        assert worker.run_now(lambda: ran.append(3))
        worker.close()

    def test_a_job_that_a_signal_interrupted_runs_once_more_and_so_do_those_behind_it(self):
        loop, ran = asyncio.new_event_loop(), []
        worker = LoopWorker("test", loop)
        signals = [KeyboardInterrupt(), SystemExit()]

        def first():
            ran.append("first")
            if signals:
                raise signals.pop()

        for job in (first, lambda: ran.append("second")):
            worker._jobs.append(job)
        loop.call_soon(worker._run)
        for kind in (SystemExit, KeyboardInterrupt):
            with pytest.raises(kind):
                loop.run_until_complete(settle())
        loop.run_until_complete(settle())
        assert ran == ["first", "first", "second"], "one that goes wrong again is dropped"
        loop.call_soon(worker.close)
        loop.run_until_complete(settle())
        loop.close()

    async def test_a_signal_behind_the_last_job_leaves_nothing_to_do(self):
        worker, ran = LoopWorker("test", asyncio.get_running_loop()), []
        worker._jobs.append(lambda: ran.append("first"))
        worker._jobs.append(worker._jobs.clear)
        with pytest.raises(IndexError):  # as a signal would come: it is the end of the last job
            worker._run()
        worker.submit(lambda: ran.append("second"))
        await settle()
        assert ran == ["first", "second"]
        worker.close()

    async def test_a_job_that_comes_while_it_closes_is_not_run_behind_it(self):
        worker = LoopWorker("test", asyncio.get_running_loop())
        ran = []
        worker.close()
        worker.submit(lambda: ran.append("behind"))
        worker.submit_after(0, lambda: ran.append("later"))
        await settle()
        assert (ran, worker._timers) == ([], set())

    async def test_a_worker_that_closes_itself_ends_its_jobs_its_timers_and_its_helpers(self):
        worker = LoopWorker("ends", asyncio.get_running_loop())
        ran = []
        worker.run_all([lambda: ran.append("side"), lambda: ran.append("by side")])
        worker.submit_after(3_600, lambda: ran.append("never"))
        await settle()
        assert len(worker._timers) == 1
        worker.submit(lambda: ran.append("before"))
        worker.submit(worker.close)
        await settle()
        assert sorted(ran) == ["before", "by side", "side"]
        assert not worker._timers
        assert not [one for one in threading.enumerate() if one.name.startswith("ends")]

    async def test_a_timer_that_rang_is_forgotten(self):
        worker = LoopWorker("test", asyncio.get_running_loop())
        rang = asyncio.Event()
        await asyncio.to_thread(worker.submit_after, 0, rang.set)
        await rang.wait()
        assert not worker._timers
        worker.close()

    @pytest.mark.parametrize("closed", [True, False])
    def test_a_loop_that_runs_no_more_keeps_nobody_who_closes(self, closed):
        loop = asyncio.new_event_loop()
        worker = LoopWorker("test", loop)
        if closed:
            loop.close()
        closing = threading.Thread(target=worker.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        loop.close()

    @pytest.mark.parametrize("linger_ms", [0, 60_000])
    def test_every_publish_after_the_loop_has_ended_tells_why_it_cannot(self, tmp_path, linger_ms):
        async def opened():
            queue = await make(tmp_path, defaults=TopicConfig(linger_ms=linger_ms)).__aenter__()
            await queue.create_topic("orders")
            return queue

        queue = asyncio.run(opened())
        refused = []

        def publish():
            with pytest.raises(UsageError, match="has ended"):
                queue.publish_nowait("orders", b"a")
            refused.append(True)

        publish()
        publish()
        thread = threading.Thread(target=publish)
        thread.start()
        thread.join(60)
        assert len(refused) == 3


@pytest.mark.parametrize("wrong", [{"commit_on": "fork"}, {"defaults": TopicConfig(partitions=0)}])
def test_a_wrong_setting_opens_no_store(tmp_path, wrong):
    with pytest.raises(InvalidOption):
        WalMessageQueue(tmp_path / "data", **wrong)
    assert not (tmp_path / "data").exists()
