"""SIGKILL at any moment: a payment is copied and summed once, a row of an outbox stands once."""

import asyncio
import os
import signal
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.log.transaction import Transaction
from penstock.log.verify import verify
from penstock.transports.embedded import EmbeddedTransport
from tests.crash import transformer
from tests.crash.kill_rig import KillRig, processes
from tests.crash.rigs import seed_of
from tests.crash.transformer import COPIES, GROUP, KEYS, PAYMENTS, ROWS, SMALL, SUMS, Figures
from tests.scoreboard import Scores, amount, short_amount

processes.set_forkserver_preload([transformer.__name__])


class Books(KillRig):
    """Kills whoever transforms, again and again; the oracle is the input itself."""

    program = transformer
    patience_max = 60

    def __init__(self, path: Path, seed: int, payments: int) -> None:
        super().__init__(path, seed)
        self.batches = 0
        self.payments = [
            (b"%d" % (one % KEYS), self.random.randrange(100)) for one in range(payments)
        ]

    def orders(self, *, finish: bool = False):
        orders = super().orders(finish=finish)
        orders.first = -1
        return orders

    def note(self, said, *words) -> None:
        self.batches += said == "batch"

    async def fill(self) -> None:
        async with EmbeddedTransport(self.path) as transport:
            await transport.queue.create_topic(PAYMENTS, replace(SMALL, partitions=3))
            values = [b"%d" % amount for _, amount in self.payments]
            keys = [key for key, _ in self.payments]
            await transport.produce(PAYMENTS, values, keys=keys)

    def run(self, kills: int) -> None:
        asyncio.run(self.fill())
        while self.kills < kills:
            self.round()
        asyncio.run(transformer.work(self.orders(finish=True), lambda *_: None))
        asyncio.run(self.check())
        assert self.batches > kills, "there was something to lose"
        print(f"{self.kills} kills, {self.batches} batches begun, {len(self.payments)} payments")

    async def check(self) -> None:
        """Echo, count, sum, least and most of each key, from the input and from what was made of it."""
        async with EmbeddedTransport(self.path) as transport:
            copies = [
                (one.key, int(one.value or b"")) async for one in transport.queue.replay(COPIES)
            ]
            figures = [
                (one.key, msgspec.json.decode(one.value or b"", type=Figures))
                async for one in transport.queue.replay(SUMS)
            ]
            lag = await transport.lag(PAYMENTS, GROUP)
        assert not any(one.records for one in lag)
        for key in {key for key, _ in self.payments}:
            mine = [amount for other, amount in self.payments if other == key]
            echo = [amount for other, amount in copies if other == key]
            lost, more = Counter(mine) - Counter(echo), Counter(echo) - Counter(mine)
            assert echo == mine, (
                f"{key!r}: lost, doubled or out of order: lost {lost}, doubled {more}; {echo} of {mine}"
            )
            parts = [one for other, one in figures if other == key]
            assert Figures.together(parts) == Figures.of(mine), f"{key!r}: lost or doubled"
        report = await asyncio.to_thread(verify, self.path)
        assert report.sound, report.problems


class CrowdedBooks(Books):
    """Several transform at the same time; some are killed, some stopped until they are zombies."""

    crowd = 3
    """How many at a time."""

    def start(self):
        orders = self.orders()
        orders.dies = ""
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=self.program.run, args=(orders, theirs), daemon=True)
        child.start()
        theirs.close()
        return child, ours

    def listen(self, living, batches: int) -> None:
        """Until so many batches were begun, or nobody says anything for a second."""
        until = self.batches + batches
        links = [link for _, link in living]
        while self.batches < until and (ready := wait(links, 1.0)):
            for link in [one for one in links if one in ready]:
                if not self.hear(link, 0):
                    links.remove(link)

    def run_crowd(self, kills: int) -> None:
        asyncio.run(self.fill())
        living = [self.start() for _ in range(self.crowd)]
        while self.kills < kills:
            self.listen(living, self.random.randint(1, 20))
            child, link = victim = living.pop(0)
            if self.random.random() < 0.4:
                # Long enough to be taken for dead.
                os.kill(child.pid, signal.SIGSTOP)
                self.listen(living, 10)
                os.kill(child.pid, signal.SIGCONT)
                living.append(victim)
                continue
            child.kill()
            child.join()
            link.close()
            assert child.exitcode == -signal.SIGKILL, (
                f"the program ended by itself: {child.exitcode}"
            )
            self.kills += 1
            living.append(self.start())
        for child, link in living:
            child.kill()
            child.join()
            link.close()
        asyncio.run(transformer.work(self.orders(finish=True), lambda *_: None))
        asyncio.run(self.check())
        print(f"{self.kills} kills in a crowd, {self.batches} batches begun")


