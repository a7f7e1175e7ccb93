"""What the rigs share that start a process on one log and kill it, again and again."""

import multiprocessing
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

processes = multiprocessing.get_context("forkserver")


class KillRig:
    """Starts a program, listens to what it promises, and kills it at any moment.

    Half of the runs are killed from outside; in the others the program dies by itself, at a call to
    the disk. ``program`` is a module with ``run(orders, link)`` and a class ``Orders``.
    """

    program: Any
    numbers_each = 1_000
    """How many numbers a run may use, so that no two runs use the same."""
    patience_max = 150

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.runs = self.kills = 0

    def note(self, said: str, *words: Any) -> None:
        """The program said something."""
        raise NotImplementedError

    def orders(self, *, finish: bool = False) -> Any:
        self.runs += 1
        first = self.runs * self.numbers_each
        seed = self.random.getrandbits(32)
        orders = self.program.Orders(str(self.path), seed, first, finish=finish)
        if not finish and self.random.random() < 0.5:
            orders.dies = self.random.choice(["before", "middle", "after"])
            orders.dies_at = self.random.randint(1, 300)
        return orders

    def round(self) -> None:
        """Let the program work for a moment and kill it, or let it die at a call to the disk."""
        orders = self.orders()
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=self.program.run, args=(orders, theirs), daemon=True)
        child.start()
        theirs.close()
        patience = self.random.randint(1, self.patience_max)
        while patience > 0 and self.hear(ours, 5.0):
            patience -= not orders.dies
        if self.random.random() < 0.3:
            ours.poll(self.random.uniform(0, 0.02))
        if not orders.dies:
            child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"the program ended by itself: {child.exitcode}"
        self.kills += 1
        while self.hear(ours, 0):
            pass
        ours.close()

    def hear(self, link: Connection, seconds: float) -> bool:
        """Take in one thing that the program says; False when it says no more."""
        try:
            if not link.poll(seconds):
                return False
            self.note(*msgspec.json.decode(link.recv_bytes()))
        except (EOFError, OSError):
            return False
        return True
