"""Every order of steps of the ring's algorithm, for small rings.

The model has the steps of the code, one access to shared memory each: the producer looks at its
limit, reads the gates one by one, writes a slot, moves its cursor; a consumer reads its barrier,
reads slots, empties those that everybody passed, moves its sequence. `explore` walks through every
state that any order of these steps can reach. Entry n carries the number n, so that a slot which is
read too early, too late or after it was emptied shows itself.

`test_ring_schedules.py` does the same with the code itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

EMPTY = -1

Barriers = tuple[tuple[int, ...], ...]
ONE: Barriers = ((),)
TWO: Barriers = ((), ())
CHAIN: Barriers = ((), (0,))
DIAMOND: Barriers = ((), (), (0, 1))


@dataclass(frozen=True)
class Setup:
    """What runs, and what is broken on purpose."""

    capacity: int
    items: int
    barriers: Barriers
    """For each consumer, the consumers that come before it; none: the cursor."""
    joiners: frozenset[int] = frozenset()
    leavers: frozenset[int] = frozenset()
    broken: str = ""


@dataclass(frozen=True)
class Producer:
    step: str = "look"
    limit: int = 0
    unread: tuple[int, ...] = ()
    lowest: int = 0


@dataclass(frozen=True)
class Consumer:
    step: str = "barrier"
    unread: tuple[int, ...] = ()
    end: int = 0
    at: int = 0
    began: int = 0
    """Where it joined."""
    moved: int = 0


@dataclass(frozen=True)
class State:
    cursor: int
    slots: tuple[int, ...]
    gates: frozenset[int]
    sequences: tuple[int, ...]
    guard: int
    """Which consumer holds the guard; -1: nobody."""
    producer: Producer
    consumers: tuple[Consumer, ...]


class Wrong(AssertionError):
    """The algorithm did what it must not."""


def put(values: tuple, index: int, value) -> tuple:
    return (*values[:index], value, *values[index + 1 :])


Step = Callable[[State, int, Consumer], State | None]


class Model:
    """The steps. Each returns the next state, or None when it cannot be taken now."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def start(self) -> State:
        here = [
            index for index in range(len(self.setup.barriers)) if index not in self.setup.joiners
        ]
        return State(
            cursor=0,
            slots=(EMPTY,) * self.setup.capacity,
            gates=frozenset(here),
            sequences=(0,) * len(self.setup.barriers),
            guard=-1,
            producer=Producer(limit=self.setup.capacity),
            consumers=tuple(
                Consumer("join" if index in self.setup.joiners else "barrier")
                for index in range(len(self.setup.barriers))
            ),
        )

    def successors(self, state: State) -> list[State]:
        found = [self.produce(state)]
        found += [self.consume(state, index) for index in range(len(state.consumers))]
        return [one for one in found if one is not None]

    # ------------------------------------------------------------------------------ producer

    def produce(self, state: State) -> State | None:
        if state.cursor == self.setup.items:
            return None
        producer = state.producer
        take: Callable[[State, Producer], State | None] = getattr(self, f"produce_{producer.step}")
        return take(state, producer)

    def produce_look(self, state: State, producer: Producer) -> State | None:
        if state.cursor < producer.limit or self.setup.broken == "no gating":
            step = "show" if self.setup.broken == "show before write" else "write"
            return replace(state, producer=replace(producer, step=step))
        gates = tuple(sorted(state.gates))
        return replace(
            state, producer=replace(producer, step="gates", unread=gates, lowest=state.cursor)
        )

    def produce_gates(self, state: State, producer: Producer) -> State | None:
        if producer.unread:
            lowest = min(producer.lowest, state.sequences[producer.unread[0]])
            return replace(
                state, producer=replace(producer, unread=producer.unread[1:], lowest=lowest)
            )
        limit = producer.lowest + self.setup.capacity
        return replace(state, producer=Producer(limit=limit))

    def produce_write(self, state: State, producer: Producer) -> State:
        slots = put(state.slots, state.cursor % self.setup.capacity, state.cursor)
        if self.setup.broken == "show before write":
            slots = put(state.slots, (state.cursor - 1) % self.setup.capacity, state.cursor - 1)
            return replace(state, slots=slots, producer=replace(producer, step="look"))
        return replace(state, slots=slots, producer=replace(producer, step="show"))

    def produce_show(self, state: State, producer: Producer) -> State:
        step = "write" if self.setup.broken == "show before write" else "look"
        return replace(state, cursor=state.cursor + 1, producer=replace(producer, step=step))

    # ------------------------------------------------------------------------------ consumers

    def consume(self, state: State, index: int) -> State | None:
        consumer = state.consumers[index]
        take: Step = getattr(self, f"consume_{consumer.step}")
        return take(state, index, consumer)

    def now(self, state: State, index: int, consumer: Consumer, **changes) -> State:
        return replace(state, consumers=put(state.consumers, index, consumer), **changes)

    def consume_join(self, state: State, index: int, consumer: Consumer) -> State:
        return self.now(
            state,
            index,
            replace(consumer, step="enter", began=state.cursor),
            sequences=put(state.sequences, index, state.cursor),
        )

    def consume_enter(self, state: State, index: int, consumer: Consumer) -> State:
        step = "barrier" if self.setup.broken == "join at once" else "start"
        return self.now(state, index, replace(consumer, step=step), gates=state.gates | {index})

    def consume_start(self, state: State, index: int, consumer: Consumer) -> State:
        return self.now(
            state,
            index,
            replace(consumer, step="barrier", began=state.cursor),
            sequences=put(state.sequences, index, state.cursor),
        )

    def consume_barrier(self, state: State, index: int, consumer: Consumer) -> State | None:
        """Begin to read what must be before this one."""
        at = state.sequences[index]
        if at == self.setup.items:
            return None
        if index in self.setup.leavers and at > consumer.began:
            return self.leave(state, index, consumer)
        before = () if self.setup.broken == "no barrier" else self.setup.barriers[index]
        if not before:
            return self.now(state, index, replace(consumer, step="read", end=state.cursor, at=at))
        return self.now(
            state,
            index,
            replace(consumer, step="upstream", unread=before, end=self.setup.items, at=at),
        )

    def leave(self, state: State, index: int, consumer: Consumer) -> State | None:
        if state.guard != -1:
            return None
        keeps = self.setup.broken == "leave keeps the gate"
        gates = state.gates if keeps else state.gates - {index}
        return self.now(state, index, replace(consumer, step="gone"), gates=gates)

    def consume_gone(self, state: State, index: int, consumer: Consumer) -> None:
        return None

    def consume_upstream(self, state: State, index: int, consumer: Consumer) -> State:
        end = min(consumer.end, state.sequences[consumer.unread[0]])
        unread = consumer.unread[1:]
        step = "upstream" if unread else "read"
        return self.now(state, index, replace(consumer, step=step, unread=unread, end=end))

    def consume_read(self, state: State, index: int, consumer: Consumer) -> State:
        if consumer.at >= consumer.end:
            nothing = consumer.end <= state.sequences[index]
            step = "barrier" if nothing else "guard"
            return self.now(state, index, Consumer(step, end=consumer.end, began=consumer.began))
        found = state.slots[consumer.at % self.setup.capacity]
        if found != consumer.at:
            raise Wrong(f"consumer {index} read {found} at {consumer.at}")
        for before in self.setup.barriers[index]:
            if state.sequences[before] <= consumer.at:
                raise Wrong(f"consumer {index} was before {before}")
        return self.now(state, index, replace(consumer, at=consumer.at + 1))

    def consume_guard(self, state: State, index: int, consumer: Consumer) -> State | None:
        if state.guard != -1:
            return None
        others = tuple(sorted(state.gates - {index}))
        step = "move" if self.setup.broken == "empty after move" else "others"
        waiting = replace(consumer, step=step, unread=others, at=consumer.end)
        return self.now(state, index, replace(waiting, moved=state.sequences[index]), guard=index)

    def consume_others(self, state: State, index: int, consumer: Consumer) -> State:
        if consumer.unread:
            low = min(consumer.at, state.sequences[consumer.unread[0]])
            return self.now(state, index, replace(consumer, unread=consumer.unread[1:], at=low))
        slots = state.slots
        for position in range(consumer.moved, consumer.at):
            slots = put(slots, position % self.setup.capacity, EMPTY)
        if self.setup.broken == "empty after move":
            again = Consumer(began=consumer.began)
            return self.now(state, index, again, slots=slots, guard=-1)
        return self.now(state, index, replace(consumer, step="move"), slots=slots)

    def consume_move(self, state: State, index: int, consumer: Consumer) -> State:
        sequences = put(state.sequences, index, consumer.end)
        if self.setup.broken == "empty after move":
            return self.now(state, index, replace(consumer, step="others"), sequences=sequences)
        again = Consumer(began=consumer.began)
        return self.now(state, index, again, sequences=sequences, guard=-1)


