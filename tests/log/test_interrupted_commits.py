"""Commits that a signal, or a lack of memory, ends in any of their steps: all who wait hear of it, and the next one works."""

import asyncio

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import StoreFailed
from penstock.log import writer as writers
from penstock.log.loop_worker import LoopWorker
from penstock.log.writer import TopicWriter
from penstock.stores import DirectoryStore, file_locks
from penstock.testing.queue_fixtures import everything
from tests.log.test_writer import opened


def make(folder, commit_on="loop"):
    return WalMessageQueue(folder, commit_on=commit_on, maintenance_interval=None)


def once(monkeypatch, place, name, error, *, after=False):
    """The next call of a function raises, before or after it did its work."""
    real, errors = getattr(place, name), [error]

    def striking(*arguments):
        done = real(*arguments) if after or not errors else None
        if errors:
            raise errors.pop()
        return done

    monkeypatch.setattr(place, name, striking)


def interrupted(folder, strike, publish, then):
    """A loop that a signal ends while something is published; then it runs again, as on the way out of a program."""
    queue = make(folder)

    async def begin():
        await queue.open()
        await queue.publish("orders", b"first")
        strike()
        await publish(queue)
        await asyncio.Event().wait()

    async def end():
        await then(queue)
        await queue.close()

    with asyncio.Runner() as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run(begin())
        runner.run(end())


STEPS = [
    (TopicWriter, "commit", False),
    (TopicWriter, "commit", True),
    (TopicWriter, "_next_receipt", False),
    (TopicWriter, "_next_receipt", True),
    (writers, "gather", False),
    (TopicWriter, "_take_all", False),
    (TopicWriter, "_take_all", True),
    (TopicWriter, "_try_items", False),
    (TopicWriter, "_set_room", True),
    (TopicWriter, "_commit_batches", True),
    (TopicWriter, "_look_after_rolls", False),
    (TopicWriter, "_finish", False),
    (TopicWriter, "_finish", True),
]


@pytest.mark.parametrize(("place", "name", "after"), STEPS)
def test_a_signal_in_any_step_leaves_nobody_waiting(tmp_path, monkeypatch, place, name, after):
    told = []

    async def publish(queue):
        told.append(queue.publish_nowait("orders", b"second"))
        told.append(asyncio.ensure_future(queue.publish("orders", b"third", timeout=3_600)))

    async def then(queue):
        receipt, publishing = told
        heard = await asyncio.gather(receipt.wait(), publishing, return_exceptions=True)
        there = [one.value for one in await everything(queue, "orders")]
        for value, one in zip((b"second", b"third"), heard, strict=True):
            is_told_so = isinstance(one, StoreFailed | asyncio.CancelledError)
            assert is_told_so or value in there, "what was acknowledged is there"
        assert (await queue.publish("orders", b"next")).durable

    interrupted(
        tmp_path,
        lambda: once(monkeypatch, place, name, KeyboardInterrupt(), after=after),
        publish,
        then,
    )


async def test_a_thread_without_memory_tells_and_lives_on(tmp_path, monkeypatch):
    async with make(tmp_path, "thread") as queue:
        await queue.create_topic("orders")
        once(monkeypatch, writers, "gather", MemoryError())
        receipt = queue.publish_nowait("orders", b"lost")
        for waiting in (queue.flush(), receipt.wait()):
            with pytest.raises(MemoryError):
                await waiting
        assert (await queue.publish("orders", b"next")).offset == 0


async def test_what_was_not_gathered_counts_as_failed(monkeypatch):
    async with opened() as (_, _, writer):
        once(monkeypatch, writers, "gather", MemoryError())
        receipt = writer.add_nowait(b"lost")
        with pytest.raises(MemoryError):
            await receipt.wait()
        assert (writer.accepted, writer.committed, writer.failed) == (1, 0, 1)


@pytest.mark.parametrize(("name", "after"), [("_take", True), ("__exit__", False)])
async def test_a_partition_is_let_go_also_while_the_error_of_a_signal_is_kept(
    tmp_path, monkeypatch, name, after
):
    async with make(tmp_path) as queue:
        await queue.publish("orders", b"first")
        once(monkeypatch, file_locks.FolderLock, name, KeyboardInterrupt(), after=after)
        with pytest.raises(KeyboardInterrupt) as kept:
            await queue.publish_many("orders", [b"second"])
        head = next(key for key in DirectoryStore(tmp_path).list() if key.endswith("head"))
        with DirectoryStore(tmp_path).lock(head, 0):
            assert kept.value.__traceback__ is not None


def test_a_signal_while_a_commit_is_asked_for_does_not_stop_the_topic(tmp_path, monkeypatch):
    async def publish(queue):
        await queue.publish("orders", b"second", timeout=3_600)

    async def then(queue):
        assert (await queue.publish("orders", b"third")).durable

    interrupted(
        tmp_path, lambda: once(monkeypatch, LoopWorker, "_soon", KeyboardInterrupt()), publish, then
    )


def test_a_signal_before_a_commit_that_lingered_does_not_stop_the_topic(tmp_path, monkeypatch):
    told = []

    async def publish(queue):
        await queue.create_topic("slow", TopicConfig(linger_ms=1))
        told.append(queue.publish_nowait("slow", b"second"))

    async def then(queue):
        assert (await told[0].wait()).count == 1
        assert (await queue.publish("slow", b"third")).offset == 1

    interrupted(
        tmp_path,
        lambda: once(monkeypatch, TopicWriter, "commit", KeyboardInterrupt()),
        publish,
        then,
    )
