"""The page names every metric and every cause, as they are."""

from pathlib import Path

from penstock.observe import METRICS, Cause
from tests.observe.metric_names import shown_name

PAGE = (Path(__file__).parents[2] / "docs" / "observe.md").read_text(encoding="utf-8")


def test_the_table_of_metrics_is_that_of_the_code():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `penstock_")]
    assert rows == [
        f"| `{shown_name(one)}` | {one.kind} | {', '.join(one.labels)} | {one.help} |"
        for one in METRICS
    ]


def test_every_cause_is_explained():
    missing = [cause for cause in Cause if f"| `{cause}` |" not in PAGE]
    assert not missing
