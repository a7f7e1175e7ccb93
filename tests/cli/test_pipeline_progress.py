"""What is shown of a pipeline that runs."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.cli.pipeline_progress import Bars, Lines, shown


def output(**changes):
    about = {
        "name": "orders", "group": "shop.orders", "micro_batch": 0, "rows": 10, "rows_in_all": 10,
        "seconds": 0.5, "processed_rows_per_second": 20.0, "error": None,
    }  # fmt: skip
    return SimpleNamespace(**{**about, **changes})


class Running:
    """Stands for the pipeline: what it says of itself is what the test wants to see shown."""

    def __init__(self):
        self.outputs = [output()]
        self.behind = 30

    def status(self):
        return self.outputs

    def lags(self):
        return [SimpleNamespace(group="shop.orders", records=self.behind)]


@pytest.fixture
def running():
    return Running()


def test_lines_are_written_once_for_each_micro_batch(running, capsys):
    lines = Lines(running)
    lines.show()
    lines.show()
    running.outputs = [output(micro_batch=1, rows=1_000)]
    lines.show()
    running.outputs = [output(micro_batch=1, error="no room")]
    lines.show()
    assert capsys.readouterr().out.splitlines() == [
        "orders: micro-batch 0, 10 rows in 0.5 s (20/s)",
        "orders: micro-batch 1, 1,000 rows in 0.5 s (20/s)",
        "orders: failed: no room",
    ]


def test_without_a_terminal_there_are_lines(running):
    with shown(running) as chosen:
        assert isinstance(chosen, Lines)


def test_bars_go_from_what_was_read_to_the_end_of_the_topics(running):
    paper = io.StringIO()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=paper, force_terminal=True, width=100)
    with Progress(*columns, TextColumn("{task.fields[rate]}"), console=console) as progress:
        bars = Bars(running, progress)
        bars.show()
        [task] = progress.tasks
        assert (task.description, task.completed, task.total) == ("orders", 10, 40)
        running.outputs, running.behind = [output(micro_batch=3, rows_in_all=40)], 0
        bars.show()
        [task] = progress.tasks
        assert (task.completed, task.total, task.fields["rate"]) == (40, 40, "20/s")
        running.outputs = [output(error="no room")]
        bars.show()
    assert "failed: no room" in paper.getvalue()
