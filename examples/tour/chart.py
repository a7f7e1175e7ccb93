"""Curves of the tour: as blocks in a terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 40
"""Blocks of a line in the terminal, which has 80 columns."""
POINTS_MAX = 400
"""Points of a curve in the picture: more cannot be seen."""
PANEL_WIDTH, PANEL_HEIGHT, GAP, LEFT = 640, 90, 46, 30


@dataclass(frozen=True)
class Curve:
    """A count over time. The name has the unit."""

    name: str
    values: Sequence[float]
    kill: int | None = None
    """Where in the values a SIGKILL was."""

    @property
    def highest(self) -> float:
        return max(self.values, default=0)

    def at_most(self) -> str:
        return f"at most {self.highest:,.0f}"


def peaks(values: Sequence[float], count: int) -> list[float]:
    """At most so many values: the highest of each stretch."""
    step = max(1, -(-len(values) // count))
    return [max(values[at : at + step]) for at in range(0, len(values), step)]


def blocks(curve: Curve) -> str:
    """One line; ``|`` is the kill."""
    whole = curve.highest or 1
    line = [BLOCKS[min(8, round(8 * one / whole))] for one in peaks(curve.values, WIDTH)]
    if curve.kill is not None:
        line.insert(len(line) * curve.kill // max(1, len(curve.values)), "|")
    return "".join(line)


def svg(curves: Sequence[Curve]) -> str:
    """A picture: one panel a curve, one below the other."""
    height = GAP + len(curves) * (PANEL_HEIGHT + GAP)
    panels = [
        _panel(curve, GAP + at * (PANEL_HEIGHT + GAP)) for at, curve in enumerate(curves) if curve.values
    ]  # fmt: skip
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{PANEL_WIDTH + 2 * LEFT}" height="{height}">',
            "<style>text { font: 13px sans-serif } .kill { stroke: #c0392b; stroke-dasharray: 4 3 }</style>",
            '<rect width="100%" height="100%" fill="white"/>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(curve: Curve, top: int) -> str:
    values = peaks(curve.values, POINTS_MAX)
    whole = curve.highest or 1
    wide = PANEL_WIDTH / max(1, len(values) - 1)
    bottom = top + PANEL_HEIGHT
    points = " ".join(
        f"{LEFT + at * wide:.1f},{bottom - PANEL_HEIGHT * one / whole:.1f}" for at, one in enumerate(values)
    )  # fmt: skip
    parts = [
        f'<text x="{LEFT}" y="{top - 10}">{escape(curve.name)}: {escape(curve.at_most())}</text>',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{LEFT + PANEL_WIDTH}" y2="{bottom}" stroke="#999"/>',
        f'<polyline points="{points}" fill="none" stroke="#1f6f8b" stroke-width="2"/>',
    ]
    if curve.kill is not None:
        place = LEFT + PANEL_WIDTH * curve.kill / max(1, len(curve.values))
        parts += [
            f'<line class="kill" x1="{place:.1f}" y1="{top}" x2="{place:.1f}" y2="{bottom}"/>',
            f'<text x="{place + 4:.1f}" y="{top + 12}" fill="#c0392b">SIGKILL</text>',
        ]
    return "\n".join(parts)
