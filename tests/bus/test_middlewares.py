"""The pipeline of middlewares, and those that log, take the time and validate."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from typing import Any

import pydantic
import pytest

from penstock.bus.histogram import BUCKETS, Histogram
from penstock.bus.middlewares import Ending, Logging, Timing, Validation
from penstock.bus.timing import OTHER_TOPICS, TOPICS_MAX
from penstock.errors import HandlerFailed, InvalidMessage
from penstock.messages import Code, Envelope
from penstock.testing.clock import VirtualClock
from tests.bus.middleware_world import Double, Placed, turns


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


# -------------------------------------------------------------------------------- the pipeline


async def test_an_event_whose_layer_is_cancelled_behind_its_handlers_is_done_with(bus):
    waiting, seen = asyncio.Event(), list[float]()

    async def layer(envelope: Envelope, following: Any) -> Any:
        await following(envelope)
        waiting.set()
        await asyncio.Event().wait()

    bus.use(layer)
    bus.subscribe(Placed, lambda event: seen.append(event.total))
    await bus.publish(Placed(1.0))
    await waiting.wait()
    for task in list(bus._dispatch.tasks):
        task.cancel()
    await turns()
    statistics = bus.statistics()
    assert (seen, statistics.events_processed, statistics.events_unsettled) == ([1.0], 1, 0)


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
