"""Every example runs to its end, in an empty folder, as a reader would run it."""

from pathlib import Path

import pytest

from tests.java import quick_environment
from tests.running import FAST, run_python
from tests.servers import postgres_server

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*/main.py"))


def run(main, folder, *arguments):
    return run_python(
        "-W", "error", main, *arguments, folder=folder, environment=FAST | quick_environment()
    )


@pytest.mark.timeout(480)
@pytest.mark.parametrize("main", EXAMPLES, ids=lambda main: main.parent.name)
def test_the_example_ends_well(main, tmp_path):
    finished = run(main, tmp_path)
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert finished.stdout.strip(), "an example shows something"


@pytest.mark.timeout(480)
def test_payments_are_booked_once_in_postgresql(tmp_path):
    with postgres_server() as server:
        main = ROOT / "examples" / "exactly_once_payments" / "main.py"
        finished = run(main, tmp_path, server.dsn)
    assert finished.returncode == 0, finished.stdout[-4000:]


def test_every_example_has_a_page_and_is_in_the_list():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in ROOT.glob("examples/*/*.py")}
    assert [name for name in sorted(folders) if f"({name}/README.md)" not in listed] == []
    for words in (
        "Order processing",
        "IoT ingest",
        "Clickstream to warehouse",
        "Exactly-once payments",
        "Multi-process workers",
        "Moving to Kafka",
    ):
        assert words in listed
