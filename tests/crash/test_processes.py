"""Several processes publish to and read from one directory at the same time."""

from typing import Any

import pytest

from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from tests.crash.ledger import Ledger
from tests.crash.rigs import Nursery, listen, seed_of
from tests.crash.said import Kind, Spec

CONFIG = {"partitions": 2, "segment_bytes_max": 20_000}


def run_together(nursery: Nursery, request, path, policy: str, steps: int) -> None:
    seed = seed_of(request)
    ledger = Ledger(path, "orders", {**CONFIG, "fsync": policy, "fsync_interval_ms": 20})
    common: dict[str, Any] = {"path": str(path), "topic": "orders", "config": ledger.config}
    writers = [Spec(**common, writer=one, seed=seed + one, steps=steps) for one in (1, 2)]
    reader = Spec(**common, writer=9, seed=seed, subscriber="reader", reads=1)
    # How many there will be is known when the writers are done; so they run once to be counted.
    count = sum(count_records(nursery, spec, path.parent / "dry") for spec in writers)
    reader.reads = count
    reading = nursery.start(reader)
    listen([reading], 20.0, until=[Kind.OPENED])
    writing = [nursery.start(spec) for spec in writers]
    for child in writing:
        assert nursery.wait(child) == 0, child.frames[-3:]
        ledger.take(child)
    assert nursery.wait(reading) == 0, reading.frames[-3:]
    ledger.check_now(again=True)
    read: list[list[tuple[int, int]]] = [[], []]
    for frame in reading.said(Kind.READ):
        assert frame.a == len(read[frame.partition]), "a gap, or a record twice"
        read[frame.partition].append((frame.b, frame.c))
    for partition, found in enumerate(ledger.found):
        own = [numbers for numbers in found if numbers[0] != 0]
        assert read[partition] == own
    (idle,) = reading.said(Kind.IDLE)
    (used,) = reading.said(Kind.USED)
    print(
        f"{request.node.name}: {count} records by 2 writers, all read once by a third process; "
        f"{(used.a + used.b) / 1000:.0f} ms of CPU, {used.c} reads"
    )
    assert idle.a == idle.b, "waiting reads the disk"


def count_records(nursery: Nursery, spec: Spec, path) -> int:
    """How many records a writer publishes: its seed decides that, and nothing else."""
    child = nursery.start(Spec(**{**vars(spec), "path": str(path / str(spec.writer))}))
    assert nursery.wait(child) == 0, child.frames[-3:]
    return child.said(Kind.TRYING)[-1].a


@pytest.mark.acceptance(11)
@pytest.mark.parametrize("policy", ["every_message", "timed"])
def test_a_reader_in_a_third_process_sees_every_record_once(nursery, request, tmp_path, policy):
    run_together(nursery, request, tmp_path / "log", policy, 100)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["every_message", "every_n_messages", "timed"])
@pytest.mark.parametrize("turn", range(5))
def test_a_reader_in_a_third_process_never_misses_a_record(
    nursery, request, tmp_path, policy, turn
):
    run_together(nursery, request, tmp_path / "log", policy, 2_000)


async def test_writers_that_begin_a_log_together_agree_on_what_it_is(tmp_path):
    """Both open it while it is empty; the second rolls segments that the first began."""
    config = TopicConfig(segment_bytes_max=256)
    async with WalMessageQueue(tmp_path) as first, WalMessageQueue(tmp_path) as second:
        for queue in (first, second):
            await queue.create_topic("orders", config)
        for number in range(10):
            await (second if number % 3 else first).publish("orders", bytes(100))
        for queue in (first, second):
            assert len([record async for record in queue.replay("orders")]) == 10
    async with WalMessageQueue(tmp_path) as queue:
        assert len([record async for record in queue.replay("orders")]) == 10
        assert (await queue.publish("orders", b"more")).offset == 10
