"""Middlewares that let messages wait or try them again: rate limit and retry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.bus.middlewares import RateLimit, RetryMiddleware
from penstock.errors import InvalidOption, RateLimited
from penstock.messages import Code, Envelope
from tests.bus.middleware_world import Double, Placed, turns

# ------------------------------------------------------------------------------------ rate limit


async def test_commands_over_the_rate_are_refused_with_the_time_to_retry(bus, clock):
    bus.use(RateLimit(2.0, burst=3, clock=clock))
    bus.handle(Double, lambda command: command.number * 2)
    codes = [(await bus.execute(Double(1))).code for _ in range(4)]
    assert codes == [Code.OK, Code.OK, Code.OK, Code.RATE_LIMITED]
    with pytest.raises(RateLimited) as info:
        await bus.send(Double(1))
    assert info.value.retry_after == pytest.approx(0.5)
    clock.advance(0.49)
    assert (await bus.execute(Double(1))).code is Code.RATE_LIMITED
    clock.advance(0.01)
    assert (await bus.execute(Double(1))).code is Code.OK


async def test_retry_after_is_enough(bus, clock):
    limit = RateLimit(3.0, burst=1, wait=False, clock=clock)
    bus.use(limit)
    bus.handle(Double, lambda command: 0)
    for _ in range(200):
        assert (await bus.execute(Double(1))).code is Code.OK
        error = (await bus.execute(Double(1))).error
        assert isinstance(error, RateLimited)
        retry_after = error.retry_after
        assert isinstance(retry_after, float)
        clock.advance(retry_after)


async def test_events_over_the_rate_wait_and_none_is_lost(bus, clock):
    bus.use(RateLimit(10.0, burst=2, clock=clock))
    times: list[float] = []
    bus.subscribe(Placed, lambda event: times.append(clock.monotonic()))
    for _ in range(6):
        await bus.publish(Placed(1.0))
    for _ in range(50):
        await turns()
        clock.advance(0.01)
    assert times == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.3, 0.4], abs=0.011)


async def test_an_event_that_may_not_wait_fails(bus, clock):
    bus.use(RateLimit(1.0, wait=False, clock=clock))
    bus.subscribe(Placed, lambda event: None)
    (await bus.publish_and_wait(Placed(1.0))).unwrap()
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert type(outcome.failures[0].error) is RateLimited


async def test_nobody_waits_longer_than_the_bound(bus, clock):
    bus.use(RateLimit(1.0, wait=True, wait_max=0.5, clock=clock))
    bus.handle(Double, lambda command: 0)
    assert (await bus.execute(Double(1))).code is Code.OK
    assert (await bus.execute(Double(1))).code is Code.RATE_LIMITED
    clock.advance(0.6)
    task = asyncio.ensure_future(bus.execute(Double(1)))
    await turns()
    assert not task.done()
    clock.advance(0.4)
    assert (await task).code is Code.OK


async def test_who_is_cancelled_gives_its_place_back(clock):
    limit = RateLimit(1.0, clock=clock)

    async def following(envelope: Envelope) -> str:
        return "through"

    envelope = Envelope(Placed(1.0), 1, 0, "a")
    assert await limit(envelope, following) == "through"
    waiting = asyncio.ensure_future(limit(envelope, following))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    after = asyncio.ensure_future(limit(envelope, following))
    await turns()
    clock.advance(1.0)
    assert await after == "through"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RateLimit(0),
        lambda: RateLimit(1, burst=0),
        lambda: RateLimit(1, wait_max=-1),
        lambda: RetryMiddleware(0),
        lambda: RetryMiddleware(delay=-1.0),
        lambda: RetryMiddleware(delay=11.0),
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidOption):
        wrong()


# ----------------------------------------------------------------------------------------- retry


async def test_a_command_is_tried_again(bus):
    calls: list[int] = []

    def flaky(command: Double) -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError
        return 7

    bus.use(RetryMiddleware(3))
    bus.handle(Double, flaky)
    assert await bus.send(Double(1)) == 7
    assert len(calls) == 3


async def test_of_an_event_only_those_are_called_again_that_failed(bus):
    calls: list[str] = []

    async def flaky(event: Placed) -> None:
        calls.append("flaky")
        await asyncio.sleep(0)
        if calls.count("flaky") < 3:
            raise ConnectionError

    bus.use(RetryMiddleware(3))
    bus.subscribe(Placed, lambda event: calls.append("good"))
    bus.subscribe(Placed, flaky)
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert outcome.success
    assert calls == ["good", "flaky", "flaky", "flaky"]
    assert bus.statistics().events_processed == 1


async def test_attempts_have_an_end(bus):
    calls: list[int] = []

    def bad(message: Any) -> None:
        calls.append(1)
        raise ConnectionError

    bus.use(RetryMiddleware(4))
    bus.subscribe(Placed, bad)
    bus.handle(Double, bad)
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert (len(calls), len(outcome.failures)) == (4, 1)
    assert bus.statistics().events_failed == 1
    assert type((await bus.execute(Double(1))).error) is ConnectionError
    assert len(calls) == 8


async def test_only_named_errors_are_tried_again(bus):
    calls: list[int] = []

    def bad(message: Any) -> None:
        calls.append(1)
        raise ValueError

    bus.use(RetryMiddleware(4, retry_on=(ConnectionError,)))
    bus.subscribe(Placed, bad)
    bus.handle(Double, bad)
    await bus.publish_and_wait(Placed(1.0))
    await bus.execute(Double(1))
    assert len(calls) == 2


async def test_the_delay_doubles_up_to_its_bound(bus, clock):
    times: list[float] = []

    def bad(event: Placed) -> None:
        times.append(clock.monotonic())
        raise ConnectionError

    bus.use(RetryMiddleware(5, delay=0.1, delay_max=0.3, clock=clock))
    bus.subscribe(Placed, bad)
    await bus.publish(Placed(1.0))
    for _ in range(100):
        await turns()
        clock.advance(0.01)
    assert times == pytest.approx([0.0, 0.1, 0.3, 0.6, 0.9], abs=0.06)
    await bus.settle()
