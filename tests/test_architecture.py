"""ARCHITECTURE.md names files and classes that are there, and a new part takes at most four files."""

import re
from pathlib import Path

import pytest

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
    """What can be added, and the cells that say in which files."""
    rows = re.findall(r"^\| ([^|]+) \| (.*) \|$", section("## Where a new part goes"), re.MULTILINE)
    return {name: [cell for cell in map(str.strip, rest.split("|")) if cell] for name, rest in rows}


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
    for wanted in ("transport", "store", "strategy of pressure", "verb of the command line"):
        assert wanted in parts
    for name, cells in parts.items():
        if name != "To add a …":
            assert 2 <= len([cell for cell in cells if set(cell) != {"-"}]) <= 4, name


def test_each_step_of_a_new_part_names_a_file():
    for name, cells in new_parts().items():
        if name != "To add a …":
            assert all(FILE.search(cell) for cell in cells), name
