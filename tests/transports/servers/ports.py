"""Ports for servers that are stopped and started again.

Between two starts nobody holds a port. Those that the kernel gives to connections would now and then be
gone by then, or connected to themselves by a client that tries again and again. So these are lower ones.
"""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _lowest_of_connections() -> int:
    lowest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    return lowest if lowest > 2 * LOWEST else 32_768


def free_ports(count: int) -> list[int]:
    """Ports that nobody has; held together, so that they differ."""
    chance, most = random.SystemRandom(), _lowest_of_connections()
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            one = held.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", chance.randrange(LOWEST, most)))
                found.append(int(one.getsockname()[1]))
    return found


def free_port() -> int:
    """A port that nobody has."""
    return free_ports(1)[0]
