"""Where the time goes: samples of the Python stacks while a case runs.

``python -m benchmarks.profile one_by_one/100/no-sync/penstock`` shows it for any case. A thread
looks at the stacks about every millisecond. It needs the interpreter lock for that. With the
usual switch interval it would get it mostly when a thread waits for the disk, and computing would
hardly be seen; so the interval is made very short meanwhile. Right to a function, not to a line.
"""

from __future__ import annotations

import linecache
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from benchmarks.model import Case, Scale
from benchmarks.results import Hotspot, Profile

INTERVAL_SECONDS = 0.001
SWITCH_SECONDS = 0.000_01
HOTSPOTS_MAX = 10
WORTH_SHOWING = 0.02
THREADS = {"MainThread": "event loop", "penstock-commit": "commit thread"}
# Where a thread stands while it has nothing to do.
WAITING = {
    "selectors.py select",
    "thread.py _worker",
    "threading.py _wait_for_tstate_lock",
    "threading.py wait",
}
HELPERS = "helper threads"

Spot = tuple[str, str, int]


@dataclass
class Sampler:
    """Counts, for each thread, in which function and line it was seen."""

    seen: dict[str, Counter[Spot]] = field(default_factory=dict)

    def look(self) -> None:
        """Take one sample of every thread but this one."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                thread = THREADS.get(names.get(ident, ""), HELPERS)
                # Of a pool of threads most are idle, and nobody waits for them.
                if thread is not HELPERS or _called(*_spot(frame)[:2]) not in WAITING:
                    self.seen.setdefault(thread, Counter())[_spot(frame)] += 1


def _called(file: str, function: str) -> str:
    return f"{Path(file).name} {function}"


def _spot(frame: FrameType) -> Spot:
    code = frame.f_code
    return code.co_filename, code.co_name, frame.f_lineno or 0


@contextmanager
def sampling() -> Iterator[Sampler]:
    """Sample everything that runs inside."""
    sampler = Sampler()
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


def profiles_of(title: str, sampler: Sampler) -> list[Profile]:
    """The threads that worked, with where they were seen most."""
    found = []
    for thread, counter in sorted(sampler.seen.items()):
        total = counter.total()
        spots = _hotspots(counter, total)
        if sum(spot.share for spot in spots if not spot.line.startswith("(idle)")) > WORTH_SHOWING:
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
    """Run a case once more, sampled; its samples are not figures."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        if case.prepared is not None:
            case.prepared.build(Path(place))
        with sampling() as sampler:
            case.run(Path(place))
    return profiles_of(case.name, sampler)


def profile_all(cases: Mapping[str, Case], folder: Path, wanted: Sequence[str]) -> list[Profile]:
    """The profiles that the report shows, of those cases that were chosen."""
    chosen = [cases[name] for name in wanted if name in cases]
    return [profile for case in chosen for profile in profile_case(case, folder)]


def longer(scale: Scale) -> Scale:
    """The scale with samples long enough to see something."""
    return replace(scale, seconds=scale.profile_seconds)


def main(name: str, seconds: float = 3.0) -> None:
    """Profile every case whose name contains ``name``."""
    from benchmarks.model import SCALES
    from benchmarks.report import profile_lines
    from benchmarks.suites import SUITES

    scale = replace(SCALES["default"], seconds=seconds, recovery_bytes=256 << 20)
    for workload in (one for suite in SUITES.values() for one in suite.workloads):
        for case in workload.cases(scale):
            if name in case.name and case.contender.startswith(("penstock", "resilient")):
                print("\n".join(profile_lines(profile_case(case, Path.cwd()))))


if __name__ == "__main__":
    main(sys.argv[1])
