"""A bus under a random life: nothing is lost, counted twice or handled out of order."""

import asyncio
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.errors import BufferFull, DeadlineExceeded
from penstock.messages import Command, Event, Priority, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import NO_RETRY
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.bus_fixtures import check_books
from penstock.testing.clock import until_idle

KEYS = st.sampled_from("abc")
KINDS = st.sampled_from(["ok", "fail", "slow", "nested", "cancel", "command"])
CAPACITY = 6


@topic("random.ordered", key="key")
class Ordered(Event):
    """Handled in order within a key, and never by a handler that fails."""

    key: str
    number: int


class Wild(Event):
    """Handled by whatever the machine comes up with."""

    number: int
    depth: int = 0


class Ask(Command[int]):
    depth: int = 0


class BusMachine(RuleBasedStateMachine):
    """One bus, driven step by step on a loop of its own, on virtual time."""

    make_bus = MessageBus

    @initialize(
        overflow=st.sampled_from(list(Overflow)),
        concurrency=st.integers(1, 3),
        middleware=st.booleans(),
        batch=st.booleans(),
    )
    def begin(self, overflow, concurrency, middleware, batch):
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.numbers = dict.fromkeys("abc", 0)
        self.seen: dict[str, list[int]] = {key: [] for key in "abc"}
        self.handlers = []
        self.sessions = {}
        self.tasks = []
        self.run(self.open(overflow, concurrency, middleware=middleware, batch=batch))

    async def open(self, overflow, concurrency, *, middleware, batch):
        options = QueueOptions(capacity=CAPACITY, overflow=overflow)
        self.bus = self.make_bus(queue=options, system=System(clock=self.clock))
        self.bus.on_error(lambda *_: None)

        async def note(event):
            await asyncio.sleep(0)
            self.seen[event.key].append(event.number)

        async def pass_on(envelope, following):
            return await following(envelope)

        async def pause(events):
            await asyncio.sleep(0)

        async def ask(command):
            await self.publish_nested(command.depth)
            return 1

        self.bus.subscribe(Ordered, note, concurrency=concurrency)
        if batch:
            self.bus.subscribe(Wild, pause, batch=3)
        if middleware:
            self.bus.use(pass_on)
        self.bus.handle(Ask, ask)
        await self.bus.start()

    def run(self, awaitable):
        async def bounded():
            return await awaitable

        return self.loop.run_until_complete(asyncio.wait_for(bounded(), 120))

    # What handlers do

    def handler(self, kind):
        async def handle(event, envelope):
            if kind == "fail":
                raise LookupError
            if kind == "slow":
                done = asyncio.Event()
                self.clock.call_after(1.0, done.set)
                await done.wait()
            elif kind == "cancel":
                await asyncio.sleep(0)
                raise asyncio.CancelledError
            elif kind == "nested":
                await self.publish_nested(event.depth)
            elif kind == "command":
                await self.bus.execute(Ask(event.depth))

        return handle

    async def publish_nested(self, depth):
        if depth < 2:
            try:
                await self.bus.publish(Wild(-1, depth + 1))
                await self.bus.publish_and_wait(Wild(-1, depth + 1), timeout=5.0)
            except (BufferFull, DeadlineExceeded):
                pass

    # Rules

    @rule(kind=KINDS, priority=st.sampled_from(list(Priority)))
    @precondition(lambda self: len(self.handlers) < 4)
    def subscribe(self, kind, priority):
        self.handlers.append(self.bus.subscribe(Wild, self.handler(kind), priority=priority))

    @rule(at=st.integers(0, 3))
    @precondition(lambda self: self.handlers)
    def unsubscribe(self, at):
        self.handlers.pop(at % len(self.handlers)).close()

    @rule(name=st.sampled_from("xy"), kind=KINDS)
    def session(self, name, kind):
        """Opens it, or closes it when it is open."""
        session = self.sessions.pop(name, None)
        if session is not None:
            session.close()
        else:
            self.sessions[name] = self.bus.session(name)
            self.sessions[name].subscribe(Wild, self.handler(kind))

    @rule(
        priority=st.sampled_from(list(Priority)),
        session=st.sampled_from(["BUS", "x", "y"]),
        wait=st.booleans(),
    )
    def publish(self, priority, session, wait):
        publish = self.bus.publish_and_wait if wait else self.bus.publish
        self.spawn(publish(Wild(1), priority=priority, session=session, timeout=7.0))

    @rule(key=KEYS, count=st.integers(1, 4))
    def publish_in_order(self, key, count):
        for _ in range(count):
            try:
                self.run(self.nowait(Ordered(key, self.numbers[key])))
            except BufferFull:
                return
            self.numbers[key] += 1

    async def nowait(self, event):
        self.bus.publish_nowait(event)

    @rule()
    def execute(self):
        self.spawn(self.bus.execute(Ask(), timeout=3.0))

    @rule(count=st.integers(1, 3))
    def atomic(self, count):
        async def group():
            async with self.bus.atomic() as group:
                for _ in range(count):
                    group.publish(Wild(2))

        self.spawn(group())

    def spawn(self, awaitable):
        async def start():
            self.tasks.append(asyncio.ensure_future(awaitable))

        self.run(start())

    @rule(at=st.integers(0, 30))
    @precondition(lambda self: self.tasks)
    def cancel(self, at):
        self.tasks[at % len(self.tasks)].cancel()

    @rule(turns=st.integers(1, 5))
    def turn(self, turns):
        async def turn():
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(turn())

    @rule()
    def idle(self):
        self.run(until_idle())

    @rule(seconds=st.floats(0.01, 5.0))
    def pass_time(self, seconds):
        async def advance():
            self.clock.advance(seconds)

        self.run(advance())

    @rule()
    def settle(self):
        """It always ends."""
        self.run(self.clock.run_until(self.bus.settle(timeout=1e9)))
        assert self.bus.statistics().events_unsettled == 0

    # What always holds

    @invariant()
    def the_books_are_right(self):
        if hasattr(self, "bus"):
            check_books(self.bus)
            queue = self.bus.statistics().queues.values()
            assert all(one.depth <= 2 * CAPACITY for one in queue)

    @invariant()
    def keys_are_in_order(self):
        for numbers in getattr(self, "seen", {}).values():
            assert numbers == sorted(set(numbers))

    def teardown(self):
        if hasattr(self, "loop"):
            try:
                self.end()
            finally:
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.loop.close()

    async def _wait_for_tasks(self):
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def end(self):
        report = self.run(self.clock.run_until(self.bus.stop(timeout=1e6)))
        check_books(self.bus)
        assert report.drained
        assert self.bus.statistics().events_unsettled == 0
        self.run(self._wait_for_tasks())
        if not self.bus.statistics().events_dropped:
            assert {key: len(seen) for key, seen in self.seen.items()} == self.numbers
        assert not asyncio.all_tasks(self.loop)


def machine_of(name, make):
    return type(name, (BusMachine,), {"make_bus": staticmethod(make)})


TestMessageBus = machine_of("Plain", MessageBus).TestCase
TestResilientMessageBus = machine_of("Resilient", ResilientMessageBus).TestCase
TestWithoutRetries = machine_of(
    "WithoutRetries", partial(ResilientMessageBus, retry=NO_RETRY, breaker=None)
).TestCase

for _case in (TestMessageBus, TestResilientMessageBus, TestWithoutRetries):
    _case.settings = settings(max_examples=60, stateful_step_count=40)
    _case.pytestmark = [pytest.mark.timeout(300), pytest.mark.acceptance(131)]
del _case  # or pytest would collect it once more
