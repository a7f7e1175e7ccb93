"""Metrics: exact, per bus, in fixed memory, as Prometheus and OpenTelemetry read them."""

import asyncio
import math
import random
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import (
    BreakerOptions,
    Command,
    Event,
    MessageBus,
    QueueOptions,
    ResilientMessageBus,
    Retry,
    System,
    topic,
)
from penstock.bus.durations import SKIPPED_MAX, Meter, Meters, Pace
from penstock.observe import (
    METRICS,
    Observer,
    OpenTelemetryMetrics,
    PrometheusCollector,
    prometheus_text,
)
from penstock.resilience import DeadLetterFilter
from penstock.testing import VirtualClock
from tests.observe.metric_names import shown_name


@topic("mixed")
class Mixed(Event):
    number: int = 0


@topic("ignored")
class Ignored(Event):
    number: int = 0


class Double(Command[int]):
    number: int = 0


def parsed(observer):
    """The samples of a scrape, by name and labels."""
    text = prometheus_text(observer).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples, name, **labels):
    return samples[f"penstock_{name}", frozenset(labels.items())]


@pytest.mark.acceptance(122)
async def test_counters_are_exact_after_ten_thousand_mixed_events_on_each_bus():
    observer = Observer()
    retry, quiet = Retry(attempts=1), lambda *_: None
    first = ResilientMessageBus(name="first", retry=retry, breaker=None)
    second = MessageBus(name="second")
    async with first, second:
        for bus in (first, second):
            observer.watch(bus)
            bus.on_error(quiet)

        @first.on(Mixed, where=lambda envelope: envelope.message.number % 5 != 4)
        async def handle(event):
            if event.number % 5 == 3:
                raise ValueError(event.number)

        @first.handles(Double)
        async def double(command):
            return 2 // (command.number % 2)

        for number in range(8_000):
            await first.publish(Mixed(number))
        for number in range(2_000):
            await first.publish(Ignored(number))
            await first.execute(Double(number))
        await second.publish(Ignored(1))
        await first.settle()
        await second.settle()
        samples = parsed(observer)
    expected = {
        "events_published_total": 10_000,
        "events_processed_total": 8_000 * 3 // 5,
        "events_failed_total": 8_000 // 5,
        "events_filtered_total": 8_000 // 5,
        "events_unhandled_total": 2_000,
        "commands_published_total": 2_000,
        "commands_processed_total": 1_000,
        "commands_failed_total": 1_000,
        "events_unsettled": 0,
        "dead_letters_added_total": 8_000 // 5 + 1_000,
    }
    assert {name: value(samples, name, bus="first") for name in expected} == expected
    assert value(samples, "events_published_total", bus="second") == 1
    count = "event_processing_duration_seconds_count"
    assert value(samples, count, bus="first", topic="mixed") == 8_000
    count = "command_processing_duration_seconds_count"
    command = f"{Double.__module__}.Double"
    assert value(samples, count, bus="first", command=command) == 2_000


@pytest.mark.acceptance(124)
async def test_gauges_follow_up_and_down():
    observer = Observer()
    clock = VirtualClock()
    bus = ResilientMessageBus(
        name="gauged",
        system=System(clock=clock),
        queue=QueueOptions(capacity=10),
        retry=Retry(attempts=1),
        breaker=BreakerOptions(failures=1, recovery=10, successes=1),
    )
    observer.watch(bus)
    bus.on_error(lambda *_: None)
    healthy = False

    @bus.on(Mixed, name="handle")
    async def handle(event):
        if not healthy:
            raise OSError

    for number in range(9):
        await bus.publish(Mixed(number))
    before = parsed(observer)
    assert value(before, "queue_size", bus="gauged", topic="mixed") == 9
    assert value(before, "backpressure_active", bus="gauged") == 1
    await bus.start()
    await bus.settle()
    during = parsed(observer)
    assert value(during, "queue_size", bus="gauged", topic="mixed") == 0
    assert value(during, "backpressure_active", bus="gauged") == 0
    state = {"bus": "gauged", "handler": "handle@BUS"}
    assert value(during, "circuit_breaker_state", **state) == 2
    assert value(during, "dead_letter_queue_size", bus="gauged") == 9
    healthy = True
    clock.advance(11)
    await bus.publish(Mixed(1))
    await bus.settle()
    await bus.dead_letters.purge(DeadLetterFilter())
    after = parsed(observer)
    assert value(after, "circuit_breaker_state", **state) == 0
    assert value(after, "dead_letter_queue_size", bus="gauged") == 0
    await bus.stop()


