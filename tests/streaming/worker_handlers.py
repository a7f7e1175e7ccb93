"""Handlers that worker processes import by name. The events say in headers where to write."""

import os
from pathlib import Path

from penstock.streaming import StreamEvent


def write_down(event: StreamEvent) -> None:
    """One file for each process: who handled what."""
    folder = Path(event.headers["folder"].decode())
    print("what handlers print does not disturb the heartbeats")
    with (folder / f"{os.getpid()}.txt").open("a") as file:
        file.write(f"{(event.key or b'').decode()} {(event.value or b'').decode()}\n")


def crunch(event: StreamEvent) -> None:
    """Work that holds the interpreter."""
    total = 0
    for number in range(int(event.value or b"0")):
        total += number * number
    write_down(event)


async def fail(event: StreamEvent) -> None:
    """A handler that never succeeds."""
    raise ValueError(f"cannot handle {event.offset}")
