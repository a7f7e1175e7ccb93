"""Print how many crash states a second the simulated disk gives: a number to look at, no test."""

import time
from random import Random

from penstock.testing.disk import SimulatedDisk


def small_log(pending: int, files: int = 20) -> SimulatedDisk:
    """A log of a few segments with some writes that are not synced."""
    disk = SimulatedDisk()
    for number in range(files):
        disk.put(f"/data/{number:020}.log", bytes(4_096))
    descriptor = disk.open("/data/active.log", create=True)
    for number in range(pending):
        disk.write(descriptor, [b"x" * 200], number * 200)
    return disk


def measure(pending: int, read: bool, count: int = 20_000) -> float:
    disk = small_log(pending)
    start = time.perf_counter()
    made = 0
    for state in disk.crash_states(count, Random(1)):
        made += 1
        if read:
            _ = [state.content(path) for path in state.files()]
    return made / (time.perf_counter() - start)


def measure_once(pending: int, count: int = 20_000) -> float:
    """States of which each different disk is made once, as the great simulations do."""
    start = time.perf_counter()
    made = sum(1 for _ in small_log(pending).crash_states_once(count, Random(1)))
    return made / (time.perf_counter() - start)


if __name__ == "__main__":
    for pending in (2, 5, 10, 50):
        made, read = (measure(pending, read) for read in (False, True))
        print(
            f"{pending:3} pending writes: {made:8,.0f} states/s, all files read {read:8,.0f}, "
            f"each disk once {measure_once(pending):8,.0f}"
        )
