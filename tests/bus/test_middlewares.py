from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from typing import Any

import pydantic
import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.histogram import BUCKETS, Histogram
from penstock.bus.middlewares import (
    Ending,
    Logging,
    RateLimit,
    RetryMiddleware,
    Timing,
    Validation,
)
from penstock.bus.timing import OTHER_TOPICS, TOPICS_MAX
from penstock.errors import HandlerFailed, InvalidMessage, InvalidOption, RateLimited
from penstock.messages import Code, Command, Envelope, Event, topic
from penstock.system import System
from penstock.testing.clock import VirtualClock


@topic("placed")
class Placed(Event):
    total: float
    at: dt.datetime | None = None


@topic("double")
class Double(Command[int]):
    number: int


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def bus(clock):
    async with MessageBus(system=System(clock=clock)) as made:
        made.on_error(lambda *_: None)
        yield made


def layer(trace: list[str], name: str) -> Any:
    async def call(envelope: Envelope, following: Any) -> Any:
        trace.append(f"{name} in")
        try:
            return await following(envelope)
        except Exception as error:
            trace.append(f"{name} saw {type(error).__name__} of {error.__cause__!r}")
            raise
        finally:
            trace.append(f"{name} out")

    return call


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -------------------------------------------------------------------------------- the pipeline


@pytest.mark.acceptance(135)
async def test_layers_run_in_the_order_of_registration(bus):
    trace: list[str] = []
    bus.use(layer(trace, "a"))
    bus.use(layer(trace, "b"))
    bus.handle(Double, lambda command: command.number * 2)
    bus.subscribe(Placed, lambda event: trace.append("handler"))
    assert await bus.send(Double(4)) == 8
    assert trace == ["a in", "b in", "b out", "a out"]
    trace.clear()
    await bus.publish_and_wait(Placed(1.0))
    assert trace == ["a in", "b in", "handler", "b out", "a out"]


@pytest.mark.acceptance(135)
async def test_events_and_commands_have_pipelines_of_their_own(bus):
    trace: list[str] = []
    bus.use(layer(trace, "events"), commands=False)
    bus.use(layer(trace, "commands"), events=False)
    bus.handle(Double, lambda command: command.number * 2)
    bus.subscribe(Placed, lambda event: None)
    await bus.publish_and_wait(Placed(1.0))
    assert trace == ["events in", "events out"]
    await bus.send(Double(1))
    assert trace[2:] == ["commands in", "commands out"]


@pytest.mark.acceptance(135)
async def test_a_layer_may_stop_a_message(bus):
    async def stop(envelope: Envelope, following: Any) -> Any:
        return 42

    trace: list[str] = []
    bus.use(layer(trace, "a"))
    bus.use(stop)
    bus.use(layer(trace, "never"))
    bus.handle(Double, lambda command: pytest.fail("stopped"))
    bus.subscribe(Placed, lambda event: pytest.fail("stopped"))
    assert await bus.send(Double(1)) == 42
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert outcome.filtered
    assert bus.statistics().events_filtered == 1
    assert trace == ["a in", "a out"] * 2


@pytest.mark.acceptance(135)
async def test_a_layer_may_change_a_message(bus):
    async def ten_more(envelope: Envelope, following: Any) -> Any:
        message = envelope.message
        changed = Double(message.number + 10) if isinstance(message, Double) else Placed(10.0)
        result = await following(envelope.with_message(changed))
        return None if result is None else result + 1

    seen: list[float] = []
    bus.use(ten_more)
    bus.handle(Double, lambda command: command.number * 2)
    bus.subscribe(Placed, lambda event: seen.append(event.total))
    assert await bus.send(Double(1)) == 23
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert seen == [10.0]
    assert outcome.handled == 1
    assert bus.statistics().events_processed == 1


@pytest.mark.acceptance(135)
async def test_a_layer_that_raises_fails_the_message(bus):
    async def broken(envelope: Envelope, following: Any) -> Any:
        raise ValueError("broken layer")

    trace: list[str] = []
    bus.use(layer(trace, "a"))
    bus.use(broken)
    bus.handle(Double, lambda command: pytest.fail("not reached"))
    bus.subscribe(Placed, lambda event: pytest.fail("not reached"))
    result = await bus.execute(Double(1))
    assert (result.code, str(result.error)) == (Code.HANDLER_ERROR, "broken layer")
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert [str(failure.error) for failure in outcome.failures] == ["broken layer"]
    assert bus.statistics().events_failed == 1
    assert trace == ["a in", "a saw ValueError of None", "a out"] * 2


@pytest.mark.acceptance(135)
async def test_layers_see_what_handlers_raise(bus):
    trace: list[str] = []

    def fail(message: Any) -> None:
        raise KeyError("k")

    bus.use(layer(trace, "a"))
    bus.handle(Double, fail)
    bus.subscribe(Placed, fail)
    result = await bus.execute(Double(1))
    assert type(result.error) is KeyError
    outcome = await bus.publish_and_wait(Placed(1.0))
    assert type(outcome.failures[0].error) is KeyError
    assert [line for line in trace if "saw" in line] == [
        "a saw HandlerRaised of KeyError('k')",
        "a saw HandlersFailed of KeyError('k')",
    ]


