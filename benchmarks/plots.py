"""Two kinds of pictures as SVG, small enough to be kept beside the figures: bars, and a line on two scales of ten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log10

WIDTH, LABELS, RIGHT = 760, 190, 110
BAR, GAP, TOP = 18, 6, 34
HEIGHT, MARGIN = 260, 56
OURS, PEERS = "#1f6feb", "#8b949e"
STYLE = "font-family='sans-serif' font-size='12' fill='#57606a'"

Bar = tuple[str, float, bool]
"""A name, a value, and whether it is ours."""


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height:g}' "
        f"viewBox='0 0 {WIDTH} {height:g}' role='img'>"
    )
    body = [f"<title>{escape(title)}</title>", _text(8, 18, title, weight="bold"), *parts]
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text {place} {STYLE}>{escape(text)}</text>"


def bars(title: str, values: Sequence[Bar], shown: Callable[[float], str]) -> str:
    """A bar for each contender, the longest first, from zero."""
    ranked = sorted(values, key=lambda one: -one[1])
    longest = ranked[0][1] or 1
    parts = []
    for number, (name, value, ours) in enumerate(ranked):
        y = TOP + number * (BAR + GAP)
        length = max(1, (WIDTH - LABELS - RIGHT) * value / longest)
        fill = OURS if ours else PEERS
        parts += [
            _text(LABELS - 8, y + BAR - 5, name, "end"),
            f"<rect x='{LABELS}' y='{y}' width='{length:.1f}' height='{BAR}' fill='{fill}'/>",
            _text(LABELS + length + 6, y + BAR - 5, shown(value)),
        ]
    return _svg(TOP + len(ranked) * (BAR + GAP) + 8, title, parts)


def _across(value: float, low: float, high: float, start: float, end: float) -> float:
    """The place of a value on a scale of powers of ten."""
    if high == low:
        return (start + end) / 2
    return start + (end - start) * log10(value / low) / log10(high / low)


def lines(title: str, points: Sequence[tuple[float, float]]) -> str:
    """Points that are joined, with both axes in powers of ten: what is flat, or rises as x does, is linear."""
    xs, ys = [x for x, _ in points], [max(y, 1e-9) for _, y in points]
    places = [
        (
            _across(x, xs[0], xs[-1], MARGIN, WIDTH - MARGIN),
            _across(y, min(ys), max(ys), HEIGHT - MARGIN, MARGIN),
        )
        for x, y in zip(xs, ys, strict=True)
    ]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f"<polyline points='{joined}' fill='none' stroke='{OURS}' stroke-width='2'/>"]
    for (x, y), size, value in zip(places, xs, ys, strict=True):
        parts += [
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{OURS}'/>",
            _text(x, HEIGHT - 16, f"{size:,.0f}", "middle"),
            _text(x, y - 10, f"{value:.3g}", "middle"),
        ]
    return _svg(HEIGHT, title, parts)
