"""The program of a worker process: ``python -m penstock.streaming``.

It is started by :class:`ProcessMember` and speaks with it over its standard input and output.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from penstock.bus.timers import Timers
from penstock.decoding import decoder_of
from penstock.errors import PenstockError
from penstock.streaming.manager import StreamingScalingManager
from penstock.streaming.process_protocol import LINE_BYTES_MAX, Beat, WorkerSpec, find_handler
from penstock.streaming.stream_run import StreamRun
from penstock.system import System

logger = logging.getLogger("penstock.streaming")

INPUT, OUTPUT, ERRORS = 0, 1, 2


async def work(output: BinaryIO) -> None:
    """Do what the first line of the input says, until another line comes or the input ends."""
    lines = await _lines()
    spec = decoder_of(WorkerSpec)(await lines.readline())
    sys.path[:] = spec.path
    handler = find_handler(spec.handler)
    system = System()
    async with StreamingScalingManager(spec.url, **spec.transport_options) as streams:
        options = msgspec.structs.asdict(spec.run)
        async with streams.run(spec.topic, spec.group, handler, **options) as run:
            beating = asyncio.ensure_future(_beat(run, output, spec.heartbeat_seconds, system))
            try:
                await _until_told(lines)
            finally:
                await run.stop()
                beating.cancel()
        _tell(run, output)


async def _until_told(lines: asyncio.StreamReader) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    ending = [asyncio.ensure_future(lines.readline()), asyncio.ensure_future(told.wait())]
    await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
    for one in ending:
        one.cancel()


async def _beat(run: StreamRun, output: BinaryIO, seconds: float, system: System) -> None:
    timers = Timers(system.clock)
    while True:
        _tell(run, output)
        await timers.sleep(seconds)


def _tell(run: StreamRun, output: BinaryIO) -> None:
    beat = Beat(figures=run.figures(), restarts=run.statistics().restarts)
    output.write(msgspec.json.encode(beat) + b"\n")
    output.flush()


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(INPUT, "rb"))
    return reader


def main() -> int:
    """Keep the output for heartbeats: what handlers print goes to the errors."""
    # Who presses Ctrl-C means the program, which stops its processes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.fdopen(os.dup(OUTPUT), "wb")
    os.dup2(ERRORS, OUTPUT)
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(work(output))
    except BrokenPipeError:
        return 1  # the program is gone
    except PenstockError:
        logger.exception("a worker process cannot go on")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
