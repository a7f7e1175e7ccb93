"""Where the time goes: samples of the Python stacks while a case runs.

``python -m benchmarks.profile one_by_one/100/no-sync/penstock`` shows it for any case. A thread
looks at the stacks about every millisecond. It needs the interpreter lock for that. With the
usual switch interval it would get it mostly when a thread waits for the disk, and computing would
hardly be seen; so the interval is made very short meanwhile. Right to a function, not to a line.
What lets other threads run, as numpy and the system do, is still seen more often than it takes time.
Jobs in other processes sample themselves, and their threads are told as theirs.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import child
from benchmarks.model import Case, Scale
from benchmarks.results import Hotspot, Profile

INTERVAL_SECONDS = 0.001
SWITCH_SECONDS = 0.000_01
HOTSPOTS_MAX = 10
WORTH_SHOWING = 0.02
RUNS_MAX = 5
THREADS = {"MainThread": "event loop", "penstock-commit": "commit thread"}
# Where a thread stands while it has nothing to do, or a server starts or stops.
WAITING = {
    "selectors.py select",
    "system.py _next",
    "thread.py _worker",
    "threading.py _wait_for_tstate_lock",
    "threading.py wait",
    "connection.py _recv",
    "forkserver.py read_signed",
    "subprocess.py _wait",
    "__init__.py list_topics",
    "kafka_producer.py _hear",
}
HELPERS = "helper threads"
OF_CHILD = "of a child process"

Spot = tuple[str, str, int]
Profiler = Callable[[Case, Path], list[Profile]]
"""How the cases of a suite are sampled, one after the other."""


@dataclass
class Sampler:
    """Counts, for each thread, in which function and line it was seen."""

    seen: dict[str, Counter[Spot]] = field(default_factory=dict)

    def look(self) -> None:
        """Take one sample of every thread but this one."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in _frames().items():
            if ident != threading.get_ident():
                thread = THREADS.get(names.get(ident, ""), HELPERS)
                # Of a pool of threads most are idle, and nobody waits for them.
                if thread is not HELPERS or _called(*_spot(frame)[:2]) not in WAITING:
                    self.seen.setdefault(thread, Counter())[_spot(frame)] += 1

    def keep(self, folder: Path) -> None:
        """In a child process: leave what was seen to the parent."""
        seen = {
            name: [[*spot, count] for spot, count in one.items()] for name, one in self.seen.items()
        }
        (folder / f"{os.getpid()}.json").write_text(json.dumps(seen))

    def add_children(self, folder: Path) -> None:
        """What the child processes have left."""
        for path in folder.glob("*.json"):
            for name, spots in json.loads(path.read_text()).items():
                counter = self.seen.setdefault(f"{name} {OF_CHILD}", Counter())
                for file, function, line, count in spots:
                    counter[file, function, line] += count


def _frames() -> dict[int, FrameType]:
    """The frame of each thread. Collecting garbage meanwhile can stop Python 3.11: penstock/observe/stacks.py tells why."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


def _called(file: str, function: str) -> str:
    return f"{Path(file).name} {function}"


def _spot(frame: FrameType) -> Spot:
    code = frame.f_code
    return code.co_filename, code.co_name, frame.f_lineno or 0


@contextmanager
def sampling(into: Sampler | None = None) -> Iterator[Sampler]:
    """Sample everything that runs inside."""
    sampler = into or Sampler()
    stop = threading.Event()
    usual = sys.getswitchinterval()

    def run() -> None:
        while not stop.wait(INTERVAL_SECONDS):
            sampler.look()

    thread = threading.Thread(target=run, name="sampler", daemon=True)
    thread.start()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield sampler
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        thread.join()


def work_sampled(folder: str, parent: Any, job: Any, arguments: Any) -> None:
    """In a child process: the job, sampled."""
    with sampling() as sampler:
        child._work(parent, job, arguments)
    sampler.keep(Path(folder))


@contextmanager
def children_sampled(folder: Path) -> Iterator[None]:
    """The processes of jobs that start inside sample themselves into a folder."""
    usual = child._work
    vars(child)["_work"] = partial(work_sampled, str(folder))
    try:
        yield
    finally:
        vars(child)["_work"] = usual


def profiles_of(title: str, sampler: Sampler, worth: float = WORTH_SHOWING) -> list[Profile]:
    """The threads that worked for such a share at least, with where they were seen most."""
    found = []
    for thread, counter in sorted(sampler.seen.items()):
        total = counter.total()
        spots = _hotspots(counter, total)
        if sum(spot.share for spot in spots if not spot.line.startswith("(idle)")) > worth:
            found.append(Profile(title=title, thread=thread, samples=total, hotspots=spots))
    return found


def _hotspots(counter: Counter[Spot], total: int) -> list[Hotspot]:
    functions: dict[tuple[str, str], Counter[int]] = {}
    for (file, function, line), count in counter.items():
        functions.setdefault((file, function), Counter())[line] += count
    ranked = sorted(functions.items(), key=lambda item: -item[1].total())
    return [_hotspot(place, lines, total) for place, lines in ranked[:HOTSPOTS_MAX]]


def _hotspot(place: tuple[str, str], lines: Counter[int], total: int) -> Hotspot:
    text = linecache.getline(place[0], lines.most_common(1)[0][0]).strip()
    called = _called(*place)
    idle = "(idle) " if called in WAITING else ""
    return Hotspot(lines.total() / total, called, f"{idle}{text}")


def profile_case(case: Case, folder: Path) -> list[Profile]:
    """Run a case once more, sampled, and the jobs that it starts; again when it was too short to see anything.

    Its samples are not figures.
    """
    sampler = Sampler()
    found: list[Profile] = []
    for _ in range(RUNS_MAX):
        _sample_once(case, folder, sampler)
        if found := profiles_of(case.name, sampler):
            break
    return found or profiles_of(case.name, sampler, worth=0)


def _sample_once(case: Case, folder: Path, into: Sampler) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place, tempfile.TemporaryDirectory() as kept:
        if case.prepared is not None:
            case.prepared.build(Path(place))
        with sampling(into), children_sampled(Path(kept)):
            case.run(Path(place))
        into.add_children(Path(kept))


def profile_all(
    cases: Mapping[str, Case],
    folder: Path,
    wanted: Sequence[str],
    profiler: Profiler = profile_case,
) -> list[Profile]:
    """The profiles that the report shows, of those cases that were chosen; one that fails is told and left out."""
    found = []
    for name in wanted:
        try:
            found += profiler(cases[name], folder) if name in cases else []
        except Exception as error:  # what was measured before is worth more
            print(f"not sampled: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def longer(scale: Scale) -> Scale:
    """The scale with samples long enough to see something."""
    return replace(scale, seconds=scale.profile_seconds)


def main(name: str, seconds: float = 3.0) -> None:
    """Profile every case whose name contains ``name``."""
    from benchmarks.model import SCALES
    from benchmarks.report import profile_lines
    from benchmarks.suites import SUITES

    scale = replace(SCALES["default"], seconds=seconds, recovery_bytes=256 << 20)
    for suite in SUITES.values():
        for case in (case for one in suite.workloads for case in one.cases(scale)):
            if name in case.name and case.contender.startswith(("penstock", "resilient")):
                print("\n".join(profile_lines(suite.profiler(case, Path.cwd()))))


if __name__ == "__main__":
    main(sys.argv[1])