def explore(setup: Setup) -> int:
    """Walk through every reachable state; how many there are. Raises Wrong."""
    model = Model(setup)
    first = model.start()
    came_from: dict[State, list[State]] = {first: []}
    todo = [first]
    while todo:
        state = todo.pop()
        for one in model.successors(state):
            if one not in came_from:
                came_from[one] = []
                todo.append(one)
            came_from[one].append(state)
    check_that_all_can_end(setup, came_from)
    return len(came_from)


def check_that_all_can_end(setup: Setup, came_from: dict[State, list[State]]) -> None:
    """From every state there is a way to the end: nobody can be stuck, not even while polling."""
    todo = [state for state in came_from if is_end(setup, state)]
    can_end = set(todo)
    while todo:
        for state in came_from[todo.pop()]:
            if state not in can_end:
                can_end.add(state)
                todo.append(state)
    if len(can_end) < len(came_from):
        raise Wrong("stuck", next(state for state in came_from if state not in can_end))


def is_end(setup: Setup, state: State) -> bool:
    """Everything was published, and read by everyone who stayed."""
    stayed = [index for index, consumer in enumerate(state.consumers) if consumer.step != "gone"]
    read = all(state.sequences[index] == setup.items for index in stayed)
    return state.cursor == setup.items and read


def name_of(setup: Setup) -> str:
    names = {ONE: "one", TWO: "two", CHAIN: "chain", DIAMOND: "diamond"}
    words = [names[setup.barriers], f"{setup.items} through {setup.capacity}"]
    words += [f"{index} joins" for index in setup.joiners]
    words += [f"{index} leaves" for index in setup.leavers]
    return ", ".join([*words, setup.broken] if setup.broken else words)


