"""A process on a simulated disk that dies before one of its calls."""

from __future__ import annotations

from collections.abc import Callable

from penstock.testing.disk import SimulatedDisk


class Killed(BaseException):
    """The process dies here."""


def die_at(
    disk: SimulatedDisk,
    call: int,
    action: Callable[[], object],
    counts: Callable[[], bool] = lambda: True,
) -> bool:
    """Do it in a process that dies before its n-th call that counts; whether it died."""
    remaining = call

    def count_down(operation: str, path: str) -> None:
        nonlocal remaining
        if counts():
            remaining -= 1
            if remaining == 0:
                raise Killed

    disk.on_call(count_down)
    try:
        action()
    except Killed:
        return True
    finally:
        disk._call_hooks.clear()
    return False
