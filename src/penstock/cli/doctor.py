"""``penstock doctor``: what is wrong with this machine, this log, this broker, and what to do about it."""

from __future__ import annotations

import typer

from penstock.cli.options import Form, Output, Url


def doctor(context: typer.Context, url: Url = None, output: Output = Form.TEXT) -> None:
    """Check Python, Java, extras, settings, the disk, the clock, the log or the broker."""
    from penstock.cli.checks import Health, check_machine
    from penstock.cli.checks_place import check_place
    from penstock.cli.codes import PROBLEMS
    from penstock.cli.output import show

    before = context.find_root().params
    found = [*check_machine(), *check_place(url or before.get("url"), before.get("config"))]
    rows = [(one.health, one.what, one.detail) for one in found]
    show(output, [one._asdict() for one in found], ("", "what", "found"), rows, "")
    if any(one.health is Health.BAD for one in found):
        raise typer.Exit(PROBLEMS)
