"""The compiled twin does what the Python beside it does, and can be left out."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hashing import python_fnv1a
from penstock.log.columns import NULL, python_cut
from penstock.scaling.cells import Cells, PythonCells
from penstock.speedups import SWITCH, compiled

ROOT = Path(__file__).parents[1]
SAME = [
    "tests/scaling/test_ring.py",
    "tests/scaling/test_ring_waiting.py",
    "tests/scaling/test_hot_conformance.py",
    "tests/log/test_columns.py",
    "tests/test_hashing.py",
]
"""What is compiled, under the tests that hold for both."""
ALIKE = "not ten_thousand_topics"
"""Left out: what takes long and comes near nothing that is compiled."""

needs_twin = pytest.mark.skipif(compiled is None, reason="penstock._speedups was not built")


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_same_tests_pass_without_the_twin():
    """The whole suite runs with it, where it was built."""
    done = python(
        "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", ALIKE, *SAME,
        **{SWITCH: "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_switch_leaves_it_out():
    program = "from penstock.scaling.cells import Cells; print(Cells.__name__)"
    assert python("-c", program, **{SWITCH: "0"}).stdout == "PythonCells\n"


@needs_twin
def test_it_is_chosen_where_it_was_built():
    assert Cells is compiled.Cells
    assert Cells is not PythonCells


@needs_twin
@given(st.binary(max_size=100))
def test_hashes_are_the_same(key):
    assert compiled.fnv1a(key) == python_fnv1a(key)


@needs_twin
@given(
    st.lists(st.none() | st.binary(max_size=40), max_size=30)
    | st.integers(1, 9).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size))),
    st.binary(max_size=5),
)
def test_pieces_are_the_same(pieces, before):
    lengths = np.array([NULL if one is None else len(one) for one in pieces], "<u4")
    body = before + b"".join(one for one in pieces if one is not None)
    assert (
        compiled.cut(body, len(before), lengths) == python_cut(body, len(before), lengths) == pieces
    )


@needs_twin
def test_lengths_beyond_the_bytes_are_refused():
    with pytest.raises(ValueError, match="beyond the body"):
        compiled.cut(b"abc", 1, np.array([1, 2], "<u4"))
