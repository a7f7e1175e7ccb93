"""Lines over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

COLOURS = ("#0d9488", "#6366f1", "#d97706")
GREY = "#8594a3"
DRAWN_MAX = 300
"""So many points are sent at most; of more, every second or third."""


class Chart:
    """One or a few lines; the text says the same to those who do not see it."""

    def __init__(self, label: str, *names: str) -> None:
        self._label = label
        self._names = names
        self._chart = ui.echart(_options(names)).classes("ps-chart").props("role=img")
        self._chart.props["aria-label"] = label

    def set(self, times_ms: Sequence[int], *lines: Sequence[float]) -> None:
        """Draw these."""
        step = max(1, -(-len(times_ms) // DRAWN_MAX))
        for series, line in zip(self._chart.options["series"], lines, strict=True):
            points = zip(times_ms, line, strict=True)
            series["data"] = [[at, round(value, 3)] for at, value in list(points)[::step]]
        last = ", ".join(
            f"{name} {line[-1]:,.1f}" for name, line in zip(self._names, lines, strict=True) if line
        )
        self._chart.props["aria-label"] = f"{self._label}: {last}" if last else self._label
        self._chart.update()


def _options(names: Sequence[str]) -> dict[str, Any]:
    axis = {"color": GREY, "fontSize": 11}
    return {
        "animation": False,
        "grid": {
            "left": 8,
            "right": 30,
            "top": 32 if len(names) > 1 else 12,
            "bottom": 4,
            "containLabel": True,
        },
        "useUTC": True,
        "legend": {
            "show": len(names) > 1,
            "top": 0,
            "left": 0,
            "textStyle": {"color": GREY},
            "icon": "roundRect",
        },
        "tooltip": {"trigger": "axis", "confine": True},
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "xAxis": {
            "type": "time",
            "axisLabel": {**axis, "hideOverlap": True, "formatter": "{HH}:{mm}:{ss}"},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "axisLabel": axis,
            "splitLine": {"lineStyle": {"color": GREY, "opacity": 0.2}},
            "minInterval": 1,
        },
        "series": [_line(*pair) for pair in zip(names, COLOURS, strict=False)],
    }


def _line(name: str, colour: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "line",
        "showSymbol": False,
        "data": [],
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
        "areaStyle": {"color": colour, "opacity": 0.08},
    }
