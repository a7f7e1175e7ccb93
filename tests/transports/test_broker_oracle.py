"""Each broker, killed and restarted under load: what comes out is what went in, once."""

import asyncio
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from penstock.transports import open_transport
from tests.crash.rigs import seed_of
from tests.scoreboard import amount
from tests.transports.oracle import BrokerBooks, kill_under_oracle
from tests.transports.servers.rabbitmq import STREAMS

SERVERS = {
    "nats": "nats_server",
    "redis": "redis_server",
    "kafka": "kafka_server",
    "rabbitmq": "rabbit_server",
    "pulsar": "pulsar_server",
}
"""Where each comes from."""
QUICK = ["nats", "redis"]
"""Those that start in a moment. The others are killed in the tests of every day in their own files."""
SHARES = {"nats": 0.1, "redis": 0.1, "kafka": 0.03, "rabbitmq": 0.02, "pulsar": 0.01}
"""How many of all kills each gets in a long run."""


def started(broker: str) -> AbstractContextManager[Any]:
    module = importlib.import_module(f"tests.transports.servers.{broker}")
    make: Callable[[], AbstractContextManager[Any]] = getattr(module, SERVERS[broker])
    return make()


async def check(broker: str, request: Any, folder: Any, kills: int, scored: Any) -> None:
    seed = seed_of(request)
    pytest.importorskip(f"penstock.transports.{broker}")
    with started(broker) as server:

        def kill() -> None:
            server.kill()
            server.start()

        def settle() -> None:
            if broker == "rabbitmq":
                server.settle(STREAMS)

        async with open_transport(server.url) as transport:
            told = await kill_under_oracle(transport, folder, seed, kills, kill, settle)
    scored(13, **told)


@pytest.mark.parametrize("broker", QUICK)
async def test_a_broker_killed_under_load_loses_and_doubles_nothing(
    broker, request, tmp_path, scored
):
    await check(broker, request, tmp_path, 9, scored)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("broker", SERVERS)
async def test_a_broker_killed_again_and_again_loses_and_doubles_nothing(
    broker, request, tmp_path, scored
):
    kills = max(1, round(amount(13) * SHARES[broker]))
    await check(broker, request, tmp_path, kills, scored)


@pytest.mark.parametrize("change", ["once more", "never", "another amount"])
async def test_a_wrong_book_is_seen(tmp_path, change, monkeypatch):
    """The oracle finds what it is there to find; here without any broker."""
    async with open_transport("memory:") as transport:
        books = BrokerBooks(transport, "payments", tmp_path, 1)
        produce = transport.produce

        async def other(topic, values, *, keys, timeout):
            spoilt = {"once more": [*values, values[-1]], "never": values[:-1]}
            wrong = spoilt.get(change, [*values[:-1], b"1000"])
            return await produce(topic, wrong, keys=(keys * 2)[: len(wrong)], timeout=timeout)

        monkeypatch.setattr(transport, "produce", other)
        monkeypatch.setattr(books, "_is_done", books_are_read(books))
        assert await asyncio.wait_for(books.run(0, lambda: None), 60) == len(books.sent)


def books_are_read(books: BrokerBooks) -> Any:
    async def all_read(connection: Any) -> bool:
        if not books._ended.is_set():
            return False
        places = await books._checkpoints.positions(connection, books.topic)
        lag = await books.transport.lag(books.topic, "books")
        return all(places.get(one.partition, 0) >= one.end for one in lag)

    return all_read
