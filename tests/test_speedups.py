"""The compiled twin does what the Python beside it does, and can be left out."""

import gc
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record, WalMessageQueue
from penstock.hashing import python_fnv1a
from penstock.log.columns import (
    NULL,
    Columns,
    decode,
    python_cut,
    python_plain_lengths,
    python_records,
)
from penstock.log.inlet import TopicInlet
from penstock.scaling.cells import Cells, PythonCells
from penstock.speedups import SWITCH, compiled

ROOT = Path(__file__).parents[1]
SAME = [
    "tests/bus/test_bus_conformance.py",
    "tests/bus/test_in_place.py",
    "tests/bus/test_room.py",
    "tests/bus/test_event_queue.py",
    "tests/bus/test_queue_bounds.py",
    "tests/bus/test_compiled_way.py",
    "tests/resilience/test_breaker.py",
    "tests/scaling/test_ring.py",
    "tests/scaling/test_ring_waiting.py",
    "tests/scaling/test_hot_conformance.py",
    "tests/log/test_columns.py",
    "tests/log/test_fetched.py",
    "tests/log/test_writer.py",
    "tests/log/test_inlet.py",
    "tests/log/test_published.py",
    "tests/log/test_exact_figures.py",
    "tests/test_hashing.py",
    "tests/scaling/test_short_way.py",
    "tests/scaling/test_ring_model.py",
    "tests/scaling/test_ring_schedules.py",
    "tests/scaling/test_ring_topologies.py",
    "tests/scaling/test_scalable_bus.py",
    "tests/log/test_golden.py",
    "tests/log/test_subscription.py",
    "tests/log/test_routing.py",
]
"""What is compiled, under the tests that hold for both."""
ALIKE = "not ten_thousand_topics"
"""Left out: what takes long and comes near nothing that is compiled."""

WRITES = """
import asyncio, hashlib
from penstock import TopicConfig, WalMessageQueue
from penstock.speedups import compiled
from penstock.testing.worker import simulated_system

def values(count, first=0):
    return [b"%d" % number * (number % 40) for number in range(first, first + count)]

async def write(queue):
    await queue.create_topic("orders", TopicConfig(partitions=3))
    for number, value in enumerate(values(500)):  # some that the twin takes, some that it leaves to Python
        queue.publish_nowait("plain", value) if number % 2 else queue.publish_nowait("plain", value, b"key")
    queue.publish_nowait("plain", None, b"key", {"kind": b"gone"}, 1_700_000_000_000)
    await queue.flush()
    await queue.publish_many("plain", [*values(1_000), None])
    await queue.publish_many("plain", values(50))
    await queue.publish_many("orders", values(300), keys=[b"customer-%d" % one for one in range(300)])
    for value in values(30):
        await queue.publish("orders", value, key=value or b"none")

async def main():
    system = simulated_system(7)
    async with WalMessageQueue("/data/log", system=system) as queue:
        await queue.create_topic("plain")
        await write(queue)
    for path in sorted(system.files.files()):
        data = system.files.content(path)
        print(path, len(data), hashlib.sha256(data).hexdigest())
    print("twin" if compiled is not None else "Python")

asyncio.run(main())
"""
"""Writes what the twin has a part in, on a disk and by a clock that are simulated; tells every byte."""

needs_twin = pytest.mark.skipif(compiled is None, reason="penstock._speedups was not built")


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timeout(900)
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
def test_the_files_of_a_log_are_the_same_bytes_with_and_without_it():
    with_twin, without = (python("-c", WRITES, **{SWITCH: switch}) for switch in ("1", "0"))
    assert with_twin.returncode == 0, with_twin.stderr
    *files, twin = with_twin.stdout.splitlines()
    *others, plain = without.stdout.splitlines()
    assert (twin, plain) == ("twin", "Python")
    assert sum(".log " in line for line in files) == 4
    assert files == others


