"""Every kind of file of a log, damaged in every way: noticed, or no application sees a difference.

One bit turned over, cut at any length, filled with zeros, swapped with another file, deleted. What an
application finds afterwards (``tests/log/whole_log.py``) is what it found before, or it is told.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import pytest

from penstock.log import slots
from penstock.log.records import Record
from penstock.spark.checkpoint import Condition
from tests.log.strategies import flip
from tests.log.whole_log import (
    KINDS,
    LAST_NOTES,
    PACKED,
    Files,
    kind_of,
    look,
    make_files,
    problems_of,
    topics_with,
)
from tests.scoreboard import Scores

FILES = make_files()
RIGHT = look(FILES)
ROOT = Path(__file__).parents[2]


@dataclass
class Tally:
    """What came of the damage that was done."""

    tried: int = 0
    wrong: int = 0
    lost: int = 0
    told: int = 0
    first: str = ""

    def add(self, what: str, files: Files, *keys: str) -> None:
        """Let an application look at the damaged files: with the parts of it that these keys are of."""
        self.tried += 1
        parts = dict.fromkeys(part for key in keys for part in parts_with(key, files))
        topics = dict.fromkeys(topic for key in keys for topic in topics_with(key))
        seen = look(files, tuple(parts) or ("groups",), tuple(topics))
        if seen.told:
            self.told += 1
        elif differing := [
            name for name, value in seen.values.items() if value != RIGHT.values[name]
        ]:
            wrong = any(_is_wrong(RIGHT.values[name], seen.values[name]) for name in differing)
            self.wrong += wrong
            self.lost += not wrong
            self.first = self.first or f"{what}: {differing}"

    def check(self) -> None:
        assert not self.first, self.first


COPIES = ("progress of a query", "plan of a query")
"""Spark's own checkpoint says the same: without the copy, a query goes on where it would have."""


def parts_with(key: str, files: Files) -> tuple[str, ...]:
    """The parts of an application that the damage to a file has to do with."""
    kind = kind_of(key)
    return ("queries",) if kind.name in COPIES and key not in files else kind.parts


def _is_wrong(right: object, found: object) -> bool:
    """Whether something is there that was not written; else something is missing."""
    if isinstance(right, list) and isinstance(found, list):
        return any(one not in right for one in found)
    return found is not None


def test_an_application_is_content_with_the_sound_log():
    assert not RIGHT.told
    assert problems_of(FILES) == []
    assert make_files() == FILES, "the same bytes every time"
    assert len(RIGHT.values["records of orders"]) == 10
    assert all(isinstance(one, Record) for one in RIGHT.values["records of orders"])
    assert RIGHT.values["last notes"] == RIGHT.values["records of notes"][LAST_NOTES:]
    assert RIGHT.values["query billing"][0] is Condition.SOUND


@pytest.mark.parametrize("topic", PACKED)
def test_the_log_has_a_topic_of_each_way_to_compress(topic):
    (content,) = [FILES[key] for key in FILES if key.startswith(f"topics/{topic}/0/0")]
    values = [one.value for one in RIGHT.values[f"records of {topic}"]]
    assert len(values) == 4
    assert not any(value in content for value in values), "nothing was compressed"


# The list of kinds is complete


def test_every_file_is_of_one_kind_and_every_kind_has_a_file():
    found = {kind_of(key).name for key in FILES}
    assert found == {kind.name for kind in KINDS}


def test_the_page_of_the_format_names_every_file():
    """Every key of the log fits a line of docs/format.md, and every line fits a key."""
    listed = (ROOT / "docs/format.md").read_text().split("```text\n")[1].split("```")[0]
    patterns = [one for line in listed.splitlines() for one in _patterns(line)]
    keys = [key.removeprefix("tier/") for key in FILES]
    for key in keys:
        assert any(re.fullmatch(pattern, key) for pattern in patterns), f"{key} is not in the page"
    for pattern in patterns:
        fits = [key for key in keys if re.fullmatch(pattern, key)]
        assert fits or "index" in pattern, f"{pattern} is in the page and not in the log"


def _patterns(line: str) -> Iterator[str]:
    names = re.split(r"\s{2,}", line)[0].split(", ")
    folder = names[0].rpartition("/")[0]
    for name in names:
        whole = name if "/" in name else f"{folder}/{name}"
        yield re.sub(r"<\w+>", "[^/]+", whole.replace(".", r"\.")).replace("…", ".*")


WRITERS = {
    "log/group_file.py": "group, bell",
    "log/offsets.py": "offset",
    "log/open_index.py": "index",
    "log/partition.py": "segment",
    "log/producer_file.py": "producer, done mark",
    "log/reader.py": "index",
    "log/repair_partition.py": "index; copies of what is damaged, which nobody reads",
    "log/rewrite.py": "rewritten segment, index",
    "log/slots.py": "head, offset, producer",
    "log/tiering.py": "segment, index",
    "log/topic.py": "topic",
    "log/transaction_decision.py": "decision",
    "log/transaction_staging.py": "staged records",
    "spark/ledger.py": "progress of a query, plan of a query",
    "spark/service.py": "an empty file that asks a service to stop",
    "streaming/guarded_store.py": "checkpoint",
}
"""The modules that write to a store, and the kinds of files that each writes."""


def test_no_other_module_writes_files_of_a_log():
    """Whoever writes a new kind of file finds this test, and with it the list of kinds."""
    found = set()
    for path in sorted((ROOT / "src/penstock").rglob("*.py")):
        name = str(path.relative_to(ROOT / "src/penstock"))
        if name.startswith(("stores/", "testing/")):
            continue
        if any(_writes(node) for node in ast.walk(ast.parse(path.read_text()))):
            found.add(name)
    assert found == set(WRITERS)
    kinds = " ".join(WRITERS.values())
    assert all(kind.name in kinds for kind in KINDS if kind.name != "lock")


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = ast.unparse(node.func.value)
    is_store = owner.endswith(("store", "tier", "backing"))
    return node.func.attr == "write_at" or (node.func.attr == "write" and is_store)


