"""What each file of the tests costs: seconds, and seconds of the processor, those of the processes it starts too.

With ``PENSTOCK_COSTS`` set to a folder each test process writes what its files took;
``python -m tests.costs FOLDER`` shows the table. The time of a process whose parent was killed is not seen.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

FOLDER = "PENSTOCK_COSTS"
TICKS = os.sysconf("SC_CLK_TCK")


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _spent_by(process: int) -> float:
    """By a process that lives, by what lives below it and by what it has waited for."""
    spent = 0.0
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        spent = sum(map(int, fields[11:15])) / TICKS
    return spent + sum(map(_spent_by, _children(process)))


def spent() -> float:
    """By this process and all that it started."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in own) + sum(
        map(_spent_by, _children(os.getpid()))
    )


class Costs:
    """A plugin of pytest that adds up what the files take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = time.monotonic(), spent()
        result = yield
        after = time.monotonic(), spent()
        file = self._files[item.nodeid.partition("::")[0]]
        for place, (earlier, later) in enumerate(zip(before, after, strict=True)):
            file[place] += max(0.0, later - earlier)
        return result

    def pytest_sessionfinish(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(self._files))


def table(folder: Path) -> Iterable[str]:
    """The files, the longest first."""
    found: dict[str, list[float]] = {}
    for part in folder.glob("*.json"):
        found |= json.loads(part.read_text())
    yield f"{sum(one[0] for one in found.values()):9.1f} s {sum(one[1] for one in found.values()):9.1f} s of the processor"
    for file, (seconds, busy) in sorted(found.items(), key=lambda one: -one[1][0]):
        yield f"{seconds:9.1f} s {busy:9.1f} s of the processor  {file}"


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]))))
