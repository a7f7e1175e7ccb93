"""What the crash tests share: seeds, what the scoreboard is told, writers to kill."""

import contextlib
import fcntl
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from penstock.errors import PenstockError
from tests.crash import writer as program
from tests.crash.said import FRAME, Kind, Spec
from tests.scoreboard import NOTED, Scores

PROGRAM = Path(program.__file__)
F_SETPIPE_SZ = 1031
DEADLINE_SECONDS = 150.0


def seed_of(request: pytest.FixtureRequest) -> int:
    """The seed of a run: PENSTOCK_SEED, or a new one that is printed with the test's name.

    This is what the scoreboard shows, also for a part of a run that adds its number to it.
    """
    chosen = os.environ.get("PENSTOCK_SEED")
    seed = int(chosen) if chosen else random.SystemRandom().randrange(1 << 32)
    NOTED[request.node.nodeid].seed = seed
    print(f"{request.node.name}: PENSTOCK_SEED={seed}")
    return seed


@dataclass
class Tried:
    """What a test tells the scoreboard of one line."""

    count: int = 0
    measured: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def scoring(scored: Scores, number: int, seed: int | str) -> Iterator[Tried]:
    """Tell the scoreboard what was tried inside; a check that fails there is one that went wrong."""
    tried = Tried()
    begin = time.monotonic()
    try:
        yield tried
    except (AssertionError, PenstockError) as failure:
        failure.add_note(f"PENSTOCK_SEED={seed}")
        with contextlib.suppress(AssertionError):
            scored(number, tried=max(1, tried.count), bad=1, seed=seed, **tried.measured)
        raise
    tried.measured["seconds_in_all"] = time.monotonic() - begin
    scored(number, tried=tried.count, bad=0, seed=seed, **tried.measured)


# --------------------------------------------------------------------------------------- writers


@dataclass
class Frame:
    """One thing that a writer said."""

    kind: Kind
    writer: int
    partition: int
    a: int
    b: int
    c: int
    time: float


class Child:
    """A writer in a process of its own, and what it has said so far."""

    def __init__(self, spec: Spec, pid: int, pipe: int) -> None:
        self.spec = spec
        self.pid = pid
        self.pipe = pipe
        self.frames: list[Frame] = []
        self.ended = False
        self._rest = b""

    def drain(self) -> None:
        """Take in what is in the pipe now; never blocks."""
        while not self.ended and select.select([self.pipe], [], [], 0)[0]:
            data = os.read(self.pipe, 1 << 20)
            self.ended = not data
            data = self._rest + data
            whole = len(data) - len(data) % FRAME.size
            self._rest = data[whole:]
            for numbers in FRAME.iter_unpack(data[:whole]):
                self.frames.append(Frame(Kind(numbers[0]), *numbers[1:]))

    def said(self, *kinds: Kind) -> list[Frame]:
        return [frame for frame in self.frames if frame.kind in kinds]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def listen(
    children: Sequence[Child], seconds: float, *, until: Sequence[Kind] = (), count: int = 1
) -> None:
    """Take in what the children say for so long, or until they have said so many of these kinds."""
    deadline = time.monotonic() + seconds
    while alive := [child for child in children if not child.ended]:
        left = deadline - time.monotonic()
        if left <= 0 or (until and sum(len(one.said(*until)) for one in children) >= count):
            return
        ready = select.select([child.pipe for child in alive], [], [], left)[0]
        for child in alive:
            if child.pipe in ready:
                child.drain()


class Nursery:
    """A process without threads that forks writers: a few milliseconds each."""

    def __enter__(self) -> Self:
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), "nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment(),
            )
        self._children: dict[int, Child] = {}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in list(self._children.values()):
            self.kill(child)
        self._link.close()
        self._process.wait(DEADLINE_SECONDS)

    def fork(self, request: str) -> tuple[int, int]:
        """A new process, and the pipe that it speaks into."""
        ours, theirs = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(ours, F_SETPIPE_SZ, 1 << 20)
        socket.send_fds(self._link, [request.encode()], [theirs])
        os.close(theirs)
        return int(self._link.recv(64)), ours

    def reap(self, pid: int) -> int:
        """Wait until a process is gone; its exit code, or minus the signal."""
        self._link.sendall(f"wait {pid}".encode())
        return os.waitstatus_to_exitcode(int(self._link.recv(64)))

    def start(self, spec: Spec) -> Child:
        child = Child(spec, *self.fork(f"fork {spec.encode()}"))
        self._children[child.pid] = child
        return child

    def wait(self, child: Child) -> int:
        """Hear the child out and wait until it is gone; its exit code, or minus the signal."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not child.ended:
            assert time.monotonic() < deadline, f"{child.spec} does not end"
            listen([child], 1.0)
        code = self.reap(child.pid)
        del self._children[child.pid]
        os.close(child.pipe)
        return code

    def kill(self, child: Child) -> int:
        child.kill()
        return self.wait(child)


def environment() -> dict[str, str]:
    # The same source as the test's own, wherever that was found.
    places = [str(PROGRAM.parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": ":".join(places), "PYTHONDONTWRITEBYTECODE": "1"}


def run_under_strace(spec: Spec, options: Sequence[str], trace: Path) -> tuple[Child, int]:
    """Run a writer in an interpreter of its own under strace, to its end."""
    command = ["strace", "-f", "-qq", "-o", str(trace), *options]
    if not any(":signal=" in option for option in options):
        # Quicker; but with it, strace 6.1 leaves out nearly all signals that it is to inject.
        command.insert(1, "--seccomp-bpf")
    process = subprocess.Popen(
        [*command, sys.executable, str(PROGRAM), "write", spec.encode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    child = Child(spec, process.pid, process.stdout.fileno())
    with process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not child.ended:
            listen([child], 1.0)
            if time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"{spec} does not end under {options}")
        errors = process.stderr.read().decode()
    assert process.returncode != 4, errors
    return child, process.returncode
