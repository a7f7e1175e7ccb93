"""The documentation site: every page is in it, its links lead somewhere, and it loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mkdocs.utils.yaml import yaml_load

from scripts.reference_text import as_markdown
from scripts.site_pages import beside, turned

ROOT = Path(__file__).parent.parent
CONFIG: dict[str, Any] = yaml_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
BESIDE = frozenset({"examples/README.md", "examples/order_bus/README.md", "CHANGELOG.md"})


def pages_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_in(part)]


def test_every_page_is_in_the_navigation_once():
    pages = pages_in(CONFIG["nav"])
    assert len(pages) == len(set(pages))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    without = {line.removeprefix("/") for line in CONFIG["not_in_nav"].split()}
    assert written - set(pages) - without == set()
    assert set(pages) <= written | set(beside())


def test_every_word_of_the_vocabulary_has_a_page():
    index = (ROOT / "docs" / "concepts" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\(([a-z-]+\.md)\)", index))
    assert listed == {path.name for path in ROOT.glob("docs/concepts/*.md")} - {"index.md"}


def test_nothing_is_loaded_from_elsewhere():
    [strings] = [one["mkdocstrings"] for one in CONFIG["plugins"] if isinstance(one, dict)]
    assert CONFIG["theme"]["font"] is False
    assert strings["handlers"]["python"]["inventories"] == []
    assert not {"extra_css", "extra_javascript"} & set(CONFIG)


@pytest.mark.parametrize(
    ("page", "target", "wanted"),
    [
        ("observe.md", "../examples/order_bus/README.md", "examples/order_bus/README.md"),
        ("how-to/kafka.md", "../../CHANGELOG.md", "../CHANGELOG.md"),
        ("how-to/kafka.md", "../transports.md", "../transports.md"),
        ("examples/README.md", "order_bus/README.md", "order_bus/README.md"),
        ("examples/order_bus/README.md", "../../docs/bus.md", "../../bus.md"),
        ("CHANGELOG.md", "docs/bus.md", "bus.md"),
        ("bus.md", "../nowhere.md", "../nowhere.md"),
    ],
)
def test_links_of_the_repository_are_turned_to_the_site(page, target, wanted):
    assert turned(page, target, BESIDE) == wanted


def test_docstrings_become_markdown():
    text = "See :meth:`Queue.open` and :class:`~penstock.Record`::\n\n    code\n\n::\n\n    more"
    assert as_markdown(text) == (
        "See `Queue.open` and `penstock.Record`:\n\n    code\n\n\n\n    more"
    )


NAMED = [
    "quickstart", "installation", "concepts/index", "format", "reliability", "design/README",
    "how-to/fastapi", "how-to/testing", "how-to/postgresql", "how-to/kafka", "how-to/spark-cluster",
    "how-to/durability", "how-to/capacity", "how-to/upgrading", "reference/index", "benchmarks/log",
]  # fmt: skip
VOCABULARY = [
    "topic", "partition", "record", "offset", "segment", "group", "member", "checkpoint", "lag",
    "attempt", "dead-letter", "pressure",
]  # fmt: skip


@pytest.mark.acceptance(154)
@pytest.mark.parametrize("page", [*NAMED, *(f"concepts/{word}" for word in VOCABULARY)])
def test_the_pages_that_readers_look_for_are_there(page):
    assert f"{page}.md" in pages_in(CONFIG["nav"])
    assert len((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split()) > 50


@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path):
    """What `make docs` does; --strict makes a failure of each warning."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    assert (tmp_path / "site" / "reference" / "penstock.html").exists()
