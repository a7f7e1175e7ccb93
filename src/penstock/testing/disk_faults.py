"""Faults that a test asks the simulated disk for."""

from __future__ import annotations

from fnmatch import fnmatchcase

from penstock.testing.disk_names import failure

OPERATIONS = frozenset(
    {
        "open",
        "close",
        "read",
        "write",
        "truncate",
        "sync",
        "sync_directory",
        "status",
        "rename",
        "unlink",
        "make_directory",
        "remove_directory",
        "list_directory",
        "exists",
        "links",
        "try_lock",
        "unlock",
        "watch",
    }
)


class Fault:
    """Makes the ``at``-th matching call fail, once or from then on."""

    def __init__(
        self, operation: str, error: int, at: int, forever: bool, path: str, short: int
    ) -> None:
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}: use one of {sorted(OPERATIONS)}")
        if at < 1:
            raise ValueError("at counts from 1")
        self.operation = operation
        self.error = error
        self.at = at
        self.forever = forever
        self.path = path
        self.short = short
        self.seen = 0
        """Matching calls so far."""
        self.fired = 0
        """Calls that failed so far."""

    def strikes(self, operation: str, paths: tuple[str, ...]) -> bool:
        """Count the call if it matches; True when it is to fail."""
        if operation != self.operation or not any(fnmatchcase(p, self.path) for p in paths):
            return False
        self.seen += 1
        due = self.seen == self.at or (self.forever and self.seen > self.at)
        self.fired += due
        return due

    def failure(self, path: str) -> OSError:
        return failure(self.error, path)