@pytest.mark.acceptance(125)
async def test_sessions_and_handlers_are_counted():
    observer = Observer()
    async with MessageBus(name="small") as bus:
        observer.watch(bus)
        async with bus.session("one") as session:
            session.on(Mixed)(lambda _: None)
            bus.subscribe(Mixed, lambda _: None)
            samples = parsed(observer)
            assert value(samples, "active_sessions", bus="small") == 1
            assert value(samples, "registered_handlers", bus="small") == 2
        samples = parsed(observer)
        assert value(samples, "active_sessions", bus="small") == 0
        assert value(samples, "registered_handlers", bus="small") == 1


# Durations


class Handlers:
    """Handlers that take so long, on a clock that only they move."""

    def __init__(self, clock, seconds):
        self.meters = Meters(clock)
        self._clock = clock
        self._seconds = seconds

    def run(self, turn=100):
        """As a pump does."""
        pace = Pace(self.meters, Mixed)
        stop = pace.next(0, turn)
        handled = 0
        for seconds in self._seconds:
            self._clock.advance(seconds)
            handled += 1
            if handled == stop:
                pace.note(handled)
                end = handled - handled % turn + turn
                stop = pace.next(handled, end)
        pace.note(handled)
        return self.meters.durations()["mixed"]


@pytest.mark.acceptance(123)
def test_the_p99_is_within_a_bucket_whatever_the_mixture():
    random.seed(7)
    quick, slow = 2e-6, 5e-3
    for share in (0.0005, 0.002, 0.02, 0.3, 0.5, 1.0):
        took = [slow if random.random() < share else quick for _ in range(20_000)]
        durations = Handlers(VirtualClock(), took).run()
        assert durations.count == len(took)
        assert math.isclose(durations.total_seconds, sum(took), rel_tol=1e-6)
        exact = sorted(took)[int(0.99 * len(took))]
        assert exact / 2 <= durations.quantile(0.99) <= exact * 2, share


@pytest.mark.acceptance(123)
def test_a_million_samples_need_no_more_memory_than_one():
    clock = VirtualClock()
    meters = Meters(clock)

    def samples(count):
        pace = Pace(meters, Mixed)
        for number in range(1, count + 1):
            clock._passed += 1_000 + number % 1_000_000
            pace.note(number)

    def size():
        histogram = meters.of(Mixed).histogram
        return sys.getsizeof(histogram) + sys.getsizeof(histogram.buckets)

    samples(1)
    before = size()
    samples(1_000_000)
    assert size() == before
    assert (len(meters._kinds), len(meters._topics)) == (1, 1)
    assert meters.durations()["mixed"].count == 1_000_001


def test_messages_that_come_one_by_one_are_all_counted():
    meter = Meter()
    meters = Meters(VirtualClock())
    meters._kinds[Mixed] = meters._topics["mixed"] = meter
    timed = 0
    for _ in range(1_000):
        watch = meters.stopwatch(Mixed)
        if watch is not None:
            timed += 1
            watch.stop()
    assert timed < 200
    assert meters.durations()["mixed"].count == 1_000


async def test_the_time_in_which_others_use_the_loop_is_not_that_of_handlers():
    clock = VirtualClock()

    async def others():
        while True:
            clock.advance(0.1)
            await asyncio.sleep(0)

    async with MessageBus() as bus:
        bus._dispatch.meters = Meters(clock)
        bus.subscribe(Mixed, lambda _: None)
        busy = asyncio.ensure_future(others())
        for number in range(2_000):
            bus.publish_nowait(Mixed(number))
        await bus.settle()
        busy.cancel()
        durations = bus._dispatch.meters.durations()["mixed"]
    assert (durations.count, durations.total_seconds) == (2_000, 0)
    assert clock.monotonic() > 0.1, "the pump lets others use the loop between its turns"


@pytest.mark.acceptance(126)
async def test_without_an_observer_nothing_is_measured():
    async with MessageBus() as bus:
        bus.subscribe(Mixed, lambda _: None)
        await bus.publish(Mixed(1))
        await bus.settle()
        assert bus._dispatch.meters is None
        observer = Observer(durations=False)
        observer.watch(bus)
        assert bus._dispatch.meters is None
        Observer().watch(bus)
        reads = 0
        meters: Any = bus._dispatch.meters
        real = meters.now

        def now():
            nonlocal reads
            reads += 1
            return real()

        meters.now = now
        for number in range(10_000):
            await bus.publish(Mixed(number))
        await bus.settle()
    assert reads < 1_000, "quick events are timed together"


