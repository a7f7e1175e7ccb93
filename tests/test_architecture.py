"""ARCHITECTURE.md names files and classes that are there, and a new part takes the files that it says."""

import re
from pathlib import Path

import pytest

from penstock.transports.registry import BROKERS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([\w<>*./-]+\.(?:py|md|toml))`")
BESIDE_THE_ONE_BEFORE = re.compile(r"^[\w<>*.-]+$")


def section(title: str) -> str:
    """From a heading to the next one of its level."""
    level = title.partition(" ")[0]
    found = re.search(
        rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    assert found, title
    return found[1]


def new_parts() -> dict[str, list[str]]:
    """What can be added, and the files that its row names."""
    rows = re.findall(
        r"^\| ([a-z][^|]+) \| (.*) \|$", section("## Where a new part goes"), re.MULTILINE
    )
    return {name: FILE.findall(rest) for name, rest in rows}


def exists(name: str) -> bool:
    """Below src/penstock or the top; for a file that is still to be written, its folder is there."""
    if "<" in name:
        name = str(Path(name).parent)
    return any(any(home.glob(name)) for home in (SOURCE, ROOT))


def missing(text: str) -> list[str]:
    """The files that are not there. One without a folder may be beside the one before it."""
    wrong, folder = [], ""
    for name in FILE.findall(text):
        beside = BESIDE_THE_ONE_BEFORE.match(name) and exists(f"{folder}/{name}")
        if not exists(name) and not beside:
            wrong.append(name)
        folder = str(Path(name).parent)
    return wrong


def test_every_file_that_is_named_exists():
    assert missing(PAGE) == []


def test_a_file_that_is_gone_is_noticed():
    assert missing("`bus/bus.py` and `bus/omnibus.py`, `stores/<name>.py`") == ["bus/omnibus.py"]


def test_every_class_that_is_named_exists():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named = {name.partition(".")[0] for name in re.findall(r"\*\*`([A-Z][\w.]+)`\*\*", PAGE)}
    assert len(named) > 20
    assert [
        name for name in sorted(named) if not re.search(rf"^class {name}\b", code, re.MULTILINE)
    ] == []


@pytest.mark.parametrize(
    "title",
    ["In memory", "On the hot path", "On a durable topic", "On a broker", "Through Spark"],
)
def test_the_path_of_a_message_is_told_for_each_place(title):
    steps = re.findall(r"^\d\. ", section(f"### {title}"), re.MULTILINE)
    assert len(steps) >= 4
    assert FILE.search(section(f"### {title}"))


def test_a_new_part_takes_at_most_four_files():
    parts = new_parts()
    for wanted in (
        "transport",
        "store",
        "strategy of pressure, for a bus",
        "verb of the command line",
    ):
        assert wanted in parts
    for name, files in parts.items():
        assert 2 <= len(set(files)) == len(files) <= 4, name
    assert len({*parts["transport"], *parts["extra"]}) == 7


def test_each_broker_has_the_files_that_a_new_transport_takes():
    """Those of its row and of the extra's row: the name of the broker is in each of them, or is its name."""
    extras = {extra for _, extra in BROKERS.values()}
    assert len(extras) == 5
    parts = new_parts()
    for extra in extras:
        for name in [*parts["transport"], *parts["extra"]]:
            place = name.replace("<name>", extra)
            [path] = [home / place for home in (SOURCE, ROOT) if (home / place).is_file()]
            assert extra in path.read_text(encoding="utf-8").lower(), f"{path} has no {extra}"
