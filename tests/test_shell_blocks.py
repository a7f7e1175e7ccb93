"""Every line of shell in the documents names commands, options, targets, files and extras that there are.

Nothing is run: see tests/shell_lines.py. A line that cannot be checked is excused by the reason above its block,
``<!-- not executed: needs a cluster -->``; the other lines of that block are checked all the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command needs: pip install 'penstock[cli]'")
pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

from tests.shell_lines import Page, Unknown, Wrong, commands_of, lines_of
from tests.snippets import FENCE, ROOT, Block, blocks_of

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
RUN_ELSEWHERE = {"docs/cli.md": "tests/cli/test_cli_page.py"}
"""Pages whose console blocks are run, by that file."""
PROGRAMS = re.compile(
    r"^(\$ |(\.venv/bin/)?(cd|export|git|kubectl|make|penstock|pip|python|spark-submit) [-.\w'/])"
)
"""How a line begins that is meant to be typed."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def typed(page: str, text: str) -> list[Block]:
    """The blocks of shell, and what is typed in those that show a terminal."""
    found = blocks_of(text, "sh")
    if page in RUN_ELSEWHERE:
        return found
    for one in blocks_of(text, "console"):
        lines = [line[2:] if line.startswith("$ ") else "" for line in one.code.split("\n")]
        found.append(Block("\n".join(lines), one.line, one.skipped_because))
    return sorted(found, key=lambda one: one.line)


def complaints(page: str, text: str) -> list[str]:
    """What is wrong with the blocks of a page."""
    wrong: list[str] = []
    checker = Page()
    for block in typed(page, text):
        excused = False
        if block.skipped_because == "":
            wrong.append(f"{page}:{block.line}: give the reason")
        for number, line in lines_of(block.code):
            place = f"{page}:{block.line + number}"
            try:
                checker.check(line)
            except Wrong as one:
                wrong.append(f"{place}: {one}: {line}")
            except Unknown as one:
                excused = True
                if block.skipped_because is None:
                    wrong.append(f"{place}: say above the block why {one} is not executed: {line}")
        if block.skipped_because is not None and not excused:
            wrong.append(f"{page}:{block.line}: every line is understood: no reason is needed")
    reasons = " ".join(one.skipped_because or "" for one in typed(page, text))
    named = re.findall(r"tests/\S+\.py", reasons)
    return wrong + [f"{page}: there is no {one}" for one in named if not (ROOT / one).is_file()]


def untagged(text: str) -> list[str]:
    """Lines that are meant to be typed, in blocks that do not say so."""
    others = [one for one in FENCE.finditer(text) if one["language"] not in {"sh", "console"}]
    lines = [line for one in others for line in one["code"].split("\n")]
    return [line for line in lines if PROGRAMS.match(line)]


