"""Approvals with a log: what waits survives stops, kills and failing disks."""

import asyncio

import pytest

from penstock import WalMessageQueue
from penstock.bus.approval import Approval, ApprovalOutcome, ApprovalVerdict
from penstock.bus.bus import MessageBus
from penstock.errors import Closed, StoreFailed
from penstock.messages import Code
from penstock.system import System
from tests.bus.approval_world import HOUR, Refund, make_bus, request, settled


async def killed(bus, journals):
    journals.kill()
    await bus.stop(drain=False)


async def restarted(clock, refunded, journals, **options):
    bus = make_bus(clock, refunded, log=journals, **options)
    await bus.start()
    await settled()
    return bus


@pytest.mark.acceptance(142)
async def test_what_waits_survives_a_kill_and_can_be_decided(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    tasks = []
    for order in ("yes", "no", "late"):
        task, _ = await request(bus, Refund(order, 7), headers={"tenant": "a"}, timeout=5)
        tasks.append(task)
    before = bus.approvals.pending()
    await killed(bus, journals)
    await asyncio.wait(tasks)
    clock.advance(60)
    async with await restarted(clock, refunded, journals) as bus:
        shown = bus.approvals.pending()
        assert shown == before
        assert shown[0].command == Refund("yes", 7)
        await bus.approvals.approve(shown[0].id, by="ann")
        await bus.approvals.deny(shown[1].id, by="ann")
        await settled()
        assert refunded == [(Refund("yes", 7), shown[0].id)]
        (ended,) = bus.approvals.results()
        assert ended.approval.id == shown[0].id
        assert ended.result.unwrap() == "refunded yes"
        clock.advance(HOUR - 60)
        await settled()
        assert bus.approvals.pending() == []
        assert bus.approvals.statistics().expired == 1
    assert journals.held["bus.approvals"] == {}
    assert len(refunded) == 1


@pytest.mark.acceptance(142)
async def test_what_expired_while_the_bus_was_down_expires_at_the_start(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    task, _ = await request(bus)
    await killed(bus, journals)
    await asyncio.wait([task])
    clock.advance(HOUR)
    decided: list[ApprovalOutcome] = []
    bus = make_bus(clock, refunded, log=journals)
    bus.approvals.on_decided(decided.append)
    async with bus:
        await settled()
        assert bus.approvals.pending() == []
        assert [one.verdict for one in decided] == [ApprovalVerdict.EXPIRED]
    assert journals.held["bus.approvals"] == {}
    assert refunded == []


async def test_a_stopped_bus_leaves_what_waits_in_the_journal(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    task, shown = await request(bus)
    await bus.stop()
    assert isinstance((await task).error, Closed)
    async with await restarted(clock, refunded, journals) as bus:
        assert [one.id for one in bus.approvals.pending()] == [shown.id]


@pytest.mark.acceptance(142)
async def test_an_approval_is_on_disk_before_the_handler_runs(clock, journals):
    """So the handler runs again, with the same id, when the process dies in it."""
    started, never, ids = asyncio.Event(), asyncio.Event(), []
    bus = MessageBus(system=System(clock=clock), log=journals)

    @bus.handles(Refund, approval=Approval())
    async def refund(command, envelope):
        ids.append(envelope.id)
        started.set()
        await never.wait()

    await bus.start()
    task, shown = await request(bus)
    await bus.approvals.approve(shown.id, by="ann")
    await started.wait()
    journals.kill()
    task.cancel()
    await bus.stop(drain=False)
    refunded: list[tuple[Refund, str]] = []
    async with await restarted(clock, refunded, journals) as bus:
        assert bus.approvals.pending() == []
        assert refunded == [(Refund("o-1"), shown.id)]
        assert ids == [shown.id]
    assert journals.held["bus.approvals"] == {}
    async with await restarted(clock, refunded, journals):
        assert len(refunded) == 1


async def test_what_waits_is_listed_as_soon_as_the_bus_is_started(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    _, shown = await request(bus)
    await bus.stop()
    async with make_bus(clock, refunded, log=journals) as bus:
        assert bus.approvals.pending() == [shown]


async def test_a_decision_while_the_bus_stops_counts_after_the_restart(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    task, shown = await request(bus)
    deciding = asyncio.ensure_future(bus.approvals.approve(shown.id, by="ann"))
    await asyncio.sleep(0)
    await bus.stop()
    await deciding
    assert isinstance((await task).error, Closed)
    assert refunded == []
    async with await restarted(clock, refunded, journals):
        assert refunded == [(Refund("o-1"), shown.id)]


async def test_a_withdrawn_approval_is_gone_after_a_restart(clock, refunded, journals):
    async with await restarted(clock, refunded, journals) as bus:
        task, _ = await request(bus)
        task.cancel()
        await asyncio.wait([task])
    assert journals.held["bus.approvals"] == {}


async def test_a_command_that_cannot_be_kept_does_not_wait(clock, refunded, journals):
    async with await restarted(clock, refunded, journals) as bus:
        journals.failure = StoreFailed("the disk is full")
        result = await bus.execute(Refund("o-1"))
        assert isinstance(result.error, StoreFailed)
        assert bus.approvals.pending() == []
        assert bus.statistics().timers == 0


async def test_a_decision_that_cannot_be_kept_is_none(clock, refunded, journals):
    async with await restarted(clock, refunded, journals) as bus:
        task, shown = await request(bus)
        journals.failure = StoreFailed("the disk is full")
        for decide in (bus.approvals.approve, bus.approvals.deny):
            with pytest.raises(StoreFailed):
                await decide(shown.id, by="ann")
        assert refunded == []
        journals.failure = None
        await bus.approvals.approve(shown.id, by="ann")
        assert (await task).success


async def test_an_approval_expires_though_its_decision_failed(clock, refunded, journals):
    async with await restarted(clock, refunded, journals) as bus:
        task, shown = await request(bus)
        journals.failure = StoreFailed("the disk is full")
        deciding = asyncio.ensure_future(bus.approvals.approve(shown.id, by="ann"))
        await asyncio.sleep(0)
        clock.advance(HOUR)
        with pytest.raises(StoreFailed):
            await deciding
        assert (await task).code is Code.EXPIRED


async def test_a_decision_is_made_though_who_decides_is_cancelled(clock, refunded, journals):
    async with await restarted(clock, refunded, journals) as bus:
        task, shown = await request(bus)
        deciding = asyncio.ensure_future(bus.approvals.approve(shown.id, by="ann"))
        await asyncio.sleep(0)
        deciding.cancel()
        assert (await task).success
        await asyncio.wait([deciding])


async def test_an_approved_command_without_a_handler_waits_for_one(clock, refunded, journals):
    bus = await restarted(clock, refunded, journals)
    task, shown = await request(bus)
    await killed(bus, journals)
    await asyncio.wait([task])
    bus = MessageBus(system=System(clock=clock), log=journals)
    async with bus:
        await settled()
        await bus.approvals.approve(shown.id, by="ann")
        await settled()
        assert bus.approvals.results() == []
    async with MessageBus(system=System(clock=clock), log=journals) as bus:
        await settled()

        @bus.handles(Refund)
        async def refund(command):
            refunded.append(command)

        await settled()
        assert refunded == [Refund("o-1")]
    assert journals.held["bus.approvals"] == {}


async def test_a_command_that_does_not_decode_stays_in_the_journal(
    clock, refunded, journals, caplog
):
    bus = await restarted(clock, refunded, journals)
    task, _ = await request(bus)
    await killed(bus, journals)
    await asyncio.wait([task])
    held = journals.held["bus.approvals"]
    for key, value in held.items():
        held[key] = value.replace(b"Refund", b"Defund")
    async with await restarted(clock, refunded, journals) as bus:
        assert bus.approvals.pending() == []
        assert bus.approvals.statistics().unreadable == 1
    assert len(held) == 1
    assert "stays in the journal" in caplog.text


@pytest.mark.acceptance(142)
async def test_approvals_on_the_real_log_survive(clock, refunded, tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        async with make_bus(clock, refunded, log=queue) as bus:
            tasks = [asyncio.ensure_future(bus.execute(Refund(f"o-{at}"))) for at in range(20)]
            while bus.approvals.statistics().pending < 20:
                await asyncio.sleep(0)
            shown = bus.approvals.pending()
        results = await asyncio.gather(*tasks)
        assert all(isinstance(result.error, Closed) for result in results)
    async with WalMessageQueue(tmp_path) as queue:
        async with make_bus(clock, refunded, log=queue) as bus:
            while len(bus.approvals.pending()) < 20:
                await asyncio.sleep(0)
            for one in shown[:10]:
                await bus.approvals.approve(one.id, by="ann")
            await settled()
            assert [command.order for command, _ in refunded] == [f"o-{at}" for at in range(10)]
