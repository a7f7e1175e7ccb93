"""Names follow the vocabulary: no abbreviations, bounds and units last. What differs stands in decision 0013."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.reading import ROOT, SOURCE, none_of, python_files, shown, tree_of

ABBREVIATIONS = {
    "addr", "arg", "args", "attr", "attrs", "avg", "buf", "cb", "cfg", "cmd", "cmds", "cnt", "conf",
    "conn", "ctx", "cur", "curr", "dest", "dst", "dlq", "env", "err", "errs", "evt", "exc", "func",
    "fn", "idx", "impl", "kw", "kwargs", "lst", "mgr", "msg", "msgs", "num", "obj", "opt", "opts",
    "param", "params", "pos", "prev", "proc", "ptr", "recv", "req", "res", "resp", "ret", "sec", "secs",
    "sess", "seq", "src", "stat", "stats", "tmp", "ts", "util", "utils", "val", "vals",
}  # fmt: skip
FROM_OUTSIDE = {
    "args", "kwargs",  # of a signature that is passed on
    "exc_info",  # what Python gives to __exit__
    "env_settings",  # pydantic-settings calls it so
    "tmp_path",  # a fixture of pytest
    "_Ts",  # types, as typing writes a row of them
}  # fmt: skip
EXCEPTIONS = {
    "cli/log.py": {"stats", "_stats"},  # a verb: decision 0013
    "scaling/shared_segment.py": {"STAT_BYTES_MAX"},  # /proc/PID/stat, a name of Linux
}
DECISION = (ROOT / "docs" / "design" / "0013-names.md").read_text(encoding="utf-8")


@cache
def given() -> dict[Path, list[tuple[str, int]]]:
    """The names of each file, with their lines."""
    return {path: list(names_in(tree_of(path))) for path in python_files(SOURCE)}


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is given: of functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def words_of(name: str) -> list[str]:
    return [one.lower() for one in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def short(path: Path, names: Iterable[tuple[str, int]]) -> list[str]:
    may = FROM_OUTSIDE | EXCEPTIONS.get(path.relative_to(SOURCE).as_posix(), set())
    return [
        f"{shown(path)}:{line}: {name}"
        for name, line in names
        if name not in may and not name.endswith("__") and ABBREVIATIONS.intersection(words_of(name))
    ]  # fmt: skip


def test_no_name_is_abbreviated():
    none_of([one for path, names in given().items() for one in short(path, names)])


def test_each_exception_is_needed():
    for place, names in EXCEPTIONS.items():
        there = {name for name, _ in given()[SOURCE / place]}
        assert names <= there, f"remove from EXCEPTIONS: {place}"


def test_a_bound_stands_last():
    """``segment_bytes_max``; the limits of scaling are the names of a contract, and stand in the decision."""
    first = {
        name
        for names in given().values()
        for name, _ in names
        if re.match(r"_*(max|min)_", name, re.IGNORECASE)
    }
    assert first
    assert [name for name in first if f"`{name}`" not in DECISION] == []


def test_the_rule_sees_each_kind_of_name():
    code = "def f(msg): pass\nclass CfgReader: pass\nnum_records = 1\nself.prev = 2\n"
    place = SOURCE / "system.py"
    assert len(short(place, names_in(ast.parse(code)))) == 4
    assert short(place, names_in(ast.parse("def __init__(self, message): pass"))) == []


@pytest.mark.parametrize("page", ["docs/concepts/index.md", "mkdocs.yml"])
def test_every_word_of_the_vocabulary_has_a_page(page):
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"Use the vocabulary of the project: ([^.]*)\.", rules)
    assert found
    words = [one.strip().replace(" ", "-") for one in found[1].replace("\n", " ").split(",")]
    assert len(words) >= 12
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [word for word in words if f"{word}.md" not in text] == []
