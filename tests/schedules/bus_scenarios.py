"""What a bus has to do in every order of its tasks: commands, events, sessions, retries, pressure, stopping."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.errors import BusyError, Closed, PenstockError
from penstock.messages import Command, Event, topic
from penstock.pressure.channel import Channel
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import Retry
from penstock.testing import SeededSchedule
from penstock.testing.bus_fixtures import check_books

ACTORS = 3
EACH = 3


@topic("schedules.note", key="actor")
class Note(Event):
    actor: int
    number: int


class Ask(Command[int]):
    number: int
    depth: int = 0


async def ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for all; only those that were cancelled may fail."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def check_stopped(bus: MessageBus) -> None:
    check_books(bus)
    assert bus.statistics().events_unsettled == 0


async def commands(schedule: SeededSchedule) -> None:
    """Commands that call commands; each gets its own answer."""
    answers: Counter[int] = Counter()
    async with MessageBus(system=schedule.system) as bus:

        async def answer(command: Ask) -> int:
            await schedule.pause()
            if command.depth:
                inner = await bus.execute(Ask(command.number, command.depth - 1))
                assert inner.result == command.number
            return command.number

        async def ask(actor: int) -> None:
            for number in range(actor * EACH, actor * EACH + EACH):
                await schedule.pause()
                result = await bus.execute(Ask(number, schedule.random.randrange(3)))
                assert result.result == number
                answers[number] += 1

        bus.handle(Ask, answer)
        await ended([schedule.spawn(ask(one), victim=True) for one in range(ACTORS)])
    assert schedule.cancelled or answers == Counter(range(ACTORS * EACH))
    check_stopped(bus)
    assert schedule.loop.time() < 1, "somebody was not woken"


async def events(schedule: SeededSchedule) -> None:
    """A small queue, handlers that take their time: in order, once, none lost."""
    seen: dict[int, list[int]] = {actor: [] for actor in range(ACTORS)}
    accepted: dict[int, list[int]] = {actor: [] for actor in range(ACTORS)}
    options = QueueOptions(capacity=schedule.random.choice([1, 2, 5]))
    async with MessageBus(queue=options, system=schedule.system) as bus:

        async def note(event: Note) -> None:
            await schedule.pause()
            seen[event.actor].append(event.number)

        async def publish(actor: int) -> None:
            for number in range(EACH):
                event = Note(actor, number)
                if schedule.random.random() < 0.5:
                    await bus.publish(event)
                else:
                    await bus.publish_and_wait(event)
                    assert number in seen[actor]
                accepted[actor].append(number)
                await schedule.pause()

        bus.subscribe(Note, note, concurrency=schedule.random.choice([1, 2]))
        await ended([schedule.spawn(publish(one), victim=True) for one in range(ACTORS)])
        if schedule.random.random() < 0.5:
            await bus.settle()
    for actor, numbers in seen.items():
        if not schedule.cancelled:
            assert numbers == list(range(EACH))
        # A handler that was interrupted with its publisher is called again.
        assert set(accepted[actor]) <= set(numbers) <= set(range(EACH))
        assert numbers == sorted(numbers)
    check_stopped(bus)
    assert schedule.loop.time() < 1, "somebody was not woken"


async def sessions(schedule: SeededSchedule) -> None:
    """Sessions that come and go while their events are on the way."""
    handled: list[str] = []
    async with MessageBus(system=schedule.system) as bus:

        async def visit(name: str) -> None:
            async with bus.session(name) as session:

                async def note(event: Note) -> None:
                    await schedule.pause()
                    handled.append(name)

                session.subscribe(Note, note)
                for number in range(2):
                    await session.publish(Note(0, number))
                    await schedule.pause()

        await ended([schedule.spawn(visit(f"visit-{one}"), victim=True) for one in range(ACTORS)])
        await bus.settle()
    assert all(times <= 2 for times in Counter(handled).values())
    check_stopped(bus)


async def resilience(schedule: SeededSchedule) -> None:
    """Handlers that fail now and then: each event is handled, or a dead letter."""
    tries: Counter[int] = Counter()
    done: set[int] = set()
    retry = Retry(attempts=3, delay=0.1)
    async with ResilientMessageBus(system=schedule.system, retry=retry) as bus:

        async def note(event: Note) -> None:
            tries[event.number] += 1
            await schedule.pause()
            if schedule.random.random() < 0.5:
                raise LookupError
            assert event.number not in done, "handled twice"
            done.add(event.number)

        async def publish(actor: int) -> None:
            for number in range(2):
                await bus.publish(Note(actor, actor * 2 + number))
                await schedule.pause()

        bus.subscribe(Note, note, ordered=schedule.random.random() < 0.5)
        bus.on_error(lambda *_: None)
        await ended([schedule.spawn(publish(one)) for one in range(ACTORS)])
        await bus.settle()
        letters = {one.message.number for one in bus.dead_letters.list()}
        assert done | letters == set(range(2 * ACTORS))
        assert not done & letters
        assert max(tries.values()) <= 3
    check_books(bus)


async def stopping(schedule: SeededSchedule) -> None:
    """The bus stops while it is used: everybody gets an answer, and nothing goes on."""
    handled = 0
    bus = MessageBus(queue=QueueOptions(capacity=2), system=schedule.system)

    async def note(event: Note) -> None:
        nonlocal handled
        await schedule.pause()
        handled += 1

    async def answer(command: Ask) -> int:
        await bus.publish_and_wait(Note(0, command.number))
        return command.number

    async def use(actor: int) -> None:
        with suppress(Closed):
            for number in range(EACH):
                await bus.publish(Note(actor, number))
                await bus.execute(Ask(number))
                await schedule.pause()

    async def stop() -> None:
        await schedule.pause()
        await bus.stop(drain=schedule.random.random() < 0.7, timeout=5)

    bus.subscribe(Note, note)
    bus.handle(Ask, answer)
    await bus.start()
    using = [schedule.spawn(use(one), victim=True) for one in range(ACTORS)]
    stopping = [schedule.spawn(stop(), victim=True) for _ in range(2)]
    for result in await asyncio.gather(*using, *stopping, return_exceptions=True):
        if isinstance(result, BaseException):
            assert isinstance(result, PenstockError | asyncio.CancelledError), result
    await bus.stop()
    check_books(bus)
    count = handled
    await asyncio.sleep(100)
    assert handled == count, "it goes on"


async def channel(schedule: SeededSchedule) -> None:
    """Senders that wait for room, takers that wait for something: nobody waits for ever."""
    pipe: Channel[int] = Channel(schedule.random.choice([1, 2, 4]), system=schedule.system)
    taken: list[int] = []
    sent: list[int] = []

    async def send(actor: int) -> None:
        for number in range(actor * EACH, actor * EACH + EACH):
            if await pipe.send(number):
                sent.append(number)
            await schedule.pause()

    async def take() -> None:
        with suppress(Closed):
            while True:
                taken.extend(await pipe.take(schedule.random.choice([1, 3])))
                await schedule.pause()

    taking = [schedule.spawn(take(), victim=True) for _ in range(2)]
    await ended([schedule.spawn(send(one), victim=True) for one in range(ACTORS)])
    taking.append(schedule.spawn(take()))
    with suppress(BusyError):
        while len(pipe):
            await asyncio.sleep(0.001)
    pipe.close()
    await ended(taking)
    assert len(taken) == len(set(taken))
    assert set(sent) <= set(taken)
    assert schedule.cancelled or sorted(taken) == list(range(ACTORS * EACH))
    assert schedule.loop.time() < 5, "somebody was not woken"


SCENARIOS = [commands, events, sessions, resilience, stopping, channel]
