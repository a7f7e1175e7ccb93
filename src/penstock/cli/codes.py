"""Exit codes: the same for every command."""

from __future__ import annotations

from penstock import errors

DONE = 0
FAILED = 1
"""The machine, the broker or the data would not."""
WRONG_USE = 2
"""The command is wrong: its words, a name that is not there, or what a transport cannot do."""
NOT_RUNNING = 3
"""There is nothing to stop."""
PROBLEMS = 4
"""It was looked at, and something is wrong: damage, a failed check."""
UNREACHABLE = 5
"""The broker does not answer."""
BUSY = 6
"""There is no room, or the pressure is too high: nothing was done, try again later."""
INTERRUPTED = 130
"""By Ctrl-C."""
BROKEN_PIPE = 141
"""Whoever read the output has gone, as with ``| head``."""


def code_of(error: errors.PenstockError) -> int:
    """The exit code of an error."""
    if isinstance(error, errors.Unreachable):
        return UNREACHABLE
    if isinstance(error, errors.BusyError) and not isinstance(error, errors.DeadlineExceeded):
        return BUSY
    return WRONG_USE if isinstance(error, errors.UsageError) else FAILED
