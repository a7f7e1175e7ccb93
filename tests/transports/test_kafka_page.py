"""The page about moving to Kafka, on a real Kafka: its program by the new URL, and the move itself."""

import sys
import types
import uuid

import pytest

from tests.snippets import ROOT, Block, blocks_of, run_blocks
from tests.transports.servers.kafka import kafka_server

pytest.importorskip("confluent_kafka")

PAGE = "docs/how-to/kafka.md"
COPY = '"log:./copy"'
"""The page copies to a second log, which stands for Kafka."""


@pytest.fixture(scope="module")
def server():
    with kafka_server() as running:
        yield running


@pytest.fixture
def blocks(tmp_path, monkeypatch) -> list[Block]:
    """Those of the page, in an empty folder, as the main module; the topic has a name of its own."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.chdir(tmp_path)
    name = f'"orders-{uuid.uuid4().hex[:8]}"'
    found = blocks_of((ROOT / PAGE).read_text(encoding="utf-8"))
    assert any('"orders"' in one.code for one in found)
    return [Block(one.code.replace('"orders"', name), one.line, None) for one in found]


def test_the_program_of_the_page_runs_on_kafka_by_its_url(server, blocks, monkeypatch):
    monkeypatch.setenv("SHOP_URL", server.url)
    run_blocks(blocks[:1], PAGE, {"__name__": "__main__"})


def test_the_move_of_the_page_ends_on_kafka(server, blocks):
    assert any(COPY in one.code for one in blocks)
    moved = [Block(one.code.replace(COPY, f'"{server.url}"'), one.line, None) for one in blocks]
    run_blocks(moved, PAGE, {"__name__": "__main__"})
