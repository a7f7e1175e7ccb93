"""Rows as text: columns beside each other, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a line of titles; counts have their thousands apart."""
    shown = [list(titles), *([cell(one) for one in row] for row in rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(titles))]
    numbers = [
        all(isinstance(row[place], (int, float)) for row in rows) for place in range(len(titles))
    ]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in shown
    )


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cell(value: object) -> str:
    """A value as text; nothing is a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
