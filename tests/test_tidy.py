"""The house rules that a machine can hold: directions, doors, sizes, words and borders.

Limits are ratchets, not walls. They stand at the top of this file, close above what the code needs
today. `python -m tests.test_tidy` prints today's numbers: when they have fallen, lower the limit.
Raising one is a decision; say why in the commit that does it.
"""

import ast
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reading import (
    ROOT,
    SOURCE,
    body_lines,
    file_sizes,
    full_names,
    function_sizes,
    imports_of,
    module_name,
    none_of,
    places,
    python_files,
    room_of,
    shown,
    text_files,
    tree_of,
)

OWN_FILE = Path(__file__)
BOUNDED = [SOURCE, *(ROOT / name for name in ("tests", "benchmarks", "examples", "scripts"))]

# ---------------------------------------------------------------------------------- ratchets

# Lines of a function's body, without its docstring, over src/. Overloads and stubs do not count.
FUNCTION_LINES_MEDIAN_MAX = 5
FUNCTION_LINES_P90_MAX = 14
FUNCTION_LINES_MAX = 57

# Lines of a file, all of them: source, also in Cython, tests, benchmarks, examples, scripts.
FILE_LINES_MAX = 500

# -------------------------------------------------------------------------------- directions

# Imports point one way: a package may import from the lines above its own, and from itself.
# A new package or module directly under src/penstock gets its place here.
LAYERS = [
    {"decoding", "errors", "inotify", "speedups"},
    {"names"},
    {"config", "hashing", "messages", "system"},
    {"bus"},
    {"resilience", "pressure"},
    {"scaling"},
    {"stores"},
    {"log"},
    {"transports"},
    {"streaming"},
    {"spark", "observe", "upkeep"},
    {"opening"},  # from a URL to a running bus
    {"penstock"},  # the public door itself: src/penstock/__init__.py
    {"integrations"},  # inside of web frameworks
    {"cli", "dashboard"},
    {"__main__"},  # python -m penstock
    {"testing"},  # may import anything; nothing imports it
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# These stand on the public API, as a user's program does, and on what is listed here beside it.
ON_THE_PUBLIC_API = {"cli": {"upkeep"}, "dashboard": {"upkeep"}, "integrations": set[str]()}
# Packages with names for others that are not public: docs/reference/index.md says so.
NOT_PUBLIC = {"cli", "upkeep"}
# Outsiders that may import what is inside, by the start of their path: they compare single parts with
# and without the compiled twin, and say which one was measured.
MEASURE_THE_INSIDE = ("benchmarks/guard", "benchmarks/machine.py", "benchmarks/twin")

# ------------------------------------------------------------------------------------ borders

# The disk, the clock and chance are reached through penstock.system alone, so that tests can fail,
# cut and reorder them. Written as the full name of what is called.
OUTSIDE_WORLD = re.compile(
    r"(builtins|io)\.open"
    r"|os\.(open|close|read|pread|preadv|write|writev|pwrite|pwritev|sendfile|fsync|fdatasync"
    r"|sync|truncate|ftruncate|posix_fallocate|rename|renames|replace|link|symlink|unlink|remove"
    r"|rmdir|mkdir|makedirs|listdir|scandir|walk|stat|fstat|lstat|chmod|fchmod|urandom)"
    r"|os\.path\.(exists|isfile|isdir|getsize|getmtime)"
    r"|fcntl\.\w+|mmap\.mmap|shutil\.\w+|tempfile\.\w+"
    r"|time\.(time|time_ns|monotonic|monotonic_ns|sleep)"
    r"|random\.\w+|secrets\.\w+|uuid\.uuid[14]"
    r"|threading\.(Thread|Timer)|concurrent\.futures\.ThreadPoolExecutor"
)
# Who may, and why. The key is a path below src/penstock; a folder ends with a slash.
MAY_TOUCH_THE_WORLD = {
    "system.py": "it is the border",
    "inotify.py": "the part of the border that watches files",
    "spark/java.py": "it makes the launcher that Spark starts Java with",
    "testing/": "fault injectors stand on the other side of the border",
}

# Reading data must never run code.
RUNS_CODE = re.compile(
    r"(pickle|cPickle|_pickle|dill|cloudpickle|marshal|shelve)(\.\w+)?"
    r"|builtins\.(eval|exec|compile)"
    r"|yaml\.(load|load_all|unsafe_load|unsafe_load_all|full_load)"
)

# Two threads that are the first to decode a class crash msgspec, so decoding.py makes the decoders of classes.
# A decoder that is made while a module is imported is made by one thread too. Who else may, and why:
MAY_MAKE_DECODERS = {
    "dashboard/letters.py": "it stands on the public names, and decodes on one thread",
}
NO_CLASSES = {
    "Any",
    "None",
    "bool",
    "bytes",
    "dict",
    "float",
    "int",
    "list",
    "object",
    "str",
    "tuple",
}

# -------------------------------------------------------------------------------------- words

UNFINISHED = ["TODO", "FIXME", "XXX", "HACK"]
MARKETING = [
    "battle-tested",
    "best-in-class",
    "blazing",
    "bulletproof",
    "cutting-edge",
    "effortless(ly)?",
    "enterprise-grade",
    "game-changing",
    "lightning-fast",
    "next-generation",
    "revolutionary",
    "rock-solid",
    "seamless(ly)?",
    "state-of-the-art",
    "supercharged?",
    "world-class",
]
BANNED_WORDS = re.compile(
    rf"\b({'|'.join(UNFINISHED)})\b|(?i:\b({'|'.join(MARKETING)})\b)",
)
# Where packages come from is the business of the machine that installs them. Written in parts, as
# no file may contain these names, not even this one.
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
            ("archive", "ubuntu", "com"),
            ("registry", "npmjs", "org"),
            ("crates", "io"),
            ("repo", "maven", "apache", "org"),
            ("repo1", "maven", "org"),
            ("anaconda", "org"),
            ("docker", "io"),
            ("ghcr", "io"),
            ("quay", "io"),
        ]
    ),
    re.IGNORECASE,
)
EMOJI = re.compile("[\U0001f000-\U0001faff\ufe0f]")

