"""Every line of shell in the documents that a test can run is run, and ends well.

The lines of a page run in order, in one shell, in a copy of the checkout: see tests/shell_runner.py. What is not run
stands in tests/shell_kinds.py. A page that works on something of the reader's finds it there, by ``WORLDS``.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("typer", reason="the command needs: pip install 'penstock[cli]'")
pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

import penstock
from penstock import Event, Retry, WalMessageQueue, topic
from penstock.errors import NotSupported
from tests.java import quick_environment
from tests.shell_lines import PAGES, lines_of, name_of, typed
from tests.shell_runner import Failed, Step, copy_checkout, run_steps, shown_below, steps_of
from tests.snippets import ROOT, blocks_of
from tests.spark.forks import NAME

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


def read(page: Path) -> list[Step]:
    return steps_of(name_of(page), page.read_text(encoding="utf-8"))


WITH_STEPS = [page for page in PAGES if read(page)]

# ------------------------------------------------------------------- what pages find where they run


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float


async def shop(path: Path) -> list[str]:
    """A log with a group that cannot bill some orders; their dead letters."""
    async with penstock.open(f"log:{path}") as bus:

        @bus.on(OrderPlaced, group="billing", retry=Retry(attempts=1), breaker=None)
        async def bill(order: OrderPlaced) -> None:
            if order.total < 0:
                raise ValueError(f"a total of {order.total}")

        for number, total in enumerate([-1.0, 5.0, -1.0]):
            await bus.publish(OrderPlaced(f"o-{number}", total))
        await bus.settle()
        return [one.id for one in bus.dead_letters.list()]


def with_log(folder: Path) -> dict[str, str]:
    asyncio.run(shop(folder / "data"))
    return {}


def with_letters(folder: Path) -> dict[str, str]:
    first, _ = asyncio.run(shop(folder / "data"))
    return {"1f0c9a2e-7": first}


def with_tour(folder: Path) -> dict[str, str]:
    asyncio.run(shop(folder / "build" / "tour" / "rush_hour" / "log"))
    return {}


def with_backup(folder: Path) -> dict[str, str]:
    (folder / "backup").mkdir()
    return with_log(folder) | {"/backup": str(folder / "backup")}


def with_disk(folder: Path) -> dict[str, str]:
    return {"/path/on/that/disk": str(folder / "disk")}


def with_pipeline(folder: Path) -> dict[str, str]:
    """The file that the page declares a pipeline in, and orders for it, a bad one too."""
    declared = blocks_of((ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8"))[0]
    (folder / "shop.py").write_text(declared.code)
    order = {"order_id": "o-1", "country": "FR", "cents": 950, "placed_at": "2026-01-01T12:00:00Z"}
    asyncio.run(publish(folder / "data", "orders", [json.dumps(order).encode(), b"bad"]))
    return {}


def with_shop_data(folder: Path) -> dict[str, str]:
    """What examples/shop_pipeline/main.py keeps, in small."""
    for name in ("clicks", "orders", "payments"):
        asyncio.run(publish(folder / "shop-data" / "log", name, [b"bad"]))
    return {}


async def publish(path: Path, name: str, values: list[bytes]) -> None:
    async with WalMessageQueue(path) as queue:
        await queue.publish_many(name, values)


def with_fewer_kills(folder: Path) -> dict[str, str]:
    return {"--records 50000 --kills 8": "--records 5000 --kills 2"}


class World(NamedTuple):
    """What a page needs, and what some of its lines must print, where to end well says little."""

    prepare: Callable[[Path], dict[str, str]]
    printed: Mapping[str, str] = {}
    module: str = "penstock"
    is_of_spark: bool = False


WORLDS = {
    "docs/cli.md": World(
        with_letters,
        {
            "penstock --install-completion": "bash completion installed",
            "penstock dlq list": "ValueError",
            "penstock dlq show": "ValueError",
            "penstock dlq edit": ": changed",
            "penstock dlq replay 1f0c9a2e-7 --dry-run": "would go",
            "penstock dlq replay --group billing": "replayed  for group billing",
            "penstock dlq purge": "purged",
        },
    ),
    "docs/dashboard.md": World(with_log, {"penstock dashboard": "GET /readyz: 200"}, "nicegui"),
    "docs/how-to/capacity.md": World(with_disk, {"penstock bench": "produce"}),
    "docs/how-to/upgrading.md": World(with_log, {"penstock --url log:./data log verify": "sound"}),
    "docs/operations.md": World(with_backup),
    "docs/pipelines.md": World(
        with_pipeline,
        {
            "penstock pipeline run shop.py --once": "silver-orders: micro-batch 0",
            "penstock pipeline status": "silver-orders",
            "penstock pipeline replay": "1 record replayed to orders",
            "penstock pipeline reset": "revenue: removed",
        },
        "deltalake",
        is_of_spark=True,
    ),
    "examples/crash_demo/README.md": World(with_fewer_kills, {"python": "PASS"}),
    "examples/shop_pipeline/README.md": World(
        with_shop_data, {"penstock pipeline status": "gold-revenue"}, "pyspark"
    ),
    "examples/tour/README.md": World(
        with_tour,
        {
            ".venv/bin/penstock dashboard": "GET /readyz: 200",
            ".venv/bin/penstock dlq": "ValueError",
        },
        "nicegui",
    ),
}


@pytest.mark.parametrize("page", WITH_STEPS, ids=name_of)
def test_the_lines_of_a_page_end_well(page, tmp_path, request):
    world = WORLDS.get(name_of(page), World(lambda folder: {}))
    pytest.importorskip(world.module)
    spark = spark_environment(request) if world.is_of_spark else {}
    folder = copy_checkout(tmp_path / "penstock")
    steps = read(page)
    printed = run_steps(steps, name_of(page), folder, world.prepare(folder), spark)
    for begin, wanted in world.printed.items():
        found = [printed[one.number] for one in steps if one.line.startswith(begin)]
        assert found, f"{name_of(page)} has no line that begins with {begin!r} any more"
        assert [one for one in found if wanted not in one] == []


def spark_environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """What lets Spark start quickly, where there is a Java."""
    from penstock.spark.java import find_java

    try:
        find_java()
    except NotSupported as missing:
        pytest.skip(str(missing))
    return {NAME: request.getfixturevalue("forks"), **quick_environment()}


def test_every_world_is_of_a_page():
    assert WORLDS.keys() <= {name_of(page) for page in WITH_STEPS}


def test_there_are_many():
    assert len(WITH_STEPS) > 10
    assert sum(len(read(page)) for page in WITH_STEPS) > 30


# -------------------------------------------------------------------------------------- the runner


def run(text: str, tmp_path: Path, **options: Any) -> dict[int, str]:
    """The lines of a page, whatever they are, in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    steps = [
        Step(block.line + number, line, shown_below(text, block.line + number))
        for block in typed("page", text)
        for number, line in lines_of(block.code)
    ]
    return run_steps(steps, "page", folder, **options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("false", "ended with 1"),
        ("exit 7", "ended with 7"),
        ("penstock topic list", "there is no log"),
        ("false | cat", "ended with 1"),
        ("cd nowhere && true", "nowhere"),
        ("false; true", "ended with 1"),
        ("echo $NOT_SET", "NOT_SET"),
        ("no-such-program", "ended with 127"),
        ("if true; then", "ended with 2"),
    ],
)
def test_a_line_that_fails_is_told_with_its_page_and_number(tmp_path, line, said):
    text = f"# Title\n\n```sh\ntrue\n{line}\ntouch ../reached\n```\n"
    with pytest.raises(Failed, match=f"^page:5: {re.escape(line)}\n(.|\n)*{said}"):
        run(text, tmp_path)
    assert not (tmp_path / "reached").exists()


