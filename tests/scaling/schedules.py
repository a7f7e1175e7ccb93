"""Runs threads one at a time, and switches between them exactly where it is told.

A thread can be interrupted before each line, or each instruction, of the modules under test. A
schedule says at which of these points to switch, and to whom. `explore` tries every schedule with
one switch (or two): such a bound finds nearly all real races, as few of them need more.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from penstock.scaling import barrier, competing, consumers, ring, sequence, stages

FILES = {module.__file__ for module in (barrier, competing, consumers, ring, sequence, stages)}
STEPS_MAX = 50_000

Program = Callable[[], None]
Scenario = Callable[["Scheduler"], tuple[list[Program], Callable[[], None]]]


class Stuck(AssertionError):
    """Nobody can go on, or nobody gets anywhere."""


class _Abort(BaseException):
    """Another thread failed."""


class Scheduler:
    """One run: programs, and the points at which to switch."""

    def __init__(self, switches: dict[int, int], *, instructions: bool) -> None:
        self.switches = switches
        self.event = "opcode" if instructions else "line"
        self.steps = 0
        self.error: BaseException | None = None
        self._current = 0
        self._batons: list[threading.Lock] = []
        self._running: set[int] = set()

    def run(self, programs: list[Program]) -> None:
        self._running = set(range(len(programs)))
        self._batons = [threading.Lock() for _ in programs]
        for baton in self._batons:
            baton.acquire()
        threads = [
            threading.Thread(target=self._run_one, args=(number, program))
            for number, program in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        self._batons[0].release()
        for thread in threads:
            thread.join(50)
        if self.error is not None:
            raise self.error

    def _run_one(self, number: int, program: Program) -> None:
        self._batons[number].acquire()
        try:
            if self.error is None:
                sys.settrace(self._called)
                program()
        except _Abort:
            pass
        except BaseException as error:
            self.error = self.error or error
        finally:
            sys.settrace(None)
            self._running.discard(number)
            self._pass_on()

    def _pass_on(self) -> None:
        if self.error is not None:
            for baton in self._batons:
                if baton.locked():
                    baton.release()
        elif self._running:
            self._current = min(self._running)
            self._batons[self._current].release()

    def _called(self, frame: FrameType, event: str, argument: object):
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        return self._point

    def _point(self, frame: FrameType, event: str, argument: object):
        if event == self.event:
            step = self.steps
            self.steps += 1
            if step > STEPS_MAX:
                raise Stuck("endless")
            target = self.switches.get(step)
            if target in self._running and target != self._current:
                self._switch(target)
        return self._point

    def _switch(self, target: int) -> None:
        me = self._current
        self._current = target
        self._batons[target].release()
        self._batons[me].acquire()
        if self.error is not None:
            raise _Abort

    def give_way(self) -> None:
        """Let the next thread run: there is nothing to do here."""
        others = sorted(self._running - {self._current})
        later = [one for one in others if one > self._current]
        if others:
            self._switch((later or others)[0])

    def block(self, ready: Callable[[], bool]) -> None:
        """Let others run until `ready`; Stuck when they go round and round without a step."""
        before, turns = self.steps, 0
        while not ready():
            turns = turns + 1 if self.steps == before else 0
            before = self.steps
            if turns > len(self._batons) or self._running == {self._current}:
                raise Stuck("everybody waits")
            self.give_way()

    def lock(self) -> "Lock":
        return Lock(self)


class Lock:
    """A lock whose waiters let others run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.held = False

    def __enter__(self) -> None:
        self.scheduler.block(lambda: not self.held)
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


def explore(scenario: Scenario, *, switches: int, instructions: bool = False) -> int:
    """Run the scenario in every schedule with at most so many switches; how many there were."""
    first, threads = run(scenario, {}, instructions=instructions)
    runs = 1
    for points in _choices(first, switches):
        for targets in itertools.product(range(threads), repeat=len(points)):
            run(scenario, dict(zip(points, targets, strict=True)), instructions=instructions)
            runs += 1
    return runs


def _choices(steps: int, switches: int) -> Iterator[tuple[int, ...]]:
    # A switch makes the rest of the run longer or shorter; some slack covers that.
    for number in range(1, switches + 1):
        yield from itertools.combinations(range(steps + steps // 4), number)


def run(scenario: Scenario, switches: dict[int, int], *, instructions: bool) -> tuple[int, int]:
    """One run; how many points there were, and threads."""
    scheduler = Scheduler(switches, instructions=instructions)
    programs, check = scenario(scheduler)
    scheduler.run(programs)
    check()
    return scheduler.steps, len(programs)
