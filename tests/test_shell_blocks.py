"""Every line of shell in the documents names commands, options, targets, files and extras that there are.

That is checked here without running them, see tests/shell_lines.py, so it holds for lines too that no test can run.
tests/test_shell_pages.py runs the others. A line that is not run is one of a kind that tests/shell_kinds.py names with
its reason, and the page says so above the block: ``<!-- not executed: tests/test_tour.py does it -->``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from fnmatch import fnmatchcase

import pytest

pytest.importorskip("typer", reason="the command needs: pip install 'penstock[cli]'")
pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

from tests.shell_kinds import LEFT, RUN, SERVERS, Left, Undecided, left_out
from tests.shell_lines import (
    PAGES,
    Page,
    Unknown,
    Wrong,
    bare,
    commands_of,
    lines_of,
    name_of,
    typed,
)
from tests.snippets import FENCE, ROOT, Block

PROGRAMS = re.compile(
    r"^(\$ |(\.venv/bin/)?(cd|export|git|kubectl|make|penstock|pip|python|spark-submit) [-.\w'/])"
)
"""How a line begins that is meant to be typed."""


def complaints(page: str, text: str) -> list[str]:
    """What is wrong with the blocks of a page."""
    checker = Page()
    return [one for block in typed(page, text) for one in _of_block(page, block, checker)]


def _of_block(page: str, block: Block, checker: Page) -> list[str]:
    wrong: list[str] = []
    left: list[Left] = []
    for number, line in lines_of(block.code):
        place = f"{page}:{block.line + number}"
        try:
            left += left_out(line)
            with suppress(Unknown):  # what cannot be checked is run, or is left out with a reason
                checker.check(line)
        except Wrong as one:
            wrong.append(f"{place}: {one}: {line}")
        except Undecided as one:
            wrong.append(f"{place}: tests/shell_kinds.py has to say whether this is run: {one}")
    return wrong + [f"{page}:{block.line}: {one}" for one in _of_reason(block, left)]


def _of_reason(block: Block, left: list[Left]) -> list[str]:
    """What is wrong with what stands above a block."""
    said = block.skipped_because
    if said == "":
        return ["give the reason"]
    if said is not None and not left:
        return ["every line is run: no reason is needed"]
    named = re.findall(r"tests/\S+\.py", said or "")
    wrong = [f"there is no {one}" for one in named if not (ROOT / one).is_file()]
    wrong += [
        f"say above the block that {one.pattern} is not executed: {one.because}; {one.file}"
        for one in left
        if said is None or one.file not in said
    ]
    return wrong


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


REASON = "<!-- not executed: needs a cluster; tests/spark/test_kubernetes.py does it -->\n"
POD = "kubectl apply -f deploy/kubernetes/spark.yaml\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\npenstock --version\nmake tests\n```\n", "page:3: tests/shell_kinds.py has to say"),
        ("```sh\nrm -rf data\n```\n", "page:2: tests/shell_kinds.py has to say"),
        ("```sh\ncd a && rm -rf data\n```\n", "page:2: tests/shell_kinds.py has to say"),
        (f"```sh\n{POD}```\n", "page:2: say above the block that kubectl apply * is not executed"),
        (
            f"<!-- not executed: a cluster -->\n```sh\n{POD}```\n",
            "page:3: say above the block that kubectl apply * is not executed",
        ),
        (f"{REASON}```sh\n{POD}penstock topic lst\n```\n", "page:4: penstock: No such command"),
        (f"{REASON}```sh\npenstock --version\n```\n", "page:3: every line is run: no reason"),
        (f"<!-- not executed: -->\n```sh\n{POD}```\n", "page:3: give the reason"),
        (
            "<!-- not executed: x; tests/none.py does it -->\n```sh\nmake torture\n```\n",
            "no tests/none.py",
        ),
        ("```console\n$ penstock lst\npenstock of what is shown\n```\n", "No such command 'lst'"),
        ("- item\n\n    ```sh\n    penstock lst\n    ```\n", "No such command 'lst'"),
    ],
)
def test_what_is_wrong_with_a_page_is_told_with_its_line(text, said):
    [told] = complaints("page", text)
    assert said in told


def test_a_reason_excuses_its_block():
    assert complaints("page", f"{REASON}```sh\n{POD}penstock --version\n```\n") == []


@pytest.mark.parametrize("one", LEFT, ids=lambda one: one.pattern)
def test_what_is_left_out_has_a_reason_and_who_does_it_is_there(one):
    assert one.because
    if one.done_by:
        assert one.done_by.partition("::")[2] in (ROOT / one.file).read_text(encoding="utf-8")


def test_every_kind_is_in_a_page():
    """A pattern that nothing fits any more would hide the next line that does."""
    pages = [(name_of(page), page.read_text(encoding="utf-8")) for page in WITH_SHELL]
    lines = [line for page in pages for block in typed(*page) for _, line in lines_of(block.code)]
    commands = [" ".join(bare(words)) for line in lines for words in commands_of(line)]
    patterns = [*RUN, *SERVERS, *(one.pattern for one in LEFT)]
    assert [one for one in patterns if not any(fnmatchcase(each, one) for each in commands)] == []


def test_commands_in_other_blocks_are_found():
    text = (
        "```\npython examples/order_log/main.py\n```\n```bash\nmake lint\n```\n```sh\nmake\n```\n"
    )
    assert untagged(text) == ["python examples/order_log/main.py", "make lint"]