# ------------------------------------------------------------------------- directions and doors


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (room, line) of each import of penstock; `from penstock import log` means log."""
    for one in imports_of(tree_of(path)):
        if one.module == "penstock" and one.name in RANK:
            yield one.name, one.line
        elif one.module.partition(".")[0] == "penstock":
            yield room_of(one.module), one.line


def test_every_room_has_its_layer():
    rooms = {room_of(module_name(path)) for path in python_files(SOURCE)}
    assert rooms <= RANK.keys(), f"give these a place in LAYERS: {sorted(rooms - RANK.keys())}"


def test_imports_point_one_way():
    wrong = []
    for path in python_files(SOURCE):
        room = room_of(module_name(path))
        for target, line in imported_rooms(path):
            if target != room and RANK.get(target, len(LAYERS)) >= RANK.get(room, 0):
                wrong.append(f"{shown(path)}:{line}: {room} imports {target}")
    none_of(wrong)


def test_the_tools_for_people_use_the_public_api():
    offered = doors()
    wrong, beside = [], set()
    for room, allowed in ON_THE_PUBLIC_API.items():
        closed = NOT_PUBLIC - allowed
        for path in python_files(SOURCE / room):
            for one in imports_of(tree_of(path)):
                target = room_of(one.module)
                if one.module.partition(".")[0] != "penstock" or target == room:
                    continue
                beside |= {(room, target)} if target in allowed else set()
                if target in closed or one.name not in offered.get(one.module, ()):
                    wrong.append(f"{shown(path)}:{one.line}: {one.module} {one.name or ''}")
    none_of(wrong)
    listed = {(room, one) for room, allowed in ON_THE_PUBLIC_API.items() for one in allowed}
    assert listed == beside, "remove the others from ON_THE_PUBLIC_API"


def doors() -> dict[str, set[str]]:
    """Packages that others may import from, with the names they offer in `__all__`."""
    found = {}
    for path in SOURCE.rglob("__init__.py"):
        for node in tree_of(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value:
                targets = [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                assert node.value is not None
                found[module_name(path)] = set(ast.literal_eval(node.value))
    return found


def snippets() -> Iterator[tuple[str, ast.Module]]:
    """Yield the Python of those who stand outside: examples, benchmarks and documents."""
    for path in python_files(ROOT / "examples", ROOT / "benchmarks"):
        yield shown(path), tree_of(path)
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        text = page.read_text(encoding="utf-8")
        for code in re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield shown(page), ast.parse(code)


def test_outsiders_come_through_a_door():
    """A door is a package with `__all__`; only the names in it are public."""
    open_doors = {name: names for name, names in doors().items() if room_of(name) not in NOT_PUBLIC}
    wrong = []
    for place, tree in snippets():
        if place.startswith(MEASURE_THE_INSIDE):
            continue
        for one in imports_of(tree):
            if one.module.partition(".")[0] != "penstock":
                continue
            offered = open_doors.get(one.module)
            nested = f"{one.module}.{one.name}" in open_doors
            if offered is None or (one.name is not None and one.name not in offered and not nested):
                wrong.append(f"{place}:{one.line}: {one.module} {one.name or ''}")
    none_of(wrong)


# ---------------------------------------------------------------------------------- dead code


LATE_IMPORT = re.compile(r'"(penstock(?:\.\w+)+):\w+"')


def test_no_module_is_dead():
    """Every module is imported by another one, or is a door, a program or a plugin.

    The packages beside penstock, by which Spark finds it, import too. A text such as
    "penstock.transports.kafka:KafkaTransport" is an import that is made late.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    used = {name for group in project.get("entry-points", {}).values() for name in group.values()}
    for path in python_files(SOURCE.parent):
        used |= set(LATE_IMPORT.findall(path.read_text(encoding="utf-8")))
        for one in imports_of(tree_of(path)):
            if module_name(path) != one.module:
                used |= {one.module, f"{one.module}.{one.name}"}
    dead = [
        shown(path)
        for path in python_files(SOURCE)
        if path.name not in {"__init__.py", "__main__.py"} and module_name(path) not in used
    ]
    none_of(dead)


