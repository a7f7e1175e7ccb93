"""Disks that fail for real: EIO from a sync, a thin device gone full, no space left."""

import asyncio
import errno
import itertools
import re
from pathlib import Path

import pytest

from penstock.errors import Poisoned, StorageError, StoreFailed
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from tests.crash.disks import ThinDisk, mounted_tmpfs, need
from tests.crash.ledger import Ledger
from tests.crash.rigs import Child, run_under_strace
from tests.crash.said import ERRORS, Kind, Spec

STEPS = 12
CONFIG = {"fsync": "every_message", "segment_bytes_max": 1_500}


def simple_spec(ledger: Ledger, **more: object) -> Spec:
    return Spec(
        path=str(ledger.path),
        topic=ledger.topic,
        writer=1,
        seed=1,
        config=ledger.config,
        steps=STEPS,
        simple=True,
        **more,  # type: ignore[arg-type]
    )


def check_poisoned(child: Child) -> bool:
    """After the first failure nothing is acknowledged and every call says Poisoned."""
    # What closing says comes without a record before it.
    outcomes = [
        after
        for before, after in itertools.pairwise(child.frames)
        if before.kind == Kind.TRYING and after.kind in {Kind.ACKNOWLEDGED, Kind.FAILED}
    ]
    kinds = [outcome.kind for outcome in outcomes]
    if Kind.FAILED not in kinds:
        return False
    first = kinds.index(Kind.FAILED)
    assert Kind.ACKNOWLEDGED not in kinds[first:], "acknowledged after a failed sync"
    errors = [ERRORS[outcome.a] for outcome in outcomes[first:]]
    assert issubclass(errors[0], StorageError)
    assert all(error is Poisoned for error in errors[1:]), errors
    return True


def fail_sync(tmp_path: Path, call: str, when: str) -> bool:
    """Let one sync fail; whether there was one that late."""
    ledger = Ledger(tmp_path / "log", "orders", CONFIG)
    trace = tmp_path / "trace"
    options = ["-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}"]
    child, _ = run_under_strace(simple_spec(ledger), options, trace)
    injected = trace.read_text().count("INJECTED")
    if check_poisoned(child) and "+" not in when and call.endswith("sync"):
        assert injected == 1
        check_not_tried_again(trace.read_text())
    ledger.take(child)
    ledger.check_now(again=True)
    return injected > 0


def check_not_tried_again(trace: str) -> None:
    """No second sync of the file whose sync has failed: it would say that all is well."""
    failed = re.search(r"f(?:data)?sync\((\d+)\).*INJECTED", trace)
    assert failed is not None
    later = trace[failed.end() :]
    assert f"sync({failed[1]})" not in later


@pytest.mark.acceptance(53)
@pytest.mark.parametrize("when", ["3", "5", "9+"])
def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path, when, scored):
    need("strace", "strace")
    assert fail_sync(tmp_path, "fdatasync", when)
    scored(9, tried=1, bad=0)


@pytest.mark.acceptance(53)
def test_after_a_failed_sync_of_a_name_nothing_is_acknowledged(tmp_path, scored):
    need("strace", "strace")
    assert fail_sync(tmp_path, "fsync", "2")
    scored(9, tried=1, bad=0)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", ["fdatasync", "fsync", "pwritev2", "rename"])
@pytest.mark.parametrize("forever", ["", "+"], ids=["once", "forever"])
def test_any_failed_call_is_survived(tmp_path, request, call, forever, scored):
    """Every call in turn fails, once or from then on: a typed error, and nothing is lost."""
    need("strace", "strace")
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not fail_sync(folder, call, f"{number}{forever}"):
            print(f"{request.node.name}: {number - 1} failures injected, 0 lost")
            scored(9 if call.endswith("sync") else 10, tried=number - 1, bad=0)
            return


# ----------------------------------------------------------------------------- really full disks


