"""A member of a group in a process of its own, for the transport suite: it can be killed or stopped.

``python -m penstock.testing.transport_member URL TOPIC GROUP OPTIONS [RECORDS]`` subscribes with the
options, which are JSON. With a number of records it reads batches of that size for ever, and says in a
line of JSON what it got and, when the commit was accepted, what is done. Without, it does what it is
told, line by line: ``take``, ``commit``, ``has``; the end of its input is its end.

A SIGUSR1 makes it stop itself, as SIGSTOP does, at the worst moment: when it has a batch and is about to
commit it. SIGCONT lets it go on, or withdraws that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from penstock.errors import DeadlineExceeded, Fenced
from penstock.transports import Consumer, StreamBatch, open_transport

Said = list[object]


def say(*what: object) -> None:
    """Tell who listens, in one write, so that a line is there or not."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _about(batch: StreamBatch) -> Said:
    return [batch.partition, batch.records[0].offset, batch.next_offset]


async def _run(consumer: Consumer, records_max: int) -> None:
    asked_to_stop: list[bool] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, asked_to_stop.append, True)
    loop.add_signal_handler(signal.SIGCONT, asked_to_stop.clear)
    async for batch in consumer.batches(records_max):
        say("got", *_about(batch))
        if asked_to_stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            await consumer.commit(batch)
        except Fenced:
            say("fenced", *_about(batch))
        else:
            say("done", *_about(batch))


async def _obey(consumer: Consumer) -> None:
    batch: StreamBatch | None = None
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            if word == "take":
                batch = await consumer.next_batch(timeout=100)
                say("got", *_about(batch))
            elif word == "commit":
                await consumer.commit(batch)
                say("done")
            elif word == "has":
                say("has", sorted(consumer.assignment().partitions))
        except Fenced:
            say("fenced")
        except DeadlineExceeded:
            say("nothing")


async def _main(url: str, topic: str, group: str, options: str, records_max: str = "") -> None:
    async with (
        open_transport(url) as transport,
        transport.subscribe(topic, group, **json.loads(options)) as consumer,
    ):
        say("ready")
        await (_run(consumer, int(records_max)) if records_max else _obey(consumer))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
