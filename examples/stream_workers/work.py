"""The work: a handler that the worker processes import."""

from __future__ import annotations

import os

from penstock import StreamEvent


def count_primes(event: StreamEvent) -> None:
    """Count the primes below the number in the event, and tell."""
    limit = int(event.value or b"0")
    primes = sum(all(one % two for two in range(2, int(one**0.5) + 1)) for one in range(2, limit))
    # A process writes to a file of its own, so nobody has to wait for anybody.
    with open(f"primes-{os.getpid()}.txt", "a", encoding="ascii") as file:
        file.write(f"{event.partition}/{event.offset} {limit} {primes}\n")
