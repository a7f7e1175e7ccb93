"""What transports of brokers share when they produce: columns, and the partition of each row."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidOption
from penstock.hashing import fnv1a
from penstock.transports.producing import Routing, Rows


def test_a_row_has_what_its_columns_have():
    rows = Rows([b"a", None], keys=[None, b"k"], timestamps=[1, 2])
    assert [rows.row(0), rows.row(1)] == [(b"a", None, None, 1), (None, b"k", None, 2)]


@pytest.mark.parametrize("name", ["keys", "headers", "timestamps"])
def test_a_column_that_is_too_short_is_refused(name):
    short: dict[str, Any] = {name: [None]}
    with pytest.raises(InvalidOption, match=name):
        Rows([b"a", b"b"], **short)


def test_keys_have_their_partition_and_other_rows_take_turns():
    routing = Routing()
    keys = [b"x", None, b"y", None, None, b"x"]
    rows = Rows([b""] * 6, keys=keys)
    x, y = fnv1a(b"x") % 3, fnv1a(b"y") % 3
    assert routing.numbers("orders", 3, rows) == [x, 0, y, 1, 2, x]
    assert routing.numbers("orders", 3, Rows([b""] * 2)) == [0, 1]
    assert routing.numbers("others", 3, Rows([b""])) == [0], "each topic has its own turn"
    assert routing.numbers("orders", 3, Rows([b""])) == [2]


def test_places_are_in_order_by_partition():
    routing = Routing()
    assert routing.places("orders", 2, Rows([b""] * 5)) == {0: [0, 2, 4], 1: [1, 3]}
    assert routing.places("orders", 2, Rows([b""])) == {1: [0]}


def test_one_partition_gets_all_and_nothing_goes_nowhere():
    routing = Routing()
    assert routing.places("orders", 1, Rows([b""] * 3, keys=[b"x", None, b"y"])) == {0: [0, 1, 2]}
    assert routing.places("orders", 1, Rows([])) == {}
    assert routing.places("orders", 4, Rows([])) == {}


def test_a_hash_of_other_clients_is_for_keys_alone():
    routing = Routing(len)
    rows = Rows([b""] * 4, keys=[b"four", None, b"to", None])
    assert routing.numbers("orders", 3, rows) == [1, 0, 2, 1]