def test_the_lines_of_a_page_share_a_shell_and_a_folder(tmp_path):
    first = "```sh\nexport SHOP=teapots; mkdir inner\ncd inner\n```\n"
    text = f'{first}Then\n```sh\necho "$SHOP in $(basename "$PWD")"\n```\n'
    assert run(text, tmp_path)[7] == "teapots in inner\n"


def test_only_what_is_not_left_out_is_run():
    text = "```sh\nmake torture\npenstock --version   # told\npip install .\n```\n"
    assert steps_of("page", text) == [Step(3, "penstock --version   # told")]


@pytest.mark.parametrize(
    "shown", ["one\ntwo\nthree", "one\n…\nthree", "one\n...\nthree", "o…\n..."]
)
def test_what_is_shown_is_what_is_printed(tmp_path, shown):
    run(f"```console\n$ printf 'one\\ntwo\\nthree\\n'\n{shown}\n```\n", tmp_path)


@pytest.mark.parametrize(
    "shown", ["", "one", "one\n…", "two\n...", "one\n...\ntwo", "one two three"]
)
def test_another_output_than_is_shown_is_told(tmp_path, shown):
    text = f"```console\n$ printf 'one\\ntwo\\nthree\\n'\n{shown}\n$ true\n```\n"
    with pytest.raises(Failed, match=r"^page:2: printf (.|\n)*and printed\none\ntwo"):
        run(text, tmp_path)


