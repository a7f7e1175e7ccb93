"""The dashboard for Grafana asks for metrics that exist, with labels that they have."""

import json
import re
from pathlib import Path

import pytest

from penstock.observe import METRICS, Kind
from tests.observe.metric_names import shown_name

BOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "penstock.json"
LABELS = {
    **{shown_name(metric): set(metric.labels) for metric in METRICS},
    **{
        f"{shown_name(metric)}_{part}": {*metric.labels, "le"}
        for metric in METRICS
        for part in ("bucket", "count", "sum")
        if metric.kind is Kind.HISTOGRAM
    },
}
SHOWN = [
    "events_published_total",
    "events_processed_total",
    "events_failed_total",
    "commands_published_total",
    "commands_processed_total",
    "commands_failed_total",
    "event_processing_duration_seconds_bucket",
    "command_processing_duration_seconds_bucket",
    "queue_size",
    "backpressure_active",
    "circuit_breaker_state",
    "dead_letter_queue_size",
    "active_sessions",
    "registered_handlers",
    "group_lag_records",
    "group_lag_seconds",
    "stalled_partitions",
]


def targets():
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [
        (panel["title"], target) for panel in board["panels"] for target in panel.get("targets", [])
    ]


@pytest.mark.parametrize(("title", "target"), targets())
def test_a_panel_asks_for_what_is_there(title, target):
    asked = re.findall(r"penstock_\w+", target["expr"])
    assert asked
    for name in asked:
        assert name in LABELS, f"{title}: there is no {name}"
    known = set.intersection(*(LABELS[name] for name in asked))
    used = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
        used += re.split(r",\s*", by)
    used += re.findall(r"(\w+)=~", target["expr"])
    assert set(used) <= known, f"{title}: {target['expr']}"


def test_what_people_ask_for_is_shown():
    asked = " ".join(target["expr"] for _, target in targets())
    missing = [name for name in SHOWN if not re.search(rf"\bpenstock_{name}\b", asked)]
    assert not missing


def test_panels_do_not_cover_each_other():
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
