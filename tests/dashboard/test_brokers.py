"""The dashboard on real brokers: topics, groups, search, seek and dead letters by its sources."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from penstock.dashboard import Dashboard, moves
from penstock.dashboard.board import Board
from penstock.dashboard.broker import BrokerSource
from penstock.dashboard.letters_topic import TopicShelf
from penstock.dashboard.matching import Wanted
from penstock.dashboard.moves import END, START, Target
from penstock.dashboard.search import Search
from penstock.observe import GroupSnapshot, Observer
from penstock.transports import Transport, open_transport
from tests.transports.servers.nats import nats_server
from tests.transports.servers.redis import redis_server

RECORDS = 300
SERVERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "redis": redis_server,
    "nats": nats_server,
}


@pytest.fixture(params=SERVERS)
async def transport(request):
    """A broker with records, a group that has read some of them, and dead letters."""
    pytest.importorskip(request.param, reason=f"needs the client of {request.param}")
    with SERVERS[request.param]() as server:
        async with open_transport(server.url) as made:
            await fill(made)
            yield made


async def fill(transport: Transport) -> None:
    await transport.create_topic("orders", partitions=2)
    numbers = range(RECORDS)
    await transport.produce(
        "orders",
        [b'{"order":%d}' % number for number in numbers],
        keys=[b"k%d" % (number % 50) for number in numbers],
        headers=[{"trace": b"t-%d" % number} for number in numbers],
    )
    async with transport.subscribe("orders", "billing") as consumer:
        batch = await consumer.next_batch(10, 40)
        await consumer.commit({batch.partition: batch.records[-1].offset + 1})
    letters = [{"penstock-topic": b"orders", "penstock-error": b"ValueError: no"}] * 3
    await transport.create_topic("orders.dead-letters", partitions=1)
    await transport.produce("orders.dead-letters", [b"0", b"1", b"2"], headers=letters)


@contextlib.asynccontextmanager
async def board_of(transport: Transport):
    async with Observer() as observer:
        observer.watch(transport, name="broker")
        await observer.look()
        board = Board(observer, asyncio.get_running_loop())
        try:
            yield board
        finally:
            await board.close()


async def seen(board: Board) -> GroupSnapshot:
    snapshot = await board.observer.look()
    return next(one for one in snapshot.groups if (one.topic, one.group) == ("orders", "billing"))


async def test_topics_and_groups_of_a_broker_are_seen(transport):
    async with board_of(transport) as board:
        topics = await board.topics(BrokerSource)
        assert {"orders", "orders.dead-letters"} <= set(topics.found["broker"])
        group = await seen(board)
        assert 0 < group.lag_records < RECORDS
        assert board.source_of_group(group.source) is board.source("broker")


async def test_a_search_on_a_broker_finds_values_keys_and_headers(transport):
    async with board_of(transport) as board:
        source = board.source("broker")
        for wanted, count in (
            (Wanted(text=b'"order":299}'), 1),
            (Wanted(text=b"t-29"), 1 + 10),
            (Wanted(key=b"k7"), RECORDS // 50),
        ):
            search = Search(source, "orders", wanted, step_records=100)
            while await search.step():
                pass
            assert (search.done, len(search.found)) == (True, count)
            assert search.looked_at == RECORDS


async def test_a_group_of_a_broker_is_moved_after_a_preview(transport):
    async with board_of(transport) as board:
        source = board.source("broker")
        group = await seen(board)
        again = await moves.preview(source, group, Target(START))
        assert (await seen(board)).lag_records == group.lag_records, "a preview changes nothing"
        await moves.move(source, group, again)
        assert (await seen(board)).lag_records == RECORDS
        await moves.move(source, group, await moves.preview(source, group, Target(END)))
        assert (await seen(board)).lag_records == 0


async def test_dead_letters_in_a_topic_of_a_broker(transport):
    async with board_of(transport) as board:
        [shelf] = board.shelves((await board.topics()).found)
        assert isinstance(shelf, TopicShelf)
        kept = await shelf.letters()
        assert [one.raw for one in kept] == [b"0", b"1", b"2"]
        assert await shelf.purge([kept[0].id]) == 1
        await shelf.replay([kept[1].id], dry_run=False, force=False)
        assert [one.raw for one in await shelf.letters()] == [b"2"]


async def test_the_pages_of_a_broker_are_served(transport):
    async with Observer() as observer:
        observer.watch(transport, name="broker")
        await observer.look()
        async with Dashboard(observer, port=0) as dashboard:
            async with httpx.AsyncClient(base_url=dashboard.url, timeout=120) as client:
                for path in (
                    "/topics",
                    "/topic?source=broker&topic=orders",
                    "/group?source=broker&topic=orders&group=billing",
                    "/dead-letters",
                ):
                    page = await client.get(path, headers={"accept": "text/html"})
                    assert page.status_code == 200
                metrics = (await client.get("/metrics")).text
    assert 'group="billing"' in metrics
