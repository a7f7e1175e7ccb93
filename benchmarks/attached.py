"""Samples of processes that no sampler of ours is in: the workers of Spark, and its Java.

py-spy looks into what is Python, the flight recorder that a JDK has looks into Java. Both look a
hundred times a second and count only threads that work, so their samples can be added up.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import PEERS
from benchmarks.model import Case
from benchmarks.profile import Sampler, Spot, profiles_of
from benchmarks.results import Profile
from benchmarks.spark.common import session

LOOKS_A_SECOND = 100
ANSWER_SECONDS = 60
RECORDING = "penstock"
DRIVER, WORKER, JAVA = "driver", "Python worker", "Java"
_PLACE = re.compile(r"(?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)")


def profile_attached(case: Case, folder: Path) -> list[Profile]:
    """Run a case once more, while others look into this process and all below it."""
    sampler = Sampler()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        if case.prepared is not None:
            case.prepared.build(Path(place))
        session()
        with python_sampled(Path(place), sampler), java_sampled(Path(place), sampler):
            case.run(Path(place))
    return profiles_of(case.name, sampler)


@contextmanager
def python_sampled(folder: Path, into: Sampler) -> Iterator[None]:
    """py-spy looks meanwhile."""
    kept = folder / "stacks.txt"
    looking = subprocess.Popen(
        [PEERS / "bin" / "py-spy", "record", "--subprocesses", "--full-filenames", "--format", "raw",
         "--rate", str(LOOKS_A_SECOND), "--pid", str(os.getpid()), "--output", kept],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        looking.send_signal(signal.SIGINT)
        told = _last_words(looking)
    if not kept.exists():
        raise RuntimeError(f"py-spy has seen nothing: {told.strip()}")
    add_stacks(kept.read_text(), into)


def _last_words(looking: subprocess.Popen[str]) -> str:
    try:
        return looking.communicate(timeout=ANSWER_SECONDS)[1]
    except subprocess.TimeoutExpired:
        looking.kill()
        return looking.communicate()[1]


def add_stacks(raw: str, into: Sampler) -> None:
    """What py-spy saw: processes and frames, the outermost first, and how often, on each line."""
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        parts = stack.split(";")
        processes = [part for part in parts if part.startswith("process ")]
        frames = parts[len(processes) :]
        thread = WORKER if "pyspark" in processes[-1] else DRIVER
        if frames:
            into.seen.setdefault(thread, Counter())[_spot(frames[-1])] += int(count)


def _spot(frame: str) -> Spot:
    found = _PLACE.fullmatch(frame)
    return (found["file"], found["function"], int(found["line"] or 0)) if found else ("", frame, 0)


@contextmanager
def java_sampled(folder: Path, into: Sampler) -> Iterator[None]:
    """The flight recorder of the Java below this process looks meanwhile."""
    java, kept = str(java_below(os.getpid())), folder / "java.jfr"
    if java == "0":
        # jcmd takes 0 for every Java of the machine.
        raise RuntimeError("no Java runs below this process: begin a session of Spark first")
    tools = Path(f"/proc/{java}/exe").resolve().parent
    _tell(tools / "jcmd", java, "JFR.start", f"name={RECORDING}", "settings=profile")
    try:
        yield
    finally:
        _tell(tools / "jcmd", java, "JFR.stop", f"name={RECORDING}", f"filename={kept}")
    told = _tell(tools / "jfr", "print", "--json", "--events", "jdk.ExecutionSample", str(kept))
    add_recording(told, into)


def add_recording(told: str, into: Sampler) -> None:
    """What the recorder of Java saw: the methods that ran."""
    seen = into.seen.setdefault(JAVA, Counter())
    for event in json.loads(told)["recording"]["events"]:
        frame = event["values"]["stackTrace"]["frames"][0]
        kind = re.split("[./]", frame["method"]["type"]["name"])[-1].partition("$")[0]
        seen[f"{kind}.java", frame["method"]["name"], frame["lineNumber"]] += 1


def java_below(root: int) -> int:
    """The Java that this process has started."""
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                return int(child)
            if found := java_below(int(child)):
                return found
    return 0


def _tell(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout.strip()} {done.stderr.strip()}")
    return done.stdout
