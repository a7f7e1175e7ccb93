"""Commands that wait for a yes, on a clock that the test moves."""

import asyncio
from datetime import UTC, datetime

import pytest

from penstock.bus import approvals as approvals_module
from penstock.bus.approval import Approval, ApprovalOutcome, ApprovalVerdict, Decision
from penstock.bus.bus import MessageBus
from penstock.errors import (
    ApprovalDenied,
    ApprovalExpired,
    BufferFull,
    Closed,
    DeadlineExceeded,
    HandlerFailed,
    InvalidDecision,
    InvalidOption,
    NotPending,
)
from penstock.messages import Code
from penstock.system import System
from tests.bus.approval_world import HOUR, Plain, Refund, asked, make_bus, request, settled


@pytest.fixture
async def bus(clock, refunded):
    async with make_bus(clock, refunded) as bus:
        yield bus


# ----------------------------------------------------------------------------------- deciding


@pytest.mark.acceptance(142)
async def test_an_approved_command_runs(bus, refunded, clock):
    task, shown = await request(bus, Refund("o-1", 20), headers={"tenant": "a"})
    assert shown.command == Refund("o-1", 20)
    assert shown.headers == {"tenant": "a"}
    assert shown.requested == datetime.fromtimestamp(clock.time_ms() / 1000, UTC)
    assert (shown.expires - shown.requested).total_seconds() == HOUR
    assert refunded == []
    await bus.approvals.approve(shown.id, by="ann")
    result = await task
    assert result.unwrap() == "refunded o-1"
    assert refunded == [(Refund("o-1", 20), shown.id)]
    assert result.metadata["id"] == shown.id
    assert bus.approvals.pending() == []


@pytest.mark.acceptance(142)
async def test_a_denied_command_does_not_run(bus, refunded):
    task, shown = await request(bus)
    await bus.approvals.deny(shown.id, by="ann", reason="too much")
    result = await task
    assert result.code is Code.DENIED
    assert isinstance(result.error, ApprovalDenied)
    assert result.error.fields == {
        "approval_id": shown.id,
        "reason": "too much",
        "decided_by": "ann",
    }
    sending = asyncio.ensure_future(bus.send(Refund("o-2")))
    (shown,) = await asked(bus)
    await bus.approvals.deny(shown.id, by="ann")
    with pytest.raises(ApprovalDenied, match="ann"):
        await sending
    assert refunded == []


@pytest.mark.acceptance(142)
async def test_an_approval_expires_at_its_time_and_not_before(bus, clock, refunded):
    task, shown = await request(bus)
    clock.advance(HOUR - 0.001)
    await settled()
    assert not task.done()
    clock.advance(0.001)
    result = await task
    assert result.code is Code.EXPIRED
    assert isinstance(result.error, ApprovalExpired)
    assert result.error.approval_id == shown.id
    assert refunded == []
    with pytest.raises(NotPending):
        await bus.approvals.approve(shown.id, by="ann")


@pytest.mark.acceptance(142)
async def test_the_answer_comes_without_any_time_passing(bus):
    """No polling: the clock of the test stands still."""
    task, shown = await request(bus)
    timers = bus.statistics().timers
    assert timers <= 1
    await bus.approvals.approve(shown.id, by="ann")
    await settled()
    assert task.done()
    assert bus.statistics().timers == 0


async def test_the_timeout_of_the_command_counts_from_the_approval_on(clock):
    never = asyncio.Event()
    async with MessageBus(system=System(clock=clock)) as bus:

        @bus.handles(Refund, approval=Approval(expires=HOUR))
        async def refund(command):
            if command.order == "slow":
                await never.wait()
            return "done"

        task, shown = await request(bus, Refund("quick"), timeout=1)
        clock.advance(HOUR / 2)
        await bus.approvals.approve(shown.id, by="ann")
        assert (await task).unwrap() == "done"
        task, shown = await request(bus, Refund("slow"), timeout=1)
        clock.advance(HOUR / 2)
        await bus.approvals.approve(shown.id, by="ann")
        await settled()
        clock.advance(1)
        result = await task
        assert result.code is Code.TIMEOUT
        assert isinstance(result.error, DeadlineExceeded)


