"""``penstock pipeline``: exit codes, lines, and no traceback for what the user got wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark needs: pip install 'penstock[spark]'")

from penstock.cli import main
from penstock.spark import PipelineService, load_pipeline
from tests.java import quick_environment
from tests.spark.shop_world import order
from tests.spark.spark_world import LogWorld

DECLARATION = """
from datetime import datetime

from penstock import Event, topic
from penstock.spark import Pipeline


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    country: str
    total: float
    placed_at: datetime


shop = Pipeline("shop", log={log!r}, folder={folder!r})
orders = shop.source(OrderPlaced)


@shop.table("orders")
def kept():
    return orders.frame().drop("_record")
"""


@pytest.fixture
def log(tmp_path) -> LogWorld:
    (tmp_path / "log").mkdir()
    log = LogWorld(tmp_path / "log")
    log.create("orders", partitions=2)
    return log


@pytest.fixture
def file(log, tmp_path) -> Iterator[str]:
    """A file with a pipeline, under a name that no other test has imported."""
    path = tmp_path / f"declared_{abs(hash(str(tmp_path)))}.py"
    text = DECLARATION.format(log=log.path, folder=str(tmp_path / "warehouse"))
    path.write_text(text, encoding="utf-8")
    yield str(path)
    sys.modules.pop(path.stem, None)


def test_status_reads_the_log_alone(log, file, capsys) -> None:
    log.publish("orders", [order(1), order(2)])
    log.create("orders.dead-letters")
    log.publish("orders.dead-letters", [b"bad"])
    assert main(["pipeline", "status", file]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "pipeline shop: not running"
    assert [line.split()[:3] for line in shown if line.startswith("kept ")] == [["kept", "-1", "0"]]
    assert [line.split() for line in shown if line.startswith("orders.dead-letters ")][1] == [
        "orders.dead-letters",
        "1",
        "1",
    ]


def test_dead_letters_are_replayed(log, file, capsys) -> None:
    log.create("orders.dead-letters")
    log.publish("orders.dead-letters", [b"1", b"2", b"3"])
    assert main(["pipeline", "replay", file, "orders", "--limit", "2"]) == 0
    assert main(["pipeline", "replay", file, "orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 records replayed to orders",
        "1 record replayed to orders",
    ]


def test_an_output_is_reset_when_one_says_so(file, capsys) -> None:
    assert main(["pipeline", "reset", file, "kept"]) == 2
    assert "say so with yes=True" in capsys.readouterr().err
    assert main(["pipeline", "reset", file, "kept", "--yes"]) == 0
    assert capsys.readouterr().out == "kept: removed the checkpoint, the ledger, all rows\n"


def test_one_that_does_not_run_is_not_stopped(file, capsys) -> None:
    assert main(["pipeline", "stop", file]) == 3
    assert capsys.readouterr().out == "pipeline shop: not running\n"


def test_stop_waits_until_the_pipeline_has_ended(file, capsys) -> None:
    service = PipelineService(load_pipeline(file))
    claimed, asked = threading.Event(), threading.Event()

    def run() -> None:
        with service.claim():
            claimed.set()
            while not service.is_asked_to_stop():
                asked.wait(0.01)

    thread = threading.Thread(target=run)
    thread.start()
    assert claimed.wait(30)
    assert service.is_running()
    assert main(["pipeline", "run", file]) == 2
    assert "runs already" in capsys.readouterr().err
    assert main(["pipeline", "stop", file]) == 0
    thread.join()
    assert not service.is_running()
    assert not service.is_asked_to_stop(), "the next one does not end at once"


def test_a_pipeline_that_does_not_end_is_told_of(file, capsys) -> None:
    with PipelineService(load_pipeline(file)).claim():
        assert main(["pipeline", "stop", file, "--timeout", "0.01"]) == 1
    assert "still runs after 0.01 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        (None, "nothing_there.py", "there is no file"),
        ("x = 1\n", "empty_one.py", "has 0 pipelines"),
        ("x = 1\n1 / 0\n", "broken_one.py", "line 2: ZeroDivisionError: division by zero"),
        ("def f(:\n", "wrong_syntax.py", "SyntaxError"),
        ("x = 1\n", "json.py", "rename the file"),
        ("x = 1\n", "no-name.py", "rename the file"),
        ("x = 1\n", "named_one.py:shop", "has no pipeline 'shop': there is none"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(text, place, told, tmp_path, capsys) -> None:
    path = tmp_path / place.partition(":")[0]
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["pipeline", "status", f"{tmp_path}/{place}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("penstock: ")
    assert error.count("\n") <= 4
    sys.modules.pop(path.stem, None) if path.stem != "json" else None


def test_one_of_several_pipelines_is_named(log, file, capsys) -> None:
    with Path(file).open("a", encoding="utf-8") as more:
        more.write(f"other = Pipeline('other', log={log.path!r}, folder='/nowhere')\n")
    assert main(["pipeline", "status", file]) == 2
    assert "has 2 pipelines: say which one" in capsys.readouterr().err
    assert main(["pipeline", "status", f"{file}:other"]) == 0
    assert capsys.readouterr().out.startswith("pipeline other:")


@pytest.mark.parametrize("arguments", [["--help"], ["pipeline", "--help"]])
def test_help_needs_no_spark(arguments) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; from penstock.cli import main; "
        f"main({arguments!r})"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert b"pipeline" in shown.stdout


def test_a_pipeline_runs_until_it_is_asked_to_end(log, file, forks) -> None:
    log.publish("orders", [order(1), b"bad"])
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", "run", file, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **quick_environment()},
    )
    assert process.stdout is not None
    seen = []
    try:
        for line in process.stdout:
            seen.append(line)
            if {one.partition(":")[0] for one in seen if "micro-batch 0, 2 rows" in one} == {
                "kept",
                "orders.dead-letters",
            }:
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        assert process.wait(120) == 0, "".join(seen) + rest
        assert rest.splitlines()[-1] == "pipeline shop: stopped"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert len(log.rows(subscribe="orders.dead-letters")) == 1
