"""Which board is shown. The framework has one application in a process, and so there is one board."""

from __future__ import annotations

from penstock import errors
from penstock.dashboard.board import Board

_boards: list[Board] = []


def claim(board: Board) -> None:
    """Show this one from now on; UsageError while another one is shown."""
    if _boards:
        raise errors.UsageError("this process has a dashboard already: close it first")
    _boards.append(board)


def release(board: Board) -> None:
    """Another board may be shown."""
    if board in _boards:
        _boards.remove(board)


def current() -> Board:
    """The board that is shown."""
    if not _boards:
        raise errors.UsageError("no dashboard is running")
    return _boards[0]
