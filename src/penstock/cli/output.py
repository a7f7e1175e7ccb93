"""What commands write: tables and lines for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from penstock.cli.harmless import harmless, harmless_json, harmless_lines
from penstock.cli.options import Form
from penstock.cli.table import cell, table


def say(text: str = "") -> None:
    """A line for people."""
    sys.stdout.write(f"{harmless_lines(text)}\n")


def tell(text: str) -> None:
    """A line that is no result: to standard error."""
    sys.stderr.write(f"{harmless_lines(text)}\n")


def show_json(value: Any) -> None:
    """A document for programs."""
    import msgspec

    data = msgspec.json.encode(value, enc_hook=str)
    sys.stdout.write(harmless_json(msgspec.json.format(data, indent=2).decode()) + "\n")


def show_table(titles: Sequence[str], rows: Sequence[Sequence[object]], nothing: str = "") -> None:
    """A table; without rows what to do next."""
    if not rows:
        if nothing:
            tell(nothing)
        return
    if sys.stdout.isatty():
        _show_rich(titles, rows)
    else:
        say(table(titles, [[harmless(one) for one in row] for row in rows]))


def show(
    form: Form, value: Any, titles: Sequence[str], rows: Sequence[Sequence[object]], nothing: str
) -> None:
    """The value as JSON, or the rows as a table."""
    if form is Form.JSON:
        show_json(value)
    else:
        show_table(titles, rows, nothing)


def _show_rich(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        number = all(isinstance(row[place], int | float) for row in rows)
        shown.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        # As text: what looks like markup is not taken for it.
        shown.add_row(*(Text(cell(harmless(one))) for one in row))
    Console().print(shown)
