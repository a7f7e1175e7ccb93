"""Every Python example in the documents runs, and every relative link leads to a file.

The blocks of one page share a namespace and run in order, in an empty folder. `await` may stand at
the top level. A block that cannot run says why in a comment on the line above it:

    <!-- not executed: needs a Kafka server -->

Blocks that need a PostgreSQL server name the test here that runs them with one.
"""

import ast
import asyncio
import inspect
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import postgres_server

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
SKIP = re.compile(r"<!--\s*not executed:(?P<reason>(?:(?!-->).)*)-->\s*\Z", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
ANY_FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One example: its code, the line it starts on, and why it is not run (None: it is)."""

    code: str
    line: int
    skipped_because: str | None


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        skip = SKIP.search(text[: match.start()])
        line = text.count("\n", 0, match.start("code")) + 1
        code = inspect.cleandoc("\n" + match["code"]) if match["indent"] else match["code"]
        found.append(Block(code, line, skip["reason"].strip() if skip else None))
    return found


def run_blocks(blocks: list[Block], filename: str, namespace: dict[str, object]) -> None:
    """Run the blocks in order; those that await share one event loop."""
    with asyncio.Runner() as runner:
        for block in blocks:
            # Empty lines in front make a traceback show the line of the page.
            source = "\n" * (block.line - 1) + block.code
            code = compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    runnable = [block for block in blocks if block.skipped_because is None]
    if not runnable:
        pytest.skip("; ".join(block.skipped_because or "" for block in blocks))

    # The page is the main module, so that classes in it resolve their annotations.
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    run_blocks(runnable, str(page), main.__dict__)


def test_the_examples_for_postgresql_run(tmp_path, monkeypatch):
    page = ROOT / "docs" / "how-to" / "postgresql.md"
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert all(
        "test_the_examples_for_postgresql_run" in (one.skipped_because or "") for one in blocks
    )
    monkeypatch.chdir(tmp_path)
    with postgres_server() as server:
        monkeypatch.setenv("DATABASE_URL", server.dsn)
        run_blocks(blocks, str(page), {"__name__": "__main__"})


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_a_block_that_does_not_run_says_why(page):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert len(blocks) == len(re.findall(r"^[ \t]*```python", text, re.MULTILINE)), "unclosed block"
    for block in blocks:
        assert block.skipped_because != "", f"{name_of(page)}:{block.line}: give the reason"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files(page):
    text = ANY_FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = match["target"].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


REFERENCE = ROOT / "docs" / "reference"
INSIDE = {"cli", "log", "upkeep"}
"""Packages without a page of their own: the log's names are those of penstock, the others serve the command."""


def public_names(package: Path) -> list[str]:
    """What `__all__` says, without importing what needs an extra."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                return list(ast.literal_eval(value))
    return []


def described(page: str) -> list[str]:
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def test_every_public_package_has_a_page_in_the_reference():
    source = ROOT / "src" / "penstock"
    packages = {path.parent.name for path in source.glob("*/__init__.py")} - INSIDE
    for package in sorted(packages):
        assert described(package) == [f"penstock.{package}"]


def test_every_name_of_the_front_door_is_described_once():
    source = ROOT / "src" / "penstock"
    here = [
        one.removeprefix("penstock.") for page in ("penstock", "log") for one in described(page)
    ]
    front = (REFERENCE / "penstock.md").read_text(encoding="utf-8")
    for name, package in re.findall(r"^\| `(\w+)` \| \[penstock\.(\w+)\]", front, re.MULTILINE):
        assert name in public_names(source / package), f"{name} is not in penstock.{package}"
        here.append(name)
    assert sorted([*here, "PenstockError", "errors"]) == sorted(public_names(source))


class TestTheRunner:
    """The runner itself fails where it should."""

    def test_blocks_share_a_namespace_and_a_loop(self):
        text = "```python\nimport asyncio\nloop = asyncio.get_running_loop\nfirst = loop()\n```\n"
        text = text.replace("first = loop()", "first = (await asyncio.sleep(0), loop())[1]")
        text += "\n```python\nawait asyncio.sleep(0)\nassert loop() is first\n```\n"
        run_blocks(blocks_of(text), "page", {})

    def test_a_failing_block_is_reported_at_its_line_of_the_page(self):
        text = "# Title\n\n```python\nfine = 1\nassert fine == 2\n```\n"
        with pytest.raises(AssertionError) as caught:
            run_blocks(blocks_of(text), "page", {})
        assert caught.traceback[-1].lineno + 1 == 5

    def test_only_the_block_below_the_comment_is_left_out(self):
        text = "<!-- not executed: a server -->\n```python\n1 / 0\n```\n```python\nok = 1\n```\n"
        assert [block.skipped_because for block in blocks_of(text)] == ["a server", None]

    def test_each_block_has_its_own_reason(self):
        block = "```python\n1 / 0\n```\n"
        text = f"<!-- not executed: one -->\n{block}<!-- not executed: two -->\n{block}"
        assert [one.skipped_because for one in blocks_of(text)] == ["one", "two"]

    def test_an_empty_reason_is_seen(self):
        assert blocks_of("<!-- not executed: -->\n```python\n```\n")[0].skipped_because == ""

    def test_an_indented_block_is_read(self):
        assert blocks_of("- item\n\n    ```python\n    x = 1\n    ```\n")[0].code.strip() == "x = 1"