WITH_SHELL = [page for page in PAGES if typed(name_of(page), page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", WITH_SHELL, ids=name_of)
def test_every_line_of_shell_names_what_there_is(page):
    assert complaints(name_of(page), page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_meant_to_be_typed_is_in_a_block_of_shell(page):
    text = page.read_text(encoding="utf-8")
    assert untagged(text) == []
    assert len(re.findall(r"^[ \t]*```", text, re.MULTILINE)) % 2 == 0, "unclosed block"


def test_there_are_many():
    assert len(WITH_SHELL) > 25


# ------------------------------------------------------------------------------------ the checker


@pytest.mark.parametrize(
    "line",
    [
        "penstock dlq replay 1f0c9a2e-7 --dry-run   # nothing is done",
        "penstock --url log:./data group list -o json > groups.json",
        "penstock --install-completion",
        "cd data && penstock topic list",
        "make test ARGS='tests/log -k recovery -x'",
        "make demo FAST=1",
        "HYPOTHESIS_PROFILE=quick make test",
        "PENSTOCK_SPEEDUPS=0 pip wheel --no-deps --wheel-dir dist .",
        "PENSTOCK_THRESHOLDS_STALLED_SECONDS=60",
        "python examples/crash_demo/main.py --records 50000 --kills 8",
        "python -m penstock --version",
        "python -m examples.tour",
        ".venv/bin/python -m tests.costs costs",
        "python -m venv env",
        "pip install '.[arrow,cli]' fastapi 'uvicorn>=0.30'",
        "pip install './dist/penstock-0.1.0-py3-none-any.whl[kafka]'",
        'export PENSTOCK_DASHBOARD_TOKEN="$(openssl rand -hex 32)" SHOP=1',
        "git clone https://example.org/penstock && cd penstock",
    ],
)
def test_a_right_line_is_fine(line):
    Page().check(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("penstock topics list", "No such command 'topics'"),
        ("penstock topic lst", "No such command 'lst'"),
        ("penstock topic list --colour", "No such option"),
        ("penstock topic create", "Missing argument"),
        ("penstock topic create orders --partitions many", "Invalid value"),
        ("penstock topic list orders", "unexpected extra argument"),
        ("penstock --url log:./data", "no verb"),
        ("cd data && penstock topic lst", "No such command"),
        ("printf x | penstock topic lst", "No such command"),
        (
            "penstock pipeline run examples/shop_pipeline/shops.py",
            "no examples/shop_pipeline/shops",
        ),
        ("python -m penstock topic lst", "No such command"),
        ("make tests", "no target tests"),
        ("make lint FAST=1", "lint does not use FAST"),
        ("make test ARGS='tests/logs -x'", "no tests/logs"),
        ("python examples/crash/main.py", "no examples/crash/main.py"),
        ("python examples/crash_demo/main.py --deaths 8", "no --deaths"),
        ("python -m examples.tours", "no module examples.tours"),
        ("python -m tests", "no module tests that runs"),
        ("python -m hatchling build -t sdist", "hatchling is installed by nothing above"),
        ("pip install 'penstock[kafak]'", "no extra kafak"),
        ("pip install '.[cli,colour]'", "no extra colour"),
        ("pip install 'penstock[cli'", "nothing that pip can get"),
        ("pip wheel --no-dependants .", "no option of pip"),
        ("export PENSTOCK_TOKENS=1", "PENSTOCK_TOKENS means nothing"),
        ("PENSTOCK_URI=log:./data penstock topic list", "PENSTOCK_URI means nothing"),
        ("export HOME", "no value"),
        ("penstock topic create 'orders", "No closing quotation"),
    ],
)
def test_a_wrong_line_is_found(line, said):
    with pytest.raises(Wrong, match=re.escape(said)):
        Page().check(line)


@pytest.mark.parametrize(
    "line", ["kubectl get pods", "pip freeze", "git push", "make -n test", "python -c 1", "cd a b"]
)
def test_what_cannot_be_checked_is_told(line):
    with pytest.raises(Unknown):
        Page().check(line)


def test_what_a_page_installs_can_be_run_below():
    page = Page()
    page.check("pip install hatchling")
    page.check("python -m hatchling build -t sdist")


def test_a_line_that_goes_on_is_one_and_comments_are_none():
    code = "# first\npenstock topic \\\n  list  # all\n\nmake lint\n"
    lines = list(lines_of(code))
    assert [number for number, _ in lines] == [1, 4]
    assert list(commands_of(lines[0][1])) == [["penstock", "topic", "list"]]


REASON = "<!-- not executed: needs a cluster -->\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\nmake lint\nmake tests\n```\n", "page:3: the Makefile has no target tests"),
        ("```sh\nkubectl get pods\n```\n", "page:2: say above the block why kubectl"),
        (f"{REASON}```sh\nkubectl get pods\nmake tests\n```\n", "no target tests"),
        (f"{REASON}```sh\nmake lint\n```\n", "no reason is needed"),
        ("<!-- not executed: -->\n```sh\nkubectl get pods\n```\n", "give the reason"),
        (
            "<!-- not executed: x; tests/none.py does it -->\n```sh\nkubectl\n```\n",
            "no tests/none.py",
        ),
        ("```console\n$ make tests\nmake of what is shown\n```\n", "no target tests"),
        ("- item\n\n    ```sh\n    make tests\n    ```\n", "no target tests"),
    ],
)
def test_what_is_wrong_with_a_page_is_told_with_its_line(text, said):
    [told] = complaints("page", text)
    assert said in told


def test_a_reason_excuses_its_block():
    assert complaints("page", f"{REASON}```sh\nkubectl get pods\nmake lint\n```\n") == []


def test_commands_in_other_blocks_are_found():
    text = (
        "```\npython examples/order_log/main.py\n```\n```bash\nmake lint\n```\n```sh\nmake\n```\n"
    )
    assert untagged(text) == ["python examples/order_log/main.py", "make lint"]