class Outbox(KillRig):
    """Kills the relay, again and again; rows whose acknowledgement was not heard come again."""

    program = transformer
    patience_max = 150

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.heard = -1

    def orders(self, *, finish: bool = False):
        orders = super().orders(finish=finish)
        orders.first = max(0, self.heard + 1 - self.random.choice([0, 0, 3, 50]))
        return orders

    def note(self, said, *words) -> None:
        if said == "stands":
            self.heard = max(self.heard, words[0])

    def run(self, kills: int) -> None:
        while self.kills < kills:
            self.round()
        asyncio.run(transformer.work(self.orders(finish=True), lambda *_: None))
        asyncio.run(self.check())
        assert self.heard > kills
        print(f"{self.kills} kills, {self.heard + 1} rows acknowledged")

    async def check(self) -> None:
        async with EmbeddedTransport(self.path) as transport:
            found = [int(one.value or b"") async for one in transport.queue.replay(ROWS)]
        counts = Counter(found)
        assert sorted(counts) == list(range(len(counts))), "a row is missing"
        assert set(counts.values()) == {1}, "a row stands twice"
        assert len(counts) > self.heard, "an acknowledged row is missing"
        for key in range(KEYS):
            mine = [row for row in found if row % KEYS == key]
            assert mine == sorted(mine), "the rows of a key are out of order"


FEW, IN_A_CROWD = 20, 5
OF_A_RELAY = short_amount(13) - FEW - IN_A_CROWD
"""How many kills each gets in the tests of every day: the relay, which is up again at once, the most."""


def tell(scored: Scores, rig: KillRig, seed: int, began: float) -> None:
    """The rig has compared everything: what is wrong has failed by now."""
    seconds = (time.monotonic() - began) / rig.kills
    scored(13, tried=rig.kills, bad=0, seed=seed, seconds_per_kill=seconds)


def check_books(folder: Path, seed: int, kills: int, scored: Scores, part: int = 0) -> None:
    rig, began = Books(folder, seed + part, 300 * kills), time.monotonic()
    rig.run(kills)
    tell(scored, rig, seed, began)


def check_outbox(folder: Path, seed: int, kills: int, scored: Scores, part: int = 0) -> None:
    rig, began = Outbox(folder, seed + part), time.monotonic()
    rig.run(kills)
    tell(scored, rig, seed, began)


def check_crowd(folder: Path, seed: int, kills: int, scored: Scores) -> None:
    rig, began = CrowdedBooks(folder, seed, 400 * kills), time.monotonic()
    rig.run_crowd(kills)
    tell(scored, rig, seed, began)


@pytest.mark.acceptance(84)
def test_killed_transforms_lose_and_double_nothing(request, folder, scored):
    check_books(folder, seed_of(request), FEW, scored)


@pytest.mark.acceptance(84)
def test_rows_of_a_killed_relay_stand_once(request, folder, scored):
    check_outbox(folder, seed_of(request), OF_A_RELAY, scored)


def test_a_crowd_with_killed_and_stopped_members_loses_and_doubles_nothing(request, folder, scored):
    check_crowd(folder, seed_of(request), IN_A_CROWD, scored)


def test_a_record_that_is_lost_is_seen(request, folder, monkeypatch):
    """The oracle finds what it is there to find: offsets that move without one of their records."""
    publish_many = Transaction.publish_many

    async def forgetful(transaction: Any, topic: str, values: Any, **columns: Any) -> None:
        fewer = {name: column and column[:-1] for name, column in columns.items()}
        await publish_many(transaction, topic, values[:-1], **fewer)

    monkeypatch.setattr(Transaction, "publish_many", forgetful)
    with pytest.raises(AssertionError, match="lost, doubled"):
        Books(folder, seed_of(request), 50).run(0)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_crowd_of_which_many_are_killed_loses_and_doubles_nothing(request, folder, scored):
    check_crowd(folder, seed_of(request), max(3, amount(13) // 10), scored)


@pytest.mark.torture
@pytest.mark.acceptance(84)
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(2))
def test_many_killed_transforms_lose_and_double_nothing(request, folder, scored, part):
    check_books(folder, seed_of(request), max(3, amount(13) // 10), scored, part)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(2))
def test_rows_of_a_relay_killed_again_and_again_stand_once(request, folder, scored, part):
    check_outbox(folder, seed_of(request), max(3, amount(13) // 10), scored, part)
