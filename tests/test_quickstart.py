"""What a page calls fit to be pasted can be pasted into Python's asyncio console, and shows little."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT, blocks_of

SHOWN_CHARACTERS_MAX = 4_000
"""A statement whose value nobody wants to see is assigned to a name."""
README = "## Ten lines of the bus"


def pasted(blocks: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The blocks, each with one more Enter, in `python -m asyncio`."""
    return subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input="".join(f"{one}\n" for one in blocks),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def blocks(text: str) -> list[str]:
    return [one.code for one in blocks_of(text)]


def test_the_quickstart_can_be_pasted(tmp_path):
    pytest.importorskip("pyarrow", reason="the quickstart needs: pip install 'penstock[arrow]'")
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    ended = pasted(blocks(text), tmp_path)
    assert "Error" not in ended.stderr
    for wanted in ("bill o-1 9.5", "paid o-1", "0 0 True", "1101 records in"):
        assert wanted in ended.stdout
    assert len(ended.stdout) < SHOWN_CHARACTERS_MAX


def test_the_ten_lines_of_the_bus_can_be_pasted(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition(README)[2]
    ended = pasted(blocks(text)[:1], tmp_path)
    assert "Error" not in ended.stderr
    assert "bill o-1 9.5" in ended.stdout


def test_a_block_that_cannot_be_pasted_is_noticed(tmp_path):
    ended = pasted(["for number in range(2):\n    pass\nawait done()\n"], tmp_path)
    assert "SyntaxError" in ended.stderr