@needs_twin
def test_one_that_was_built_from_other_sources_is_left_out():
    program = (
        "import penstock._speedups as twin; twin.REVISION = 0\n"
        "from penstock.scaling.cells import Cells; print(Cells.__name__)"
    )
    assert python("-c", program).stdout == "PythonCells\n"


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
    for buffer in (body, memoryview(body), memoryview(b"ab" + body + b"cd")[2:-2]):
        found = compiled.cut(buffer, len(before), lengths)
        assert found == python_cut(buffer, len(before), lengths) == pieces


@needs_twin
def test_lengths_beyond_the_bytes_are_refused():
    with pytest.raises(ValueError, match="beyond the body"):
        compiled.cut(b"abc", 1, np.array([1, 2], "<u4"))


@needs_twin
@pytest.mark.parametrize(
    ("keys", "values"), [([4], [0]), ([0], [4]), ([NULL - 1], [1]), ([2, 2], [0, 0])]
)
def test_records_that_go_beyond_the_bytes_are_refused(keys, values):
    lengths = [np.array(one, "<u4") for one in (keys, values)]
    with pytest.raises(ValueError, match="beyond the body"):
        compiled.records(Record, "orders", 0, 0, 0, {}, b"abc", 0, lengths[0], 0, lengths[1])


@needs_twin
def test_there_are_as_many_keys_as_values():
    lengths = np.zeros(2, "<u4")
    with pytest.raises(ValueError, match="as many keys"):
        compiled.records(Record, "orders", 0, 0, 0, {}, b"", 0, lengths[:1], 0, lengths)


@needs_twin
@given(st.lists(st.binary(max_size=9)) | st.lists(st.none() | st.binary(max_size=9) | st.text()))
def test_lengths_of_bytes_are_the_same(items):
    assert compiled.plain_lengths(items) == python_plain_lengths(items)


@needs_twin
@pytest.mark.parametrize(
    "method", [TopicInlet.add_nowait, Cells.publish, WalMessageQueue.publish_nowait]
)
def test_compiled_methods_refuse_what_is_not_theirs(method):
    with pytest.raises(TypeError, match="apply to a"):
        method(SimpleNamespace(), b"x", b"y")


@needs_twin
@pytest.mark.parametrize("row", ["None", "object()"])
def test_what_is_no_row_is_refused(row):
    """In a process of its own, which would end without a word."""
    program = f"from penstock.log.published import resume; resume([{row}])"
    assert "TypeError" in python("-c", program).stderr


def test_compiled_or_not_a_method_tells_its_arguments():
    told = list(inspect.signature(WalMessageQueue.publish_nowait).parameters)
    assert told == ["self", "topic", "value", "key", "headers", "timestamp"]


@needs_twin
def test_a_list_that_shrinks_while_an_array_is_made_is_looked_at_again():
    """An array is made for it, which may collect garbage, and that runs what it likes."""
    items = [b"abc"] * 1_000

    class Shrinks:
        def __init__(self):
            self.itself = self

        def __del__(self):
            del items[1:]

    gc.collect()
    kept = gc.get_threshold()
    Shrinks()
    gc.set_threshold(1)
    try:
        found = compiled.plain_lengths(items)
    finally:
        gc.set_threshold(*kept)
    assert list(found) == [3] * len(items)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))),
    st.booleans(),
    st.booleans(),
)
def test_records_are_the_same(rows, keyed, timed):
    columns = Columns(
        [value for _, value in rows],
        [key for key, _ in rows] if keyed else None,
        list(range(len(rows))) if timed else None,
    )
    flags, body = columns.encode()
    view = decode(b"".join(body), flags, len(rows), 1 << 40, 17)
    found = view.records("orders", 3)
    assert found == python_records(view, "orders", 3)
    assert [(one.key if keyed else None, one.value) for one in found] == [
        (key if keyed else None, value) for key, value in rows
    ]