async def test_a_decision_is_final(bus):
    task, shown = await request(bus)
    both = await asyncio.gather(
        bus.approvals.approve(shown.id, by="ann"),
        bus.approvals.deny(shown.id, by="bob"),
        return_exceptions=True,
    )
    assert both[0] is None
    assert isinstance(both[1], NotPending)
    assert (await task).success
    for name in (shown.id, "nobody"):
        with pytest.raises(NotPending):
            await bus.approvals.deny(name, by="ann")


@pytest.mark.acceptance(142)
async def test_cancelling_the_caller_withdraws_the_approval(bus, refunded):
    task, shown = await request(bus)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bus.approvals.pending() == []
    with pytest.raises(NotPending):
        await bus.approvals.approve(shown.id, by="ann")
    assert refunded == []
    assert bus.approvals.statistics().withdrawn == 1
    assert bus.statistics().timers == 0


async def test_other_commands_do_not_wait(bus):
    @bus.handles(Plain)
    async def plain(command):
        return command.text

    assert await bus.send(Plain("now")) == "now"


async def test_what_the_handler_raises_is_its_error(bus):
    async with MessageBus() as bus:

        @bus.handles(Refund, approval=Approval())
        def refund(command):
            raise ValueError("no money")

        task = asyncio.ensure_future(bus.send(Refund("o-1")))
        (shown,) = await asked(bus)
        await bus.approvals.approve(shown.id, by="ann")
        with pytest.raises(HandlerFailed, match="no money"):
            await task


@pytest.mark.acceptance(135, 142)
async def test_middleware_runs_when_the_command_does(bus):
    passed = []

    async def note(envelope, following):
        passed.append(envelope.id)
        return (await following(envelope)) + "!"

    bus.use(note, events=False)
    task, shown = await request(bus)
    assert passed == []
    await bus.approvals.approve(shown.id, by="ann")
    assert (await task).unwrap() == "refunded o-1!"
    assert passed == [shown.id]
    task, shown = await request(bus)
    await bus.approvals.deny(shown.id, by="ann")
    assert not (await task).success
    assert len(passed) == 1


async def test_a_session_has_approvals_of_its_own(bus):
    async with bus.session("cart") as session:

        @session.handles(Plain, approval=Approval(expires=5))
        async def plain(command):
            return "in the cart"

        task = asyncio.ensure_future(session.send(Plain()))
        (shown,) = await asked(bus)
        assert shown.session == "cart"
        await bus.approvals.approve(shown.id, by="ann")
        assert await task == "in the cart"


async def test_many_wait_and_each_gets_its_own_answer(bus, clock):
    tasks = [asyncio.ensure_future(bus.execute(Refund(f"o-{at}"))) for at in range(300)]
    shown = await asked(bus, 300)
    for one in shown[:100]:
        await bus.approvals.approve(one.id, by="ann")
    for one in shown[100:200]:
        await bus.approvals.deny(one.id, by="ann")
    clock.advance(HOUR)
    results = await asyncio.gather(*tasks)
    codes = [Code.OK] * 100 + [Code.DENIED] * 100 + [Code.EXPIRED] * 100
    assert [result.code for result in results] == codes
    statistics = bus.approvals.statistics()
    assert (statistics.approved, statistics.denied, statistics.expired) == (100, 100, 100)


async def test_the_number_that_waits_is_bounded(bus, monkeypatch):
    monkeypatch.setattr(approvals_module, "PENDING_MAX", 1)
    task, shown = await request(bus)
    result = await bus.execute(Refund("o-2"))
    assert isinstance(result.error, BufferFull)
    await bus.approvals.approve(shown.id, by="ann")
    assert (await task).success


@pytest.mark.parametrize("expires", [0, -1, float("nan"), float("inf")])
def test_an_expiry_must_make_sense(expires):
    with pytest.raises(InvalidOption):
        Approval(expires=expires)


