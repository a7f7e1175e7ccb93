"""What the README shows is what is there, and what was measured."""

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import headlines
from examples.tour.sums import Account, Books

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_figures_of_the_readme_are_those_of_the_committed_results():
    """After a new measurement: python -m benchmarks.headlines."""
    page = headlines.README.read_text()
    assert headlines.on_page(page) == page


def test_what_stands_around_the_figures_stays():
    page = f"a\n{headlines.BEGIN}\nold\n{headlines.END}\nb\n"
    changed = headlines.on_page(page)
    assert changed.startswith("a\n")
    assert changed.endswith("\nb\n")
    assert "old" not in changed
    assert changed.count("\n| ") > len(headlines.HEADLINES)


def test_the_figures_say_when_they_were_measured():
    first, last = {"started": "2026-11-15 09:00 UTC"}, {"started": "2026-11-16 01:00 UTC"}
    assert headlines.when({"a": last, "b": first}).startswith("Measured 2026-11-15 to 2026-11-16; ")
    assert headlines.when({"a": last}).startswith("Measured 2026-11-16; ")


def test_the_figures_say_which_ran_with_the_compiled_twin():
    used = {"machine": {"compiled twin": "in use"}}
    unused = {"machine": {"compiled twin": "not in use"}}
    old: dict[str, dict[str, str]] = {"machine": {}}
    told = headlines.twin({"bus": used, "log": used, "spark": old, "brokers": unused})
    assert told.startswith("With the [compiled twin](")
    assert told.endswith("): the bus and the log; without it: Spark and brokers.")
    assert headlines.twin({"bus": used}).endswith("): the bus.")
    assert headlines.twin({"bus": unused, "log": old}) == "Without the compiled twin."


@pytest.mark.parametrize("title", ["Ten lines of the bus", "Ten lines of the log"])
def test_ten_lines_are_ten(title):
    code = README.partition(f"## {title}")[2].partition("```python\n")[2].partition("```")[0]
    assert 5 < len([line for line in code.splitlines() if line.strip()]) <= 10


# ---------------------------------------------------------------------------------- the first screen


def test_it_says_in_three_sentences_what_it_is():
    _, first, _ = README.split("\n\n", 2)
    sentences = re.split(r"(?<=\.)\s+", first.strip())
    assert len(sentences) == 3
    assert sentences[0].startswith("Penstock is ")


def test_the_picture_is_of_the_path_of_a_message():
    [(told, place)] = re.findall(r"^!\[([^\]]+)\]\((\S+)\)$", README, re.MULTILINE)
    assert told.startswith("The path of a message")
    assert place.endswith(".svg")
    picture = ET.fromstring((ROOT / place).read_text(encoding="utf-8"))
    assert picture.tag.endswith("}svg")
    words = " ".join(picture.itertext())
    for room in ("bus", "log", "broker", "handler", "Spark", "dead letter"):
        assert room in words, room


def test_what_make_test_prints_first_is_what_its_scripts_print():
    """Its last line comes from pytest, and is rounded."""
    shown = README.partition("\n$ make test\n")[2].partition("```")[0].splitlines()
    made, installed, running = shown[:3]
    script = (ROOT / "scripts" / "environment").read_text(encoding="utf-8")
    assert made.startswith("Making .venv with Python 3.")
    assert re.search(r"Making \.venv with .*requirements/dev\.txt \.\.\.", script)
    packages = (ROOT / "scripts" / "system-packages").read_text(encoding="utf-8")
    said, _, names = installed.partition(": ")
    assert f"{said}: $missing..." in packages
    assert f"for package in {names.removesuffix(' ...')}; do" in packages
    assert running in (ROOT / "Makefile").read_text(encoding="utf-8")


OTHERS = (
    "asyncio.Queue", "bubus", "FastStream", "Celery", "SQLite", "Kafka", "Pulsar", "NATS", "RabbitMQ", "Spark",
)  # fmt: skip


def test_others_are_compared_and_it_says_when_to_take_them():
    text = README.partition("## Others")[2].partition("\n## ")[0]
    heading, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert heading == "| | Take it when | Penstock instead when |"
    assert all(len(cell.split()) > 2 for row in rows for cell in row.split("|")[2:4])
    names = " ".join(row.split("|")[1] for row in rows)
    assert [one for one in OTHERS if one not in names] == []
    assert "**Do not use Penstock** when" in text


def test_the_figures_name_the_machine():
    figures = README.partition(headlines.BEGIN)[2].partition(headlines.END)[0]
    assert re.search(
        r"Medians[.,] .*on .*\d cores?, \d+ GiB, Linux \S+, CPython 3\.\d+\.\d+", figures
    )


def test_the_sums_of_the_tour_are_those_that_the_tour_has(monkeypatch):
    """Everything that the tour publishes is fixed: its sizes, and the traffic of the shop by its seed."""
    pytest.importorskip("pyspark", reason="the shop needs: pip install 'penstock[spark]'")
    monkeypatch.delenv("PENSTOCK_EXAMPLE_FAST", raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES / "shop_pipeline"))
    kills, rush, shop, traffic = (
        loaded(monkeypatch, place)
        for place in (
            "crash_demo/main.py",
            "rush_hour/main.py",
            "shop_pipeline/main.py",
            "shop_pipeline/traffic.py",
        )
    )
    made = traffic.Traffic(1, shop.VISITS)
    for part in (made.first_half(), made.late(), made.second_half()):
        list(part)
    letters = rush.ORDERS // rush.STOLEN_EVERY
    books = Books(
        (
            Account("kills", kills.RECORDS, kills.RECORDS),
            Account("rush hour", rush.ORDERS, rush.ORDERS - letters, letters),
            Account("alerts", traffic.ALERTS, traffic.ALERTS),
            *(
                Account(name, one.published, one.good, one.bad, one.duplicates + one.too_late)
                for name, one in made.counts.items()
            ),
        )
    )
    assert books.wrong == []
    assert f"PASS: {books.total}\n" in README


def loaded(monkeypatch, place):
    """A file of an example, as a module."""
    name = f"readme_{place.replace('/', '_').removesuffix('.py')}"
    found = importlib.util.spec_from_file_location(name, EXAMPLES / place)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, name, module)
    found.loader.exec_module(module)
    return module


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_to_headings_that_are_there(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" not in target and anchor:
            assert anchor in anchors_of(page.parent / path if path else page), target


def test_a_reader_finds_what_there_is():
    for wanted in (
        "![",
        "$ make demo",
        "$ make test",
        "Do not use Penstock",
        "(docs/quickstart.md)",
        "(docs/how-to/index.md)",
        "(docs/reference/index.md)",
        "(ARCHITECTURE.md)",
        "(examples/README.md)",
    ):
        assert wanted in README


@pytest.mark.parametrize("level", ["in memory", "EVERY_MESSAGE", "EVERY_N_MESSAGES", "TIMED"])
def test_what_survives_is_told_for_each_level(level):
    text = README.partition("## What survives what")[2].partition("\n## ")[0]
    heading, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert level in heading
    faults = ("handler", "process", "machine", "disk", "bit")
    assert [fault for fault in faults if not any(fault in row for row in rows)] == []
    assert {row.count("|") for row in rows} == {heading.count("|")}