async def test_one_class_of_error_serves_for_both(bus):
    seen: list[str] = []

    async def catch(envelope: Envelope, following: Any) -> Any:
        try:
            return await following(envelope)
        except HandlerFailed as failed:
            seen.append(str(failed))
            return 0

    async def failing(message: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError("k")

    bus.use(catch)
    bus.handle(Double, failing, name="double")
    bus.subscribe(Placed, failing, name="placed")
    assert await bus.send(Double(1)) == 0  # a layer may put a result in the place of an error
    await bus.publish_and_wait(Placed(1.0))
    assert seen == ["double failed: KeyError('k')", "failed: placed"]


# -------------------------------------------------------------------------------- logging, timing


async def test_logging_tells_of_good_and_bad_messages(bus, caplog, clock):
    caplog.set_level(logging.INFO, "shop")
    bus.use(Logging(logging.getLogger("shop"), level=logging.INFO, clock=clock))

    async def slow(event: Placed) -> None:
        clock.advance(0.25)
        if event.total < 0:
            raise ValueError("negative")

    bus.subscribe(Placed, slow, name="slow")
    await bus.publish_and_wait(Placed(1.0))
    await bus.publish_and_wait(Placed(-1.0))
    good, bad = [record for record in caplog.records if record.name == "shop"]
    assert (good.levelname, good.ending, good.topic, good.seconds) == ("INFO", "ok", "placed", 0.25)
    assert (bad.levelname, bad.ending) == ("WARNING", "failed")
    assert bad.getMessage().endswith("failed after 0.250000 s: failed: slow")
    assert good.message_id.count("-") == 1


async def test_logging_that_is_off_says_nothing(bus, caplog):
    bus.use(Logging())
    bus.subscribe(Placed, lambda event: None)
    await bus.publish_and_wait(Placed(1.0))
    assert not caplog.records


async def test_timing_counts_by_topic_and_ending(bus, clock):
    timing = Timing(clock=clock)
    bus.use(timing)

    def work(event: Placed) -> None:
        clock.advance(event.total)
        if event.total == 4.0:
            raise ValueError

    bus.subscribe(Placed, work)
    bus.handle(Double, lambda command: 0)
    for seconds in (1.0, 1.0, 1.0, 2.0, 4.0):
        await bus.publish_and_wait(Placed(seconds))
    await bus.send(Double(1))
    double, failed, placed = timing.statistics()
    assert (double.topic, double.count, double.total_seconds) == ("double", 1, 0.0)
    assert (failed.topic, failed.ending, failed.count) == ("placed", Ending.FAILED, 1)
    assert (placed.ending, placed.count, placed.total_seconds) == (Ending.OK, 4, 5.0)
    assert 0.5 < placed.p50_seconds <= 2.0
    assert 1.0 < placed.p99_seconds <= placed.longest_seconds == 2.0


async def test_timing_notes_a_cancelled_command(bus, clock):
    timing = Timing(clock=clock)
    bus.use(timing)
    bus.handle(Double, lambda command: asyncio.get_running_loop().create_future())
    task = asyncio.ensure_future(bus.execute(Double(1), timeout=5.0))
    await turns()
    clock.advance(5.0)
    assert (await task).code is Code.TIMEOUT
    assert [(one.ending, one.count) for one in timing.statistics()] == [(Ending.CANCELLED, 1)]


async def test_timing_has_a_bound():
    timing = Timing(clock=VirtualClock())
    for number in range(TOPICS_MAX * len(Ending) + 50):
        timing._histogram(f"t{number}", Ending.OK).add(1.0)
    assert len(timing._histograms) == TOPICS_MAX * len(Ending) + 1
    assert timing._histograms[OTHER_TOPICS, Ending.OK].count == 50


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_within_a_factor_of_two(seed):
    chance = random.Random(seed)
    durations = sorted(chance.lognormvariate(-8, 3) for _ in range(5_000))
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = durations[max(0, round(share * len(durations)) - 1)]
        assert exact / 2 <= histogram.quantile(share) <= exact * 2
    assert len(histogram.buckets) == BUCKETS
    assert histogram.count == sum(histogram.buckets) == 5_000


def test_a_histogram_takes_any_number():
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0.0
    for seconds in (0.0, -1.0, 1e-12, 1e300, 1.0):
        histogram.add(seconds)
    assert histogram.count == 5
    assert histogram.quantile(0.0) == 0.0


# ------------------------------------------------------------------------------------ validation


class Model(pydantic.BaseModel):
    number: int


@pytest.mark.parametrize(
    "message",
    [
        Placed("many"),  # type: ignore[arg-type]
        Placed(1.0, "2026-01-01"),  # type: ignore[arg-type]
        Model.model_construct(number="x"),
    ],
)
async def test_validation_refuses_wrong_fields(bus, message):
    bus.use(Validation())
    bus.subscribe(type(message), lambda event: pytest.fail("not valid"))
    outcome = await bus.publish_and_wait(message)
    assert type(outcome.failures[0].error) is InvalidMessage
    assert outcome.failures[0].error.reason


async def test_validation_passes_what_is_right(bus):
    seen: list[Any] = []
    bus.use(Validation(lambda message: None))
    for kind in (Placed, Model):
        bus.subscribe(kind, seen.append)
    messages = [Placed(1.0, dt.datetime.now(dt.UTC)), Model(number=1)]
    for message in messages:
        (await bus.publish_and_wait(message)).unwrap()
    assert seen == messages


async def test_validation_asks_a_validator(bus):
    def positive(command: Double) -> bool:
        if command.number > 100:
            raise OverflowError
        return command.number > 0

    bus.use(Validation(positive, fields=False))
    bus.handle(Double, lambda command: command.number * 2)
    assert await bus.send(Double(1)) == 2
    for number, reason in ((-1, "the validator said no"), (101, "OverflowError")):
        result = await bus.execute(Double(number))
        assert isinstance(result.error, InvalidMessage)
        assert result.error.reason == reason


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
