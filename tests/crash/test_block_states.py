"""Power cuts at the block layer: what was flushed is there, the rest torn, reordered or lost."""

import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.crash.block_rig import Cut, LoggedDisk, Replay, State, choose_cuts
from tests.crash.ledger import Ledger
from tests.crash.rigs import Child, Frame, scoring, seed_of
from tests.crash.said import Kind, Out, Said, Spec
from tests.crash.writer import Writer
from tests.scoreboard import Scores, amount, short_amount

STEPS = 60
PARTS = 20
CONFIGS: list[dict[str, Any]] = [
    {"fsync": "every_message", "partitions": 2},
    {"fsync": "every_message", "partitions": 1, "retention": {"bytes_max": 12_000}},
    {"fsync": "every_n_messages", "fsync_messages": 10, "partitions": 2},
    {"fsync": "timed", "fsync_interval_ms": 20, "partitions": 1},
]
SMALL_SEGMENTS = {"segment_bytes_max": 6_000}
SUBSCRIBER = "reader"


class Heard(Out):
    """Takes in what a writer says, with the place in the log of the disk where it was said."""

    def __init__(self, disk: LoggedDisk, spec: Spec) -> None:
        super().__init__(-1, spec.writer)
        self._disk = disk
        self.frames: list[tuple[int, Frame]] = []

    def say_all(self, frames: Sequence[Said]) -> None:
        at, now = self._disk.log.position(), time.monotonic()
        for kind, partition, a, b, c in frames:
            self.frames.append((at, Frame(kind, self._writer, partition, a, b, c, now)))

    def positions(self) -> list[int]:
        """Where something was promised."""
        promises = {Kind.ACKNOWLEDGED, Kind.MANY, Kind.COMMITTED, Kind.DURABLE, Kind.OPENED}
        return [at for at, frame in self.frames if frame.kind in promises]


class BlockRun:
    """One writer on a logged disk, and then the disks that power cuts could have left of it."""

    def __init__(self, folder: Path, seed: int, config: dict[str, Any], fault: str = "") -> None:
        self._folder = folder
        self._random = random.Random(seed)
        config = {**SMALL_SEGMENTS, **config}
        self.spec = Spec(
            path="",
            topic="orders",
            writer=1,
            seed=self._random.getrandbits(32),
            config=config,
            subscriber=SUBSCRIBER,
            steps=STEPS,
            maintenance=0.01 if "retention" in config else None,
            fault=fault,
        )
        self.acknowledged = self.lost = 0
        self.seen: set[tuple[State, int]] = set()

    def run(self, states: int) -> None:
        with LoggedDisk(self._folder) as disk:
            self.spec.path = str(disk.root / "log")
            heard = Heard(disk, self.spec)
            asyncio.run(Writer(self.spec, heard).run())
            last = disk.log.position()
            with Replay(disk, self._folder) as replay:
                for cut in choose_cuts(self._random, heard.positions(), last, states):
                    self.check(cut, replay, heard)

    def check(self, cut: Cut, replay: Replay, heard: Heard) -> None:
        child = Child(self.spec, 0, -1)
        child.frames = [frame for at, frame in heard.frames if at <= cut.position]
        state = replay.state(cut)
        if (state, len(child.frames)) in self.seen:
            return  # the same bytes and the same promises
        self.seen.add((state, len(child.frames)))
        exact = self.spec.config["fsync"] == "every_message"
        with replay.mounted(state) as root:
            ledger = Ledger(root / "log", "orders", self.spec.config, tears=True)
            ledger.take(child)
            try:
                ledger.check_now(exact=exact, subscribers=[SUBSCRIBER])
            except (AssertionError, PenstockError) as failure:
                failure.add_note(f"{cut}; {self.spec.config}")
                raise
        self.acknowledged += ledger.score.acknowledged
        self.lost += ledger.score.lost


def torment(
    folder: Path,
    request: pytest.FixtureRequest,
    scored: Scores,
    states: int,
    each: int,
    part: int = 0,
) -> None:
    """Try so many crash states, a few of each run of a writer, with each config in turn."""
    chosen = seed_of(request)
    seed = chosen + part * states
    acknowledged = different = 0
    with scoring(scored, 4, chosen) as tried:
        for number, done in enumerate(range(0, states, each)):
            place = folder / str(number)
            place.mkdir()
            run = BlockRun(place, seed + number, CONFIGS[number % len(CONFIGS)])
            tried.count += min(each, states - done)
            run.run(min(each, states - done))
            acknowledged += run.acknowledged
            different += len(run.seen)
            shutil.rmtree(place)
    print(
        f"{request.node.name}: {tried.count} states ({different} different), {acknowledged} promises"
    )


def test_what_was_promised_is_there_in_every_block_state(request, folder, scored):
    torment(folder, request, scored, short_amount(4), each=25)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_block_states(request, folder, scored, part):
    torment(folder, request, scored, -(-amount(4) // PARTS), each=100, part=part)


def test_the_rig_sees_a_layer_that_does_not_flush(request, folder):
    """The rig bites: without syncs, block states miss records that were promised."""
    run = BlockRun(folder, seed_of(request), CONFIGS[0], fault="lies")
    with pytest.raises((AssertionError, PenstockError)) as caught:
        run.run(30)
    print(f"{request.node.name}: caught: {str(caught.value).splitlines()[0]}")
