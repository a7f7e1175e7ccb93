"""Before something is destroyed: ask, or refuse when nobody is there to be asked."""

from __future__ import annotations

import sys

import typer

from penstock import errors
from penstock.cli.output import tell


def confirm(what: str, *, yes: bool) -> None:
    """Go on when the user says so. UsageError without a terminal; Abort when the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.UsageError(f"{what}: there is no terminal to ask at. Say --yes if you mean it")
    tell(f"{what}.")
    if not typer.confirm("Go on?", err=True):
        raise typer.Abort
