"""A guard against getting slower, that does not ask how fast the machine is.

Three ways, each of which sees what the others do not:

- steps: the instructions of the interpreter, in all threads. The count is nearly the same on every machine, busy or not. It
  does not see compiled code.
- uses: which parts of the compiled twin a workload went through. One that is lost is seen here, and what it is worth is
  counted by benchmarks/twin.py, with callgrind.
- times: processor time as a ratio to that of a loop which never changes, by turns; the least of several rounds counts.
  That sees everything, and is compared only on the kind of processor it was kept on.

guard.json keeps steps and times for a Python, with and without the twin; ``python -m benchmarks.guard`` compares the steps
and the uses, ``--time`` the times too, ``--write`` keeps them for both builds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.guarded import GUARDED
from benchmarks.machine import processor
from penstock import WalMessageQueue
from penstock.log.writer import TopicWriter
from penstock.scaling import Ring
from penstock.speedups import SWITCH, compiled

BASELINE = Path(__file__).with_suffix(".json")
STEPS_LIMIT = 1.1
"""So many times the kept steps are a regression: rounds of one Python differ by up to 4 %, the least of three by 1 %."""
STEPS_LIMITS = {"awaited": 1.2, "publish_nowait": 1.3}
"""Of those whose rounds differ by more, 8 to 25 %: how much is done at a time is up to how threads meet."""
TIMES_LIMIT = 1.75
"""On a machine with four times the work it can do, the least of three rounds differs by up to 1.4."""
COUNTED = 0.05
"""Of the work that is timed, so much is counted: counting is slow, and exact."""
ROUNDS_MIN, ROUNDS_MAX = 3, 15
"""It goes on while the cost is above the limit: noise only ever adds."""
USES = {
    "publish_many": {"plain_lengths"},
    "publish_nowait": {"QueueInlet", "TopicInlet", "plain_lengths"},
    "awaited": {"TopicInlet", "plain_lengths"},
    "read": {"records"},
    "hot": {"Calls", "Cells", "Counter", "Gate"},
    "ring": {"Cells"},
    "streaming": {"plain_lengths"},
}
"""The parts of the twin that a workload goes through, where it was built; the others use none."""

Work = Callable[[], float]
"""Does its work once; what it took."""


def reference() -> float:
    """Calls, dictionaries, bytes and integers, as the inner loops have them."""
    start = time.process_time()
    kept: dict[int, bytes] = {}
    for number in range(30_000):
        kept[number & 1023] = _piece(b"0123456789", number)
    assert len(kept) == 1024
    return time.process_time() - start


def _piece(data: bytes, number: int) -> bytes:
    return data[number % 7 :] + b"%d" % number


class Steps:
    """Counts the instructions of Python that run, in this thread and in those that start meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def now(self) -> float:
        """How many there were."""
        return self.count

    def _see(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._see

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count everything that begins inside."""
        usual = sys.gettrace()
        threading.settrace(self._see)
        sys.settrace(self._see)
        try:
            yield
        finally:
            sys.settrace(usual)
            threading.settrace(usual)


@dataclass
class Cost:
    """The least that the work and the loop took."""

    work: float = float("inf")
    loop: float = float("inf")

    @property
    def ratio(self) -> float:
        """How many loops the work is worth."""
        return self.work / self.loop

    def measure(self, work: Work, loop: Work) -> float:
        """One round; the ratio up to now."""
        self.loop = min(self.loop, loop())
        self.work = min(self.work, work())
        return self.ratio


def least(measure: Work, good_enough: float) -> float:
    """Rounds until the cost is good enough, or there were many."""
    found = float("inf")
    for number in range(ROUNDS_MAX):
        found = min(found, measure())
        if found <= good_enough and number + 1 >= ROUNDS_MIN:
            break
    return found


def steps_of(name: str, good_enough: float) -> float:
    """Instructions of a workload: the least of some rounds, as threads that wait for each other add to it."""

    def measure() -> float:
        steps = Steps()
        with steps.counting():
            return asyncio.run(GUARDED[name](steps.now, COUNTED))

    return least(measure, good_enough)


def time_of(name: str, good_enough: float) -> float:
    """The processor time of a workload, in loops."""
    cost = Cost()

    def measure() -> float:
        return cost.measure(lambda: asyncio.run(GUARDED[name](time.process_time, 1)), reference)

    return least(measure, good_enough)


class Spied:
    """The twin, seen from a module: notes what it is asked for."""

    def __init__(self, twin: Any) -> None:
        self.asked: set[str] = set()
        self._twin = twin

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._twin, name)


def inherited() -> set[str]:
    """The classes of the twin whose methods are those that Penstock calls."""
    pairs = {
        "Cells": (Ring.publish, Ring.try_publish),
        "TopicInlet": (TopicWriter.add_nowait,),
        "QueueInlet": (WalMessageQueue.publish_nowait,),
    }
    return {
        name
        for name, methods in pairs.items()
        if all(one is getattr(getattr(compiled, name), one.__name__, None) for one in methods)
    }


def uses_of(name: str) -> set[str]:
    """The parts of the twin that a workload goes through now; nothing without a twin."""
    if compiled is None:
        return set()
    spied = Spied(compiled)
    modules = [
        one for key, one in sys.modules.items()
        if key.startswith("penstock.") and vars(one).get("compiled") is compiled
    ]  # fmt: skip
    for module in modules:
        vars(module)["compiled"] = spied
    try:
        asyncio.run(GUARDED[name](time.process_time, COUNTED))
    finally:
        for module in modules:
            vars(module)["compiled"] = compiled
    return spied.asked | (inherited() & USES.get(name, set()))


def kind_of_python(twin: bool = compiled is not None) -> str:
    """What a baseline is good for."""
    build = "compiled" if twin else "plain"
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}-{build}"


def kept() -> dict[str, dict[str, Any]]:
    """All of guard.json."""
    found: dict[str, dict[str, Any]] = json.loads(BASELINE.read_text())
    return found


def baseline(of: str) -> Mapping[str, float]:
    """The ``steps`` or ``times`` that are kept for this Python; nothing when there are none."""
    mine = kept().get(kind_of_python(), {})
    if of == "times" and mine.get("processor") != processor():
        return {}
    found: Mapping[str, float] = mine.get(of, {})
    return found


def missing(of: str) -> str:
    """Why nothing can be compared; empty when it can."""
    if baseline(of):
        return ""
    mine = kept().get(kind_of_python(), {})
    if mine.get(of):
        return f"the times of {kind_of_python()} are those of {mine.get('processor')}, this is {processor()}"
    there = ", ".join(sorted(kept())) or "none"
    return f"no {of} are kept for {kind_of_python()}, only for {there}: python -m benchmarks.guard --write"


def limit(of: str, name: str) -> float:
    """How many times the kept cost is too much."""
    return TIMES_LIMIT if of == "times" else STEPS_LIMITS.get(name, STEPS_LIMIT)


MEASURES: dict[str, Callable[[str, float], float]] = {"steps": steps_of, "times": time_of}


def write(*, times: bool) -> None:
    """Keep what is found now, for this build and for the one without the twin."""
    mine: dict[str, Any] = {"steps": {name: steps_of(name, 0) for name in GUARDED}}
    if times:
        mine["times"] = {name: round(time_of(name, 0), 3) for name in GUARDED}
        mine["processor"] = processor()
    before = kept() if BASELINE.exists() else {}
    before[kind_of_python()] = before.get(kind_of_python(), {}) | mine
    BASELINE.write_text(json.dumps(before, indent=1, sort_keys=True) + "\n")
    if compiled is not None:
        command = [sys.executable, "-m", "benchmarks.guard", "--write", *["--time"] * times]
        subprocess.run(command, env=os.environ | {SWITCH: "0"}, cwd=BASELINE.parents[1], check=True)


def slower(of: str) -> list[str]:
    """The workloads that cost more than the limit allows; each is told."""
    found = []
    for name, cost in baseline(of).items():
        most = cost * limit(of, name)
        now = MEASURES[of](name, most)
        verdict = "" if now <= most else f", more than {limit(of, name):g}: slower"
        print(f"{of:5} {name:15} {now:12,.3f}, kept {cost:12,.3f}: {now / cost:.2f} times{verdict}")
        if verdict:
            found.append(name)
    return found


def lost() -> list[str]:
    """The workloads that no longer go through a part of the twin; each is told."""
    found = []
    for name in USES if compiled is not None else ():
        if without := USES[name] - uses_of(name):
            print(f"uses  {name:15} no longer goes through {', '.join(sorted(without))}")
            found.append(name)
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Compare: 1 when something costs more or lost the twin, 2 when there is nothing to compare with."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what is found now")
    parser.add_argument("--time", action="store_true", help="processor time too")
    options = parser.parse_args(given)
    if options.write:
        write(times=options.time)
    wanted = ["steps", *["times"] * options.time]
    untold = [why for of in wanted if (why := missing(of))]
    for why in untold:
        print(f"not compared: {why}")
    found = [name for of in wanted for name in slower(of)] + lost()
    return 1 if found else 2 if untold else 0


if __name__ == "__main__":
    sys.exit(main())