def test_no_private_function_is_dead():
    """A `_name` that is defined and never mentioned again can go."""
    defined: dict[str, str] = {}
    mentioned: Counter[str] = Counter()
    for path in python_files(SOURCE):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if node.name.startswith("_") and not node.name.endswith("__"):
                    defined[node.name] = f"{shown(path)}:{node.lineno} {node.name}"
            elif isinstance(node, ast.Name):
                mentioned[node.id] += 1
            elif isinstance(node, ast.Attribute):
                mentioned[node.attr] += 1
            elif isinstance(node, ast.alias):
                mentioned[node.name] += 1
    none_of([place for name, place in defined.items() if not mentioned[name]])


# -------------------------------------------------------------------------------------- sizes


def test_functions_stay_small():
    sizes = function_sizes()
    lines = [size for size, _ in sizes]
    if len(lines) < 20:
        pytest.skip("too few functions to speak of a median")
    assert statistics.median(lines) <= FUNCTION_LINES_MEDIAN_MAX
    assert lines[len(lines) * 9 // 10] <= FUNCTION_LINES_P90_MAX


def test_no_function_is_longer_than_the_ratchet():
    none_of([one for one in function_sizes() if one[0] > FUNCTION_LINES_MAX])


def test_no_file_is_longer_than_the_ratchet():
    none_of([one for one in all_file_sizes() if one[0] > FILE_LINES_MAX])


def all_file_sizes() -> list[tuple[int, str]]:
    cython = SOURCE.rglob("*.pyx")
    lines = [(path.read_text(encoding="utf-8").count("\n"), shown(path)) for path in cython]
    assert lines, "the limit is for the compiled twin too"
    return sorted(file_sizes(*BOUNDED) + lines)


# ------------------------------------------------------------------------------------ borders


def border_of(path: Path) -> str | None:
    """The entry of MAY_TOUCH_THE_WORLD that covers a file."""
    below = path.relative_to(SOURCE).as_posix()
    for place in MAY_TOUCH_THE_WORLD:
        if below == place or (place.endswith("/") and below.startswith(place)):
            return place
    return None


def uses(path: Path, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{shown(path)}:{line}: {name}"
        for name, line in full_names(tree_of(path))
        if pattern.fullmatch(name)
    ]


def test_the_outside_world_is_reached_through_the_system_layer():
    inside = [path for path in python_files(SOURCE) if border_of(path) is None]
    none_of([use for path in inside for use in uses(path, OUTSIDE_WORLD)])


def test_every_exception_at_the_border_is_needed():
    needed = {border_of(path) for path in python_files(SOURCE) if uses(path, OUTSIDE_WORLD)}
    existing = {place for place in MAY_TOUCH_THE_WORLD if (SOURCE / place).exists()}
    folders = {place for place in existing if place.endswith("/")}
    assert existing - needed - folders == set(), "remove these from MAY_TOUCH_THE_WORLD"


def test_reading_data_never_runs_code():
    wrong = [
        f"{shown(path)}:{one.line}: import {one.module}"
        for path in python_files(SOURCE)
        for one in imports_of(tree_of(path))
        if RUNS_CODE.fullmatch(one.module)
    ]
    none_of(wrong + [use for path in python_files(SOURCE) for use in uses(path, RUNS_CODE)])


def late_decoders(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that decode into a class by its type, or make a decoder of one inside a function."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    late = {
        id(one) for node in ast.walk(tree) if isinstance(node, functions) for one in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        kinds = [one.value for one in node.keywords if one.arg == "type"]
        if called == "Decoder" and id(node) in late:
            kinds += node.args[:1]
        if called in {"Decoder", "decode"} and any(names_a_class(kind) for kind in kinds):
            yield node.lineno


def names_a_class(kind: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Attribute) or (isinstance(one, ast.Name) and one.id not in NO_CLASSES)
        for one in ast.walk(kind)
    )


def test_classes_are_decoded_by_decoders_of_one_place():
    """Two threads that are the first to decode a class at the same time crash msgspec: see decoding.py."""
    found = {path: list(late_decoders(tree_of(path))) for path in python_files(SOURCE)}
    below = {path.relative_to(SOURCE).as_posix(): lines for path, lines in found.items() if lines}
    none_of([f"{name}:{lines}" for name, lines in below.items() if name not in MAY_MAKE_DECODERS])
    assert MAY_MAKE_DECODERS.keys() == below.keys(), "remove the others from MAY_MAKE_DECODERS"


def test_no_test_sleeps():
    """A test waits for what it expects (an event, a condition, a virtual clock), never for time."""
    sleep = re.compile(r"time\.sleep")
    none_of([use for path in python_files(ROOT / "tests") for use in uses(path, sleep)])


# -------------------------------------------------------------------------------------- words


def test_nothing_is_left_unfinished_or_praised():
    none_of(places(BANNED_WORDS, [path for path in text_files() if path != OWN_FILE]))


def test_no_file_names_a_package_registry():
    none_of(places(REGISTRY_HOSTS, text_files()))


def test_no_file_has_emoji():
    none_of(places(EMOJI, [path for path in text_files() if path != OWN_FILE]))


# ------------------------------------------------------------------- the rules can see


def test_the_rules_see_aliases_and_lazy_imports():
    """A rule that sees nothing would pass for ever."""
    code = "import os as o\ndef f():\n    from time import time as now\n    o.fsync(1); now(); open('x')"
    names = {name for name, _ in full_names(ast.parse(code))}
    assert {name for name in names if OUTSIDE_WORLD.fullmatch(name)} == {
        "os.fsync",
        "time.time",
        "builtins.open",
    }
    assert [one.module for one in imports_of(ast.parse(code))] == ["os", "time"]


def test_the_rule_sees_decoders_of_classes():
    code = """\
early = msgspec.json.Decoder(Order)
def f(data, kind):
    a = msgspec.json.decode(data, type=kind)
    b = msgspec.msgpack.Decoder(list[Order]).decode(data)
    c = self.codec.decode(data, strict=False, type=shop.Order)
    d = Decoder(type=Order)
    return lambda: json.Decoder(Order)
def fine(data):
    msgspec.json.decode(data); data.decode("utf-8"); msgspec.json.decode(data, type=dict[str, int])
    return msgspec.json.Decoder(list[tuple[int, str]]), msgspec.json.Decoder()
msgspec.json.decode(data, type=Order)
"""
    assert sorted(late_decoders(ast.parse(code))) == [3, 4, 5, 6, 7, 11]


def test_a_method_that_is_called_open_is_not_the_builtin():
    names = [name for name, _ in full_names(ast.parse("files.open('x'); self.files.open('y')"))]
    assert not any(OUTSIDE_WORLD.fullmatch(name) for name in names)


def test_a_docstring_does_not_make_a_function_long():
    code = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    function = ast.parse(code).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == 2


def test_a_banned_word_is_seen():
    assert BANNED_WORDS.search("# TODO: later")
    assert BANNED_WORDS.search("A Blazing log")
    assert not BANNED_WORDS.search("todo_list and hacksaw")


if __name__ == "__main__":
    sizes = function_sizes()
    lines = [size for size, _ in sizes]
    print("functions:", len(lines))
    print("median:", statistics.median(lines), "p90:", lines[len(lines) * 9 // 10])
    print("longest functions:", *sizes[-5:], sep="\n  ")
    print("longest files:", *all_file_sizes()[-5:], sep="\n  ")