# One bit


def bits_of(key: str, every: int) -> Iterator[int]:
    """Of each ``every``-th byte all bits (1), or one, never the same in two bytes that follow."""
    for place in range(0, len(FILES[key]), every):
        if every == 1:
            yield from range(8 * place, 8 * place + 8)
        else:
            yield 8 * place + (place // every) % 8


def flipped(every: int) -> Tally:
    tally = Tally()
    for key, content in FILES.items():
        for bit in bits_of(key, every):
            changed = {**FILES, key: flip(content, bit)}
            tally.add(f"bit {bit} of {key}", changed, key)
    return tally


def tell_flips(scored: Scores, tally: Tally) -> None:
    scored(6, tried=tally.tried, bad=tally.wrong, told=tally.told)
    scored(7, tried=tally.tried, bad=tally.lost)


@pytest.mark.acceptance(56)
def test_a_flipped_bit_of_any_file_is_told_or_harmless(scored):
    """A bit of every seventeenth byte here; the tests of flips take every bit of the files of records."""
    tally = flipped(every=17)
    tally.check()
    tell_flips(scored, tally)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_every_flipped_bit_of_every_file_is_told_or_harmless(scored):
    tally = flipped(every=1)
    tally.check()
    tell_flips(scored, tally)


# Whole files


Case = tuple[str, Files, tuple[str, ...]]
"""What is done, the files afterwards, and those that it was done to."""


def damages(step: int) -> Iterator[Case]:
    """Each way to damage files."""
    for key, content in FILES.items():
        yield f"{key} deleted", {one: FILES[one] for one in FILES if one != key}, (key,)
        for name, changed in wholes(key, step):
            if changed != content:
                yield f"{key} {name}", {**FILES, key: changed}, (key,)
    yield from swaps()


def wholes(key: str, step: int) -> Iterator[tuple[str, bytes]]:
    content = FILES[key]
    size = len(content)
    yield "filled with zeros", bytes(size)
    yield "filled with ones", b"\xff" * size
    yield "followed by zeros", content + bytes(64)
    for cut in range(0, size, step):
        yield f"cut to {cut}", content[:cut]
        yield f"zero from {cut} on", content[:cut] + bytes(size - cut)


def swaps() -> Iterator[Case]:
    for one, other in itertools.combinations(FILES, 2):
        if FILES[one] != FILES[other]:
            changed = {**FILES, one: FILES[other], other: FILES[one]}
            yield f"{one} and {other} swapped", changed, (one, other)


def damaged(cases: Iterable[Case]) -> Tally:
    tally = Tally()
    for what, files, keys in cases:
        tally.add(what, files, *keys)
    return tally


def some(cases: Iterable[Case], every: int) -> Iterator[Case]:
    """All deletions, all swaps of two files of a kind or of a folder, and every n-th of the others."""
    for number, case in enumerate(cases):
        what, _, keys = case
        alike = len(keys) == 2 and (
            kind_of(keys[0]) == kind_of(keys[1])
            or PurePath(keys[0]).parent == PurePath(keys[1]).parent
        )
        if alike or what.endswith("deleted") or "filled" in what or not number % every:
            yield case


@pytest.mark.acceptance(56)
def test_damage_to_any_file_is_told_or_harmless(scored):
    tally = damaged(some(damages(step=61), every=7))
    tally.check()
    scored(8, tried=tally.tried, bad=tally.wrong + tally.lost, told=tally.told)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_all_damage_to_every_file_is_told_or_harmless(scored):
    tally = damaged(damages(step=1))
    tally.check()
    scored(8, tried=tally.tried, bad=tally.wrong + tally.lost, told=tally.told)


def test_files_that_are_made_anew_are_made_the_same():
    """An index is derived: lost or filled with zeros, it comes back byte for byte."""
    for key in [key for key in FILES if kind_of(key).name == "index"]:
        for content in (None, bytes(len(FILES[key]))):
            files = {one: FILES[one] for one in FILES if one != key or content is None}
            assert look(files | ({key: content} if content else {})).values == RIGHT.values


# The rig itself: it sees what a bug would do


def test_caught_slots_that_do_not_know_their_place(monkeypatch):
    """Without the key in the checksum, two subscribers get each other's offsets in silence."""
    plain = slots.SlottedFile.__init__

    def anywhere(self, store, key, magic):
        plain(self, store, key, magic)
        self._place = 0

    monkeypatch.setattr(slots.SlottedFile, "__init__", anywhere)
    files = make_files()
    one, other = (f"groups/{group}/orders-0.offset" for group in ("billing", "shipping"))
    seen = look({**files, one: files[other], other: files[one]}, ("offsets",))
    assert not seen.told
    assert seen.values["offsets of billing"] != RIGHT.values["offsets of billing"]


def test_caught_a_part_that_says_nothing():
    """A tally counts what an application is not told of."""
    tally = Tally()
    state = "groups/billing/members/state"
    tally.add("as it was", FILES, state)
    assert (tally.wrong, tally.lost) == (0, 0)
    files = dict(FILES)
    for key in FILES:
        if key.startswith("groups/billing/members/"):
            del files[key]
    tally.add("a group without a trace", files, state)
    assert (tally.wrong, tally.lost) == (1, 0)
    with pytest.raises(AssertionError, match="without a trace"):
        tally.check()