@pytest.mark.acceptance(31)
@pytest.mark.parametrize(
    "setup",
    [
        Setup(2, 7, ONE),
        Setup(4, 9, ONE),
        Setup(2, 5, TWO),
        Setup(4, 5, CHAIN),
        Setup(2, 5, CHAIN),
        Setup(2, 3, DIAMOND),
        Setup(2, 4, TWO, joiners=frozenset({1})),
        Setup(2, 6, TWO, leavers=frozenset({1})),
        Setup(2, 6, ONE, joiners=frozenset({0})),
        Setup(2, 6, TWO, joiners=frozenset({1}), leavers=frozenset({0})),
    ],
    ids=name_of,
)
def test_no_order_of_steps_loses_repeats_or_overwrites(setup):
    assert explore(setup) > 100


@pytest.mark.parametrize(
    "setup",
    [
        Setup(2, 4, ONE, broken="show before write"),
        Setup(2, 4, TWO, broken="show before write"),
        Setup(2, 4, ONE, broken="no gating"),
        Setup(2, 4, TWO, broken="no gating"),
        Setup(2, 4, CHAIN, broken="no barrier"),
        Setup(2, 4, ONE, broken="empty after move"),
        Setup(2, 6, TWO, leavers=frozenset({1}), broken="leave keeps the gate"),
        Setup(2, 6, ONE, joiners=frozenset({0}), broken="join at once"),
        Setup(2, 5, TWO, joiners=frozenset({1}), broken="join at once"),
    ],
    ids=name_of,
)
def test_the_model_sees_a_broken_algorithm(setup):
    with pytest.raises(Wrong):
        explore(setup)
