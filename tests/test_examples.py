"""Every example runs to its end, in an empty folder, as a reader would run it."""

import json
import re
from pathlib import Path

import pytest

from examples.tour.sums import of_the_pipeline
from tests.java import quick_environment
from tests.running import FAST, run_python
from tests.servers import postgres_server

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*/main.py"))
PIPELINE = ROOT / "examples" / "shop_pipeline" / "main.py"


def run(main, folder, *arguments):
    return run_python(
        "-W", "error", main, *arguments, folder=folder, environment=FAST | quick_environment()
    )


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "main", [one for one in EXAMPLES if one != PIPELINE], ids=lambda main: main.parent.name
)
def test_the_example_ends_well(main, tmp_path):
    finished = run(main, tmp_path)
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert finished.stdout.strip(), "an example shows something"


@pytest.mark.timeout(480)
def test_the_pipeline_ends_well_and_the_tour_finds_its_sums_right(tmp_path):
    """With the numbers that Spark made; tests/test_tour.py shows that wrong ones are noticed."""
    finished = run(PIPELINE, tmp_path, "--facts", "facts.json")
    assert finished.returncode == 0, finished.stdout[-4000:]
    facts = json.loads((tmp_path / "facts.json").read_text())
    books = of_the_pipeline(facts)
    assert books.wrong == []
    told = re.search(r"PASS: ([\d,]+) records published", finished.stdout)
    assert told, finished.stdout[-4000:]
    published = sum(one["published"] for one in facts["topics"].values())
    assert f"{published:,}" == told[1]
    assert books.total.published == published + facts["alerts"]["published"]
    assert min(one.published for one in books.accounts) > 0
    assert facts["waiting"][-1] == 0  # the end of the tour's curve
    outputs = re.findall(r"s    (\S+) runs, (\d) of 9$", finished.stdout, re.MULTILINE)
    assert [number for _, number in outputs] == list("123456789")  # progress while Spark starts


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
