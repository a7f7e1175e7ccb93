"""Checkpoints in the user's database: claims, saves, fences, and the loop with every driver."""

import asyncio
import sqlite3

import pytest

from penstock.errors import Fenced, InvalidName, NotSupported, UsageError
from penstock.streaming import DatabaseCheckpoints, exactly_once
from penstock.streaming.database_connection import is_idle, run
from penstock.transports import EmbeddedTransport, StreamBatch
from tests.streaming.database_world import (
    POSTGRES_KINDS,
    SQLITE_KINDS,
    Database,
    batch_of,
    make_balances,
    paid,
    pay,
)


@pytest.fixture(params=[*SQLITE_KINDS, *POSTGRES_KINDS])
async def database(request, tmp_path):
    where = str(tmp_path / "shop.db")
    if request.param in POSTGRES_KINDS:
        where = request.getfixturevalue("postgres").dsn
    made = Database(request.param, where, [])
    try:
        await clear(made)
        yield made
    finally:
        await made.close()


async def clear(database):
    connection = await database.connect()
    async with database.transaction(connection):
        await run(connection, "DROP TABLE IF EXISTS balances")
        await run(connection, "DROP TABLE IF EXISTS penstock_checkpoints")


@pytest.fixture
async def connection(database):
    connection = await database.connect()
    await DatabaseCheckpoints("billing").create(connection)
    await make_balances(database, connection)
    assert is_idle(connection)
    return connection


async def test_a_save_becomes_true_with_the_transaction(database, connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=5)
    assert is_idle(connection), "the claim is committed"
    async with database.transaction(connection):
        await pay(connection, "ada", 100)
        claim = await checkpoints.save(connection, batch_of(5, 8), claim)
    other = await database.connect()
    assert await checkpoints.positions(other, "orders") == {0: 8}
    assert await database.total(connection) == 100
    async with database.transaction(connection):
        await checkpoints.save(connection, batch_of(8, 9), claim)
    assert await checkpoints.positions(connection, "orders") == {0: 9}


async def test_a_save_is_undone_with_the_transaction(database, connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=0)
    saving = checkpoints.save(connection, batch_of(0, 3), claim)
    with pytest.raises(ZeroDivisionError):
        await paid(database, connection, saving, ZeroDivisionError())
    assert await database.total(connection) == 0
    await paid(database, connection, checkpoints.save(connection, batch_of(0, 3), claim))
    assert await database.total(connection) == 100
    assert await checkpoints.positions(connection, "orders") == {0: 3}


async def test_who_was_replaced_changes_nothing(database, connection, checkpoints):
    zombies = await checkpoints.claim(connection, "orders", 0, start=0)
    other = await database.connect()
    mine = await checkpoints.claim(other, "orders", 0, start=77)
    assert mine.next_offset == 0, "the database says where to go on"
    saving = checkpoints.save(connection, batch_of(0, 3), zombies)
    with pytest.raises(Fenced) as caught:
        await paid(database, connection, saving)
    assert caught.value.reason == "epoch"
    assert await database.total(connection) == 0
    async with database.transaction(other):
        await checkpoints.save(other, batch_of(0, 2), mine)
    assert await checkpoints.positions(other, "orders") == {0: 2}


async def test_a_batch_is_saved_once(database, connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=0)
    async with database.transaction(connection):
        await checkpoints.save(connection, batch_of(0, 3), claim)
    saving = checkpoints.save(connection, batch_of(0, 3), claim)
    with pytest.raises(Fenced) as caught:
        await paid(database, connection, saving)
    assert caught.value.reason == "offset"
    assert await database.total(connection) == 0


async def test_an_older_generation_cannot_claim(connection, checkpoints):
    await checkpoints.claim(connection, "orders", 0, start=0, generation=4)
    with pytest.raises(Fenced) as caught:
        await checkpoints.claim(connection, "orders", 0, start=0, generation=3)
    assert (caught.value.reason, caught.value.generation, caught.value.current) == (
        "generation", 3, 4,
    )  # fmt: skip
    assert is_idle(connection)
    again = await checkpoints.claim(connection, "orders", 0, start=0, generation=4)
    assert again.epoch == 2


async def test_a_row_that_is_gone_fences(database, connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=0)
    async with database.transaction(connection):
        await checkpoints.forget(connection, "orders")
    with pytest.raises(Fenced) as caught:
        async with database.transaction(connection):
            await checkpoints.save(connection, batch_of(0, 3), claim)
    assert caught.value.reason == "gone"
    assert await checkpoints.positions(connection, "orders") == {}


async def test_groups_topics_and_partitions_are_apart(database, connection, checkpoints):
    await checkpoints.claim(connection, "orders", 0, start=1)
    await checkpoints.claim(connection, "orders", 1, start=2)
    await checkpoints.claim(connection, "returns", 0, start=3)
    await DatabaseCheckpoints("audit").claim(connection, "orders", 0, start=4)
    assert await checkpoints.positions(connection, "orders") == {0: 1, 1: 2}
    assert await checkpoints.positions(connection, "returns") == {0: 3}


