"""SIGKILL at any moment: every event takes effect in the user's database exactly once."""

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import Fenced
from penstock.streaming import DatabaseCheckpoints, exactly_once
from penstock.streaming.database_connection import run
from penstock.transports import EmbeddedTransport
from tests.crash.kill_rig import KillRig, processes
from tests.crash.rigs import seed_of
from tests.crash.transformer import Figures
from tests.scoreboard import Scores, amount
from tests.streaming import payer
from tests.streaming.havoc import Havoc

processes.set_forkserver_preload([payer.__name__])


class Killing(KillRig):
    """Kills the one that books payments, again and again, and looks at the books."""

    program = payer

    def __init__(self, path: Path, seed: int, dsn: str = "") -> None:
        super().__init__(path, seed)
        self.dsn = dsn
        self.said: Counter[str] = Counter()

    def note(self, said, *words) -> None:
        self.said[said] += 1

    def orders(self, *, finish: bool = False):
        orders = super().orders(finish=finish)
        orders.dsn = self.dsn
        if orders.dies and self.random.random() < 0.6:
            orders.dies = "point"
            orders.dies_at = self.random.randint(1, 60)
        return orders

    def run(self, kills: int, scored: Scores, seed: int) -> None:
        while self.kills < kills:
            self.round()
        sent, booked = self.finish()
        print(f"{self.kills} kills, {sum(one.number for one in sent.values())} payments")
        assert booked == sent
        assert self.said["committed"] > kills, "there was something to book"
        scored(13, tried=self.kills, bad=0, seed=seed)

    def finish(self) -> tuple[dict, dict]:
        """Book what is left; what the topic says and what the books say."""
        orders = self.orders(finish=True)
        asyncio.run(payer.work(orders, lambda *_: None))
        return asyncio.run(self.read(orders))

    async def read(self, orders) -> tuple[dict, dict]:
        """What the topic says and what the books say: the figures of each account."""
        cents: dict[str, list[int]] = {}
        async with EmbeddedTransport(self.path) as transport:
            async for record in transport.queue.replay(payer.TOPIC):
                cents.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
        connection = await payer.connect(orders)
        question = "SELECT account, payments, cents, least, most FROM balances"
        answer = await run(connection, question)
        ending = connection.close()
        if ending is not None:
            await ending
        booked = {account: Figures(*figures) for account, *figures in answer.rows}
        return {account: Figures.of(mine) for account, mine in cents.items()}, booked


async def drop_tables(dsn: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(dsn)
    await connection.execute("DROP TABLE IF EXISTS balances, penstock_checkpoints")
    await connection.close()


@pytest.mark.acceptance(84)
def test_killed_consumers_book_each_payment_once_in_sqlite(request, folder, scored):
    seed = seed_of(request)
    Killing(folder, seed).run(20, scored, seed)


@pytest.mark.acceptance(84)
def test_killed_consumers_book_each_payment_once_in_postgresql(request, folder, postgres, scored):
    seed = seed_of(request)
    asyncio.run(drop_tables(postgres.dsn))
    Killing(folder, seed, postgres.dsn).run(8, scored, seed)


@pytest.mark.torture
@pytest.mark.acceptance(84)
@pytest.mark.timeout(1800)
def test_hundreds_of_killed_consumers_book_each_payment_once_in_sqlite(request, folder, scored):
    seed = seed_of(request)
    Killing(folder, seed).run(max(3, amount(13) // 5), scored, seed)


@pytest.mark.torture
@pytest.mark.acceptance(84)
@pytest.mark.timeout(1800)
def test_dozens_of_killed_consumers_book_each_payment_once_in_postgresql(
    request, folder, postgres, scored
):
    seed = seed_of(request)
    asyncio.run(drop_tables(postgres.dsn))
    Killing(folder, seed, postgres.dsn).run(max(3, amount(13) // 20), scored, seed)


class TestGroupsOfProcesses:
    """Several members book at the same time; some are killed, some wake up as zombies."""

    def run(self, request, folder, rounds, scored, dsn=""):
        seed = seed_of(request)

        def target(role, number, seed):
            orders = payer.Orders(str(folder), seed, number, dsn=dsn, hesitates=0.02)
            return payer.run_alone, (orders,)

        havoc = Havoc(seed, ["booker"] * 3, target, 6 * payer.LEASE_SECONDS, 0.2)
        havoc.run(rounds)
        rig = Killing(folder, 0, dsn)
        sent, booked = rig.finish()
        print(f"{havoc.kills} kills, {havoc.pauses} pauses")
        assert booked == sent
        assert len(sent) == len(payer.ACCOUNTS)
        # The last three are killed at the end.
        scored(13, tried=havoc.kills + 3, bad=0, seed=seed, pauses=havoc.pauses)

    @pytest.mark.acceptance(84)
    def test_a_group_books_each_payment_once_in_sqlite(self, request, folder, scored):
        self.run(request, folder, 8, scored)

    @pytest.mark.torture
    @pytest.mark.acceptance(84)
    @pytest.mark.timeout(1800)
    def test_a_group_books_each_payment_once_in_sqlite_for_long(self, request, folder, scored):
        self.run(request, folder, max(8, 3 * amount(13) // 10), scored)

    @pytest.mark.torture
    @pytest.mark.acceptance(84)
    @pytest.mark.timeout(1800)
    def test_a_group_books_each_payment_once_in_postgresql(self, request, folder, postgres, scored):
        asyncio.run(drop_tables(postgres.dsn))
        self.run(request, folder, max(8, amount(13) // 10), scored, postgres.dsn)


async def compete(transport, path, name, chance, total):
    """Book payments as if nobody else did; begin again when fenced. How often that was."""
    fences = 0
    checkpoints = DatabaseCheckpoints("booking")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        async with transport.subscribe("payments", name) as consumer:
            while sum((await checkpoints.positions(connection, "payments")).values()) < total:
                loop = exactly_once(consumer, checkpoints, connection, records_max=3)
                try:
                    await asyncio.wait_for(book_some(loop, connection, chance), 0.2)
                except Fenced:
                    fences += 1
                except TimeoutError:
                    pass
                await asyncio.sleep(chance.uniform(0, 0.01))
    return fences


async def book_some(loop, connection, chance):
    async for batch in loop:
        await asyncio.sleep(chance.choice([0, 0, 0, 0.001]))
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            for record in batch:
                connection.execute(
                    "INSERT INTO booked VALUES (?, ?)", [record.partition, record.offset]
                )
            await batch.save(connection)


@pytest.mark.acceptance(84)
async def test_two_that_both_think_they_are_the_group_book_each_payment_once(request, tmp_path):
    """The worst case: nobody but the database keeps them apart."""
    chance = random.Random(seed_of(request))
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as connection:
        # No key: a payment that is booked twice shows.
        connection.execute("CREATE TABLE booked (part INTEGER, number INTEGER)")
        await DatabaseCheckpoints("booking").create(connection)
        async with EmbeddedTransport("memory:") as transport:
            await transport.create_topic("payments", partitions=2)
            await transport.produce("payments", [b"1"] * 300)
            fences = await asyncio.gather(
                compete(transport, path, "one", chance, 300),
                compete(transport, path, "two", chance, 300),
            )
        booked = connection.execute("SELECT part, number FROM booked").fetchall()
    assert len(booked) == len(set(booked)) == 300
    assert sum(fences) > 0, "they met"