@pytest.mark.acceptance(53)
@pytest.mark.parametrize("policy", ["every_message", "timed"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "from disk"])
def test_a_full_thin_device_poisons_and_loses_nothing(
    tmp_path, nursery, request, cached, policy, scored
):
    """The real thing behind failed syncs: the kernel takes the writes and cannot keep them.

    The first sync fails, a second one would succeed, and the bytes are gone, though the page
    cache still shows them. Opened again while they are ``cached``, the log must not believe that.
    """
    with ThinDisk(tmp_path, spare_bytes=4_000_000) as disk:
        config = {"fsync": policy, "fsync_interval_ms": 20}
        ledger = Ledger(disk.root / "log", "orders", config, record_bytes=100_000)
        spec = simple_spec(ledger, record_bytes=100_000)
        spec.steps = 300
        child = nursery.start(spec)
        nursery.wait(child)
        assert check_poisoned(child), "the device did not get full"
        ledger.take(child)
        disk.extend()
        if cached:
            ledger.check_now(again=True, exact=policy == "every_message")
        disk.forget_cache()
        ledger.check_now(again=True, exact=policy == "every_message")
        print(f"{request.node.name}: {ledger.score}")
        assert ledger.score.acknowledged > 20
        scored(9, tried=1, bad=0)


@pytest.mark.acceptance(53)
async def test_no_space_left_is_a_typed_error_and_readers_go_on(tmp_path, request, scored):
    value = bytes(100_000)
    with mounted_tmpfs(tmp_path / "small", "3m") as small:
        filler = small / "filler"
        filler.write_bytes(bytes(1_000_000))
        acknowledged = 0
        config = TopicConfig(segment_bytes_max=500_000)
        async with WalMessageQueue(small / "log") as queue:
            await queue.create_topic("orders", config)
            async with queue.subscribe("orders", "billing") as subscription:
                failure = None
                while failure is None:
                    try:
                        await queue.publish("orders", value)
                        acknowledged += 1
                    except StoreFailed as error:
                        failure = error
                assert failure.fields["errno"] == errno.ENOSPC
                for _ in range(3):
                    with pytest.raises(Poisoned):
                        await queue.publish("orders", value)
                found = [record.offset async for record in queue.replay("orders")]
                assert found == list(range(acknowledged))
                batch = await anext(aiter(subscription.batches()))
                assert batch.records[0].value == value
        filler.unlink()
        async with WalMessageQueue(small / "log") as queue:
            more = await queue.publish("orders", b"more")
            assert more.offset >= acknowledged
            values = [record.value async for record in queue.replay("orders")]
            assert values[:acknowledged] == [value] * acknowledged
            assert values[-1] == b"more"
        print(f"{request.node.name}: {acknowledged} acknowledged, 0 lost")
        scored(10, tried=1, bad=0)


@pytest.mark.parametrize("left", range(0, 60_000, 6_000))
def test_no_space_left_at_any_point_loses_nothing(tmp_path, left, scored):
    """Also at the roll of a segment, at an offset commit and when a topic is made."""

    async def publish(path: Path) -> int:
        count = 0
        try:
            async with WalMessageQueue(path) as queue:
                await queue.create_topic("orders", TopicConfig(segment_bytes_max=9_000))
                async with queue.subscribe("orders", "billing") as subscription:
                    for _ in range(40):
                        await queue.publish("orders", b"%d" % count + bytes(3_000))
                        count += 1
                        await subscription.commit(await anext(aiter(subscription)))
        except StorageError:
            return count
        raise AssertionError("the disk did not get full")

    async def check(path: Path, count: int) -> None:
        async with WalMessageQueue(path) as queue:
            values = [record.value async for record in queue.replay("orders")]
            assert values[:count] == [b"%d" % number + bytes(3_000) for number in range(count)]
            assert len(values) <= count + 1
            async with queue.subscribe("orders", "billing") as subscription:
                assert count - 1 <= subscription.positions()[0] <= count
            assert (await queue.publish("orders", b"more")).offset == len(values)

    with mounted_tmpfs(tmp_path / "small", "200k") as small:
        filler = small / "filler"
        filler.write_bytes(bytes(140_000 - left))
        count = asyncio.run(publish(small / "log"))
        filler.unlink()
        asyncio.run(check(small / "log", count))
    scored(10, tried=1, bad=0)
