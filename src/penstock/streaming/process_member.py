"""A consumer of a run that is a process of its own."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import msgspec

from penstock.bus.timers import Timers
from penstock.decoding import decoder_of
from penstock.errors import DeadlineExceeded, HandlerFailed
from penstock.streaming.process_protocol import LINE_BYTES_MAX, STOP, Beat, WorkerSpec
from penstock.streaming.run_values import HEARTBEATS_MISSED_MAX, MemberFigures
from penstock.system import Clock

WORKER = "penstock.streaming"
_to_beat = decoder_of(Beat)


class ProcessMember:
    """Starts a worker process, hears its heartbeats, and stops it.

    A process that is silent for too long is killed. One that loses its program (its input ends)
    stops by itself. What it prints goes to the standard error of the program.
    """

    def __init__(self, spec: WorkerSpec, clock: Clock) -> None:
        self._spec = spec
        self._timers = Timers(clock)
        self._figures = MemberFigures()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The id of the process, once it was started."""
        return None if self._process is None else self._process.pid

    def figures(self) -> MemberFigures:
        """As of the last heartbeat."""
        return self._figures

    def stop(self) -> None:
        """Ask the process to finish; see :class:`RunMember`."""
        self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError):
                self._process.stdin.write(STOP)

    async def run(self) -> None:
        """Start the process, and return when it has ended well."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        self._process = process
        try:
            await self._follow(process)
        finally:
            self._figures = _without_partitions(self._figures)
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # the pipes, at once

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(self._spec) + b"\n")
            if self._stopping:
                process.stdin.write(STOP)
            await process.stdin.drain()
        while line := await self._line(process.stdout):
            self._figures = _to_beat(line).figures
        code = await process.wait()
        if code != 0 or not self._stopping:
            raise HandlerFailed(
                f"the worker process {process.pid} of {self._spec.topic!r} ended with code {code}",
                handler=self._spec.handler,
                exit_code=code,
            )

    async def _line(self, stdout: asyncio.StreamReader) -> bytes:
        seconds = HEARTBEATS_MISSED_MAX * self._spec.heartbeat_seconds
        try:
            async with self._timers.deadline(seconds, "hear a heartbeat"):
                return await stdout.readline()
        except DeadlineExceeded as silent:
            raise HandlerFailed(
                f"the worker process {self.pid} of {self._spec.topic!r} was silent for "
                f"{seconds:g} s and is killed",
                handler=self._spec.handler,
            ) from silent


def _without_partitions(figures: MemberFigures) -> MemberFigures:
    return msgspec.structs.replace(figures, assigned=frozenset(), partitions={})
