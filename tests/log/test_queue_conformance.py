"""The queue's suite on every store, each against the real thing."""

from functools import partial

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.log.loop_worker import CommitOn
from penstock.stores import MemoryStore, ObjectStore, PostgresStore
from penstock.testing import QueueConformance
from penstock.testing.queue_publishing import PublishingConformance
from penstock.testing.queue_reading import ReadingConformance
from penstock.testing.queue_seeking import SeekingConformance
from penstock.testing.queue_subscribing import SubscribingConformance

pytestmark = pytest.mark.acceptance(17, 19)


class TestDirectory(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path):
        return partial(WalMessageQueue, tmp_path / "data")


class TestDirectoryCommittedOnTheLoop(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            # Tests that hold the commits back bring a worker of their own.
            commit_on: CommitOn = "thread" if "system" in options else "loop"
            return WalMessageQueue(tmp_path / "data", commit_on=commit_on, **options)

        return make


class TestMemory(QueueConformance):
    @pytest.fixture
    def make_queue(self):
        with MemoryStore() as store:
            yield partial(WalMessageQueue, store)


class TestContainerFile(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path):
        return partial(WalMessageQueue, f"sqlite:{tmp_path}/data.db")


class TestPostgres(QueueConformance):
    @pytest.fixture
    def make_queue(self, postgres_dsn, unique):
        with PostgresStore(postgres_dsn, schema=unique) as store:
            yield partial(WalMessageQueue, store)


class Tiering(WalMessageQueue):
    """A queue with small segments, each of which moves to the tier when it is sealed."""

    def __init__(self, store, *, defaults=None, **options):
        small = TopicConfig(segment_bytes_max=512)
        super().__init__(store, defaults=defaults or small, **options)

    async def publish_many(self, *arguments, **options):
        done = await super().publish_many(*arguments, **options)
        if any(topic.rolls for topic in self.statistics().topics.values()):
            for report in await self.maintain():
                assert report.error is None, report
        return done


class TestDirectoryWithS3(
    PublishingConformance, SubscribingConformance, SeekingConformance, ReadingConformance
):
    """Each call to the service takes a while: the rest of the suite runs on the next one."""

    @pytest.fixture
    def make_queue(self, tmp_path, s3_url, unique):
        with ObjectStore(s3_url, prefix=unique) as tier:
            yield partial(Tiering, tmp_path / "data", tier=tier)


class TestDirectoryWithOffsetsInS3(SubscribingConformance, SeekingConformance):
    """Commits are whole objects there; the names are still locked in the directory."""

    @pytest.fixture
    def make_queue(self, tmp_path, s3_url, unique):
        with ObjectStore(s3_url, prefix=unique) as offsets:
            yield partial(WalMessageQueue, tmp_path / "data", offsets=offsets)

    async def test_the_offsets_are_there(self, make_queue):
        await offsets_are_apart(make_queue)


class TestMemoryWithOffsetsInMemory(SubscribingConformance, SeekingConformance):
    @pytest.fixture
    def make_queue(self):
        with MemoryStore() as store, MemoryStore() as offsets:
            yield partial(WalMessageQueue, store, offsets=offsets)

    async def test_the_offsets_are_there(self, make_queue):
        await offsets_are_apart(make_queue)


class TestDirectoryWithOffsetsInAContainerFile(SubscribingConformance, SeekingConformance):
    @pytest.fixture
    def make_queue(self, tmp_path):
        offsets = f"sqlite:{tmp_path}/offsets.db"
        return partial(WalMessageQueue, tmp_path / "data", offsets=offsets)

    async def test_the_offsets_are_there(self, make_queue):
        await offsets_are_apart(make_queue)


async def offsets_are_apart(make_queue):
    """The suite does use the offsets store; the queue's own has the locks alone."""
    async with make_queue() as queue:
        await queue.publish_many("orders", [b"x"] * 3)
        async with queue.subscribe("orders", "billing") as subscription:
            await subscription.next_batch()
            await subscription.commit()
        key = "groups/billing/orders-0.offset"
        assert queue.offsets.list() == [key]
        assert queue.store.size(key) == 0


class TestDirectoryWithObjectsInADirectory(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path):
        with ObjectStore(f"file://{tmp_path}/tier") as tier:
            yield partial(Tiering, tmp_path / "data", tier=tier)

    async def test_sealed_segments_are_in_the_tier(self, make_queue):
        """The suite does read from it."""
        async with make_queue() as queue:
            for _ in range(10):
                await queue.publish_many("orders", [bytes(100)] * 10)
            assert len(queue.tier.list("topics/orders/0/")) > 5
            assert len([key for key in queue.store.list("topics/orders/0/") if "log" in key]) == 1