async def test_a_claim_is_not_made_in_the_middle_of_a_transaction(
    database, connection, checkpoints
):
    with pytest.raises(UsageError, match="transaction is open"):
        await paid(database, connection, checkpoints.claim(connection, "orders", 0, start=0))


async def test_many_claim_at_once_and_one_holds(database, connection, checkpoints):
    others = [await database.connect() for _ in range(4)]
    claims = await asyncio.gather(
        *(checkpoints.claim(other, "orders", 0, start=0) for other in others)
    )
    assert sorted(claim.epoch for claim in claims) == [1, 2, 3, 4]


async def test_a_compacted_topic_has_holes(database, connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=0)
    async with database.transaction(connection):
        await checkpoints.save(connection, batch_of(4, 6), claim)
    assert await checkpoints.positions(connection, "orders") == {0: 6}


async def test_a_batch_of_elsewhere_is_refused(connection, checkpoints):
    claim = await checkpoints.claim(connection, "orders", 0, start=5)
    for wrong in [batch_of(5, 6, partition=1), batch_of(4, 6), StreamBatch("orders", 0, [], 5)]:
        with pytest.raises(UsageError):
            await checkpoints.save(connection, wrong, claim)


class TestTheLoop:
    """On the embedded transport."""

    @pytest.fixture
    async def transport(self):
        async with EmbeddedTransport("memory:") as transport:
            await transport.create_topic("orders", partitions=1)
            yield transport

    async def test_each_record_takes_effect_once_over_restarts(
        self, database, connection, checkpoints, transport
    ):
        await transport.produce("orders", [b"%d" % number for number in range(10)])
        total = 0
        for expected in (3, 6, 9, 10):
            async with transport.subscribe("orders", "billing") as consumer:
                async for batch in exactly_once(consumer, checkpoints, connection, records_max=3):
                    async with database.transaction(connection):
                        for record in batch:
                            await pay(connection, "ada", 1 + int(record.value or b""))
                        await batch.save(connection)
                    break
            assert await checkpoints.positions(connection, "orders") == {0: expected}
            total = await database.total(connection)
        assert total == 55

    async def test_the_log_follows_the_database(self, database, connection, checkpoints, transport):
        await transport.produce("orders", [b"1"] * 4)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, connection, records_max=2)
            for lag in (4, 2):
                batch = await anext(loop)
                async with database.transaction(connection):
                    await batch.save(connection)
                assert [one.records for one in await transport.lag("orders", "billing")] == [lag]
                await loop.follow()
            assert [one.records for one in await transport.lag("orders", "billing")] == [0]

    async def test_a_batch_that_was_not_saved_is_noticed(
        self, database, connection, checkpoints, transport
    ):
        await transport.produce("orders", [b"1"] * 4)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, connection, records_max=1)
            await anext(loop)
            with pytest.raises(UsageError, match="not in the database"):
                await anext(loop)

    async def test_a_transaction_that_was_not_committed_is_noticed(
        self, database, connection, checkpoints, transport
    ):
        await transport.produce("orders", [b"1"] * 4)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, connection, records_max=1)
            await anext(loop)
            with pytest.raises(UsageError, match="transaction is open"):
                await paid(database, connection, anext(loop))


async def test_a_blocking_connection_in_a_thread(tmp_path, checkpoints):
    plain = sqlite3.connect(tmp_path / "thread.db", check_same_thread=False)
    await checkpoints.create(plain)

    def work(batch):
        with plain:
            batch.save_blocking(plain)

    async with EmbeddedTransport("memory:") as transport:
        await transport.produce("orders", [b"1"] * 20)
        async with transport.subscribe("orders", "billing") as consumer:
            await asyncio.to_thread(work, await anext(exactly_once(consumer, checkpoints, plain)))
    assert await checkpoints.positions(plain, "orders") == {0: 20}
    plain.close()


async def test_an_asyncio_connection_does_not_block(postgres, checkpoints):
    database = Database("asyncpg", postgres.dsn, [])
    try:
        await clear(database)
        connection = await database.connect()
        await checkpoints.create(connection)
        claim = await checkpoints.claim(connection, "orders", 0, start=0)
        other = await database.connect()
        with pytest.raises(UsageError, match="await save"):
            checkpoints.save_blocking(other, batch_of(0, 1), claim)
    finally:
        await database.close()


async def test_rows_may_be_dictionaries(plain, checkpoints):
    await checkpoints.create(plain)
    plain.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    await checkpoints.claim(plain, "orders", 3, start=9)
    assert await checkpoints.positions(plain, "orders") == {3: 9}


async def test_a_schema_kept_elsewhere(plain):
    checkpoints = DatabaseCheckpoints("billing", table="main.places")
    plain.execute(checkpoints.definition)
    await checkpoints.claim(plain, "orders", 0, start=9)
    assert plain.execute("SELECT next_offset FROM places").fetchone() == (9,)


async def test_wrong_names_and_wrong_connections_are_refused():
    with pytest.raises(InvalidName):
        DatabaseCheckpoints("billing", table="places; DROP TABLE balances")
    with pytest.raises(InvalidName):
        DatabaseCheckpoints("")
    with pytest.raises(NotSupported, match="driver"):
        await DatabaseCheckpoints("billing").create(object())