@pytest.mark.acceptance(123)
@pytest.mark.parametrize(("handlers", "looked_at"), [(1, 1), (2, 100)])
async def test_what_is_handled_after_an_observer_has_come_is_measured_though_a_lane_is_busy(
    handlers, looked_at
):
    gate = asyncio.Event()
    async with MessageBus() as bus:
        for _ in range(handlers):
            bus.subscribe(Mixed, lambda _: gate.wait())
        for number in range(50):
            bus.publish_nowait(Mixed(number))
        await asyncio.sleep(0)
        Observer().watch(bus)
        for number in range(250):
            bus.publish_nowait(Mixed(number))
        gate.set()
        await bus.settle()
        assert bus._dispatch.meters is not None
        assert bus._dispatch.meters.durations()["mixed"].count == 300 - looked_at


@pytest.mark.acceptance(123)
@pytest.mark.parametrize("skip", [0, SKIPPED_MAX])
async def test_an_event_whose_waiter_leaves_is_measured_once(skip):
    gate = asyncio.Event()
    async with MessageBus() as bus:
        Observer().watch(bus)
        meters: Any = bus._dispatch.meters
        bus.subscribe(Mixed, lambda _: gate.wait())
        gate.set()
        await bus.publish_and_wait(Mixed(0))
        gate.clear()
        meters.of(Mixed).skip = skip
        waiting = asyncio.ensure_future(bus.publish_and_wait(Mixed(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.set()
        await bus.settle()
        assert bus.statistics().events_processed == 2
        assert meters.durations()["mixed"].count == 2


# Both worlds


async def test_a_scrape_is_what_a_registry_gives_too(tmp_path):
    async with penstock.open(f"log:{tmp_path}") as bus:
        observer = Observer()
        observer.watch(bus)
        bus.subscribe(Mixed, lambda _: None, group="readers")
        await bus.publish(Mixed(1))
        await bus.settle()
        while (await observer.look()).groups[0].lag_records:
            await asyncio.sleep(0.005)  # what is handled is committed a moment later
        registry = CollectorRegistry()
        registry.register(PrometheusCollector(observer))
        text = generate_latest(registry).decode()
        samples = parsed(observer)
    assert 'penstock_group_lag_records{group="readers"' in text
    place = {"log": "log", "topic": "mixed", "partition": "0"}
    assert value(samples, "log_durable_offset", **place) == 1
    group = {"source": "log", "group": "readers", "topic": "mixed"}
    assert value(samples, "group_committed_offset", partition="0", **group) == 1
    assert value(samples, "stalled_partitions", **group) == 0
    assert value(samples, "log_fsync_duration_seconds_count", log="log", topic="mixed") >= 1
    assert value(samples, "pressure_level_seconds_total", subsystem="bus", level="normal") > 0


async def test_a_scrape_may_come_from_another_thread():
    async with MessageBus(name="shop") as bus, Observer() as observer:
        observer.watch(bus)
        bus.subscribe(Mixed, lambda _: None)
        await bus.publish(Mixed(1))
        await bus.settle()
        samples = await asyncio.to_thread(parsed, observer)
    assert value(samples, "events_processed_total", bus="shop") == 1


async def test_opentelemetry_reads_the_same_snapshot():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    async with MessageBus(name="shop") as bus:
        observer = Observer()
        observer.watch(bus)
        OpenTelemetryMetrics(observer, provider)
        bus.subscribe(Mixed, lambda _: None)
        for number in range(3):
            await bus.publish(Mixed(number))
        await bus.settle()
        data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    [point] = found["penstock.events_processed"]
    assert (point.value, dict(point.attributes or {})) == (3, {"bus": "shop"})
    [point] = found["penstock.event_processing_duration_seconds.count"]
    assert point.value == 3
    provider.shutdown()


def test_names_are_of_one_form_and_unique():
    names = [shown_name(metric) for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert shown_name(metric).startswith("penstock_")
        assert (metric.read is None) is (metric.kind == "histogram")
        assert metric.help.endswith(".")