def test_other_places_and_numbers_stand_in_for_those_of_the_page(tmp_path):
    text = "```sh\necho /path\n```\n"
    assert run(text, tmp_path, instead={"/path": "./here"})[2] == "./here\n"


def test_a_place_that_the_page_does_not_name_any_more_is_told(tmp_path):
    with pytest.raises(AssertionError, match="page does not say '/path' any more"):
        run("```sh\necho /way\n```\n", tmp_path, instead={"/path": "./here"})


def test_nothing_of_the_checkout_is_reached(tmp_path):
    copy = copy_checkout(tmp_path / "penstock")
    run_steps([Step(1, "echo >src/penstock/changed.py")], "page", copy)
    assert (copy / "src" / "penstock" / "changed.py").exists()
    assert not (ROOT / "src" / "penstock" / "changed.py").exists()


# ------------------------------------------------------------------------- servers that a page starts

SERVER = """
import os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status})
        self.end_headers()

server = HTTPServer(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *about: os._exit({ends_with}))
open("pid", "w").write(str(os.getpid()))
print("at", f"http://127.0.0.1:{{server.server_port}}/", flush=True)
server.serve_forever()
"""


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """A page whose first line starts a server."""
    monkeypatch.setattr("tests.shell_kinds.SERVERS", ("python server.py*",))

    def serve(program: str) -> dict[int, str]:
        folder = tmp_path / "empty"
        folder.mkdir()
        (folder / "server.py").write_text(program)
        steps = [Step(4, "python server.py  # until Ctrl-C"), Step(5, "echo next")]
        return run_steps(steps, "page", folder)

    return serve


def test_a_server_is_stopped_when_it_has_answered(serving, tmp_path):
    printed = serving(SERVER.format(status=200, ends_with=0))
    assert "GET /readyz: 200" in printed[4]
    assert printed[5] == "next\n"
    pid = (tmp_path / "empty" / "pid").read_text()
    assert not Path("/proc", pid).exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (SERVER.format(status=503, ends_with=0), "Service Unavailable"),
        (SERVER.format(status=200, ends_with=3), "ended with 3"),
        ("print('no room')", "no room\nIt ended, and had named no address"),
    ],
)
def test_a_server_that_does_not_do_well_is_told(serving, program, said):
    with pytest.raises(Failed, match=f"^page:4: (.|\n)*{said}"):
        serving(program)