# ----------------------------------------------------------------------- policies and callbacks


@pytest.mark.acceptance(142)
async def test_policies_decide_before_humans_do(bus, refunded):
    @bus.approvals.policy
    def small(request):
        return Decision.APPROVE if request.command.amount < 50 else None

    @bus.approvals.policy
    async def huge(request):
        await asyncio.sleep(0)
        return Decision.DENY if request.command.amount > 1_000 else None

    assert (await bus.execute(Refund("o-1", 10))).success
    result = await bus.execute(Refund("o-2", 5_000))
    assert result.code is Code.DENIED
    assert isinstance(result.error, ApprovalDenied)
    assert "huge" in str(result.error.decided_by)
    task, shown = await request(bus, Refund("o-3", 500))
    await bus.approvals.approve(shown.id, by="ann")
    assert (await task).success
    assert [command.order for command, _ in refunded] == ["o-1", "o-3"]


@pytest.mark.acceptance(142)
@pytest.mark.parametrize("answer", [True, False, "yes", 1, Approval()])
async def test_a_plain_answer_of_a_policy_is_a_typed_error(bus, refunded, answer):
    bus.approvals.policy(lambda request: answer)
    result = await bus.execute(Refund("o-1"))
    assert result.code is Code.HANDLER_ERROR
    assert isinstance(result.error, InvalidDecision)
    assert "Decision.APPROVE" in str(result.error)
    assert refunded == []


async def test_a_policy_that_fails_lets_nothing_through(bus, refunded):
    @bus.approvals.policy
    def broken(request):
        raise ValueError("no connection")

    result = await bus.execute(Refund("o-1"))
    assert isinstance(result.error, ValueError)
    assert refunded == []


async def test_a_policy_that_takes_too_long_expires(bus, clock, refunded):
    never = asyncio.Event()

    @bus.approvals.policy
    async def slow(request):
        await never.wait()

    task = asyncio.ensure_future(bus.execute(Refund("o-1")))
    await settled()
    clock.advance(HOUR)
    assert (await task).code is Code.EXPIRED
    assert refunded == []


@pytest.mark.acceptance(142)
async def test_callbacks_hear_of_requests_and_decisions(bus, clock, caplog):
    requested: list[str] = []
    decided: list[ApprovalOutcome] = []

    @bus.approvals.on_requested
    def broken(shown):
        raise ValueError("no mail today")

    @bus.approvals.on_requested
    async def mail(shown):
        await asyncio.sleep(0)
        requested.append(shown.command.order)

    bus.approvals.on_decided(decided.append)
    tasks = []
    for order in ("yes", "no", "late", "gone"):
        task, _ = await request(bus, Refund(order))
        tasks.append(task)
    shown = bus.approvals.pending()
    await bus.approvals.approve(shown[0].id, by="ann")
    await bus.approvals.deny(shown[1].id, by="bob", reason="no")
    tasks[3].cancel()
    await settled()
    clock.advance(HOUR)
    await settled()
    assert requested == ["yes", "no", "late", "gone"]
    assert decided == [
        ApprovalOutcome(shown[0], ApprovalVerdict.APPROVED, "ann"),
        ApprovalOutcome(shown[1], ApprovalVerdict.DENIED, "bob", "no"),
        ApprovalOutcome(shown[3], ApprovalVerdict.WITHDRAWN),
        ApprovalOutcome(shown[2], ApprovalVerdict.EXPIRED),
    ]
    assert "no mail today" in caplog.text


async def test_a_callback_may_decide(bus):
    @bus.approvals.on_requested
    async def approve(shown):
        await bus.approvals.approve(shown.id, by="robot")

    assert (await bus.execute(Refund("o-1"))).success


async def test_a_bus_that_stops_lets_its_callers_go(clock, refunded):
    bus = make_bus(clock, refunded)
    await bus.start()
    task, shown = await request(bus)
    await bus.stop()
    result = await task
    assert isinstance(result.error, Closed)
    assert refunded == []
    with pytest.raises(NotPending):
        await bus.approvals.approve(shown.id, by="ann")
