"""Every Python example in the documents runs, and every relative link leads to a file.

The blocks of one page share a namespace and run in order, in an empty folder. `await` may stand at
the top level. A block that needs more says what, and which file of the tests runs it: see tests/snippets.py.
"""

import ast
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from penstock import WalMessageQueue, open_store
from penstock.transports import TransportRegistry
from tests.running import run_python
from tests.servers import postgres_server
from tests.snippets import FENCE, blocks_of, examples_for, run_blocks, run_examples

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
ANY_FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)


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


POSTGRES = "postgresql://penstock@db.example/app"


@pytest.mark.parametrize(
    ("page", "instead"), [("docs/how-to/postgresql.md", {}), ("docs/stores.md", {POSTGRES: "DSN"})]
)
def test_the_examples_for_postgresql_run(tmp_path, monkeypatch, page, instead):
    monkeypatch.chdir(tmp_path)
    with postgres_server() as server:
        monkeypatch.setenv("DATABASE_URL", server.dsn)
        said = dict.fromkeys(instead, server.dsn)
        namespace = {"WalMessageQueue": WalMessageQueue, "open_store": open_store}
        run_examples(page, "tests/test_docs.py", said, {"__name__": "__main__", **namespace})


SHOP = """
import itertools
from penstock import Event

calls = itertools.count()

class OrderPaid(Event):
    order_id: str

class OrderShipped(Event):
    order_id: str

def register_handlers(bus):
    @bus.on(OrderPaid)
    async def ship(event):
        if next(calls) == 1:
            raise ConnectionError("not at the first try")
        await bus.publish(OrderShipped(event.order_id))

"""


def test_the_tests_of_the_testing_page_pass(tmp_path):
    """They are a test module of the reader's, and become one here."""
    [block] = examples_for("docs/testing.md", "tests/test_docs.py", {})
    (tmp_path / "test_shop.py").write_text(SHOP + block.code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    finished = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert "2 passed" in finished.stdout


# ---------------------------------------------------------------------------------- other languages

LANGUAGES = {"python", "sh", "console", "toml", "text", ""}
"""Lines of shell: tests/test_shell_pages.py. Text and nothing: layouts and what programs print, which nobody runs."""
TOML = {"docs/configuration.md", "docs/transports.md"}
"""Read below, each by its own test."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_is_of_a_language_that_the_tests_run(page):
    languages = {match["language"] for match in FENCE.finditer(page.read_text(encoding="utf-8"))}
    assert languages <= LANGUAGES
    assert ("toml" in languages) is (name_of(page) in TOML)


def toml_of(page: str) -> str:
    [block] = blocks_of((ROOT / page).read_text(encoding="utf-8"), "toml")
    return block.code


def test_the_settings_of_the_page_are_read_from_the_file_as_from_the_environment(
    tmp_path, monkeypatch
):
    pytest.importorskip("pydantic_settings", reason="needs: pip install 'penstock[config]'")
    from penstock.config import load_settings

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("penstock.toml").write_text(toml_of("docs/configuration.md"))
    from_file = load_settings()
    Path("penstock.toml").unlink()
    assert load_settings() != from_file
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name, value in re.findall(r"^\$ export (PENSTOCK_\w+)=(\S+)$", page, re.MULTILINE):
        monkeypatch.setenv(name, value)
    assert load_settings() == from_file


def test_the_entry_point_of_the_page_brings_a_transport(tmp_path, monkeypatch):
    """As pip leaves a package: its code, and what it said of itself."""
    [(group, points)] = tomllib.loads(toml_of("docs/transports.md"))["project"][
        "entry-points"
    ].items()
    [(scheme, place)] = points.items()
    module, _, name = place.partition(":")
    file = tmp_path / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"from penstock.transports import EmbeddedTransport\nclass {name}(EmbeddedTransport): pass\n"
    )
    told = tmp_path / "my_package-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{group}]\n{scheme} = {place}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert TransportRegistry().find(f"{scheme}://loft").__name__ == name


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_a_block_that_does_not_run_says_why(page):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert len(blocks) == len(re.findall(r"^[ \t]*```python", text, re.MULTILINE)), "unclosed block"
    for block in blocks:
        reason = block.skipped_because
        assert reason != "", f"{name_of(page)}:{block.line}: give the reason"
        if reason is not None:
            named = re.search(r"(tests/\S+\.py) (runs|does) it", reason)
            assert named, f"{name_of(page)}:{block.line}: say which file of the tests runs it"
            beside = (ROOT / named[1]).parent.glob("*.py")
            assert any(page.name in one.read_text(encoding="utf-8") for one in beside)


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
