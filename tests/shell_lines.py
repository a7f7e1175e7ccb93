"""Lines of shell in the documents: where they stand, and a check of each by what it is.

``penstock`` lines go through the real parser, ``make`` names a target, ``python`` a program or a module,
``pip`` extras that there are. :class:`Unknown` is raised for every other program. The check runs nothing, and so also
does for lines that no test can run. Most are run as well: see tests/shell_kinds.py and tests/shell_runner.py.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tests.snippets import ROOT, Block, blocks_of

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
RUN_ELSEWHERE = {"docs/cli.md": "tests/cli/test_cli_page.py"}
"""Pages whose console blocks are run by that file."""
OURS = {"benchmarks", "examples", "penstock", "tests"}
"""Packages that are here without being installed by a page."""
BETWEEN = {"&&", "||", ";", "|"}
REDIRECTIONS = {">", ">>", "<"}
PIP_OPTIONS = {"--no-deps": 0, "--upgrade": 0, "--wheel-dir": 1}
"""Those that the pages use, with the number of words that follow."""
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_PLACE = re.compile(r"(\./)?(benchmarks|deploy|docs|examples|requirements|scripts|src|tests)/\S+")
_TARGET = re.compile(
    r"^(?P<name>[a-z][a-z-]*):(?!=)(?P<recipe>[^\n]*\n(\t[^\n]*\n)*)", re.MULTILINE
)
_VARIABLE = re.compile(r"PENSTOCK_[A-Z_]+")


class Wrong(Exception):
    """The line cannot do what it says."""


class Unknown(Exception):
    """Nothing here can check a line of this program."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def typed(page: str, text: str) -> list[Block]:
    """The blocks of shell, and what is typed in those that show a terminal."""
    found = blocks_of(text, "sh")
    if page in RUN_ELSEWHERE:
        return found
    for one in blocks_of(text, "console"):
        lines = [line[2:] if line.startswith("$ ") else "" for line in one.code.split("\n")]
        found.append(Block("\n".join(lines), one.line, one.skipped_because))
    return sorted(found, key=lambda one: one.line)


def lines_of(code: str) -> Iterator[tuple[int, str]]:
    """Each line with its number from 0; what is continued is one line. Comments are left out."""
    lines = iter(enumerate(code.split("\n")))
    for number, line in lines:
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1] + next(lines, (0, ""))[1]
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield number, whole


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without what is redirected where."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError as failed:
        raise Wrong(f"the shell cannot read it: {failed}") from None
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token in BETWEEN:
            yield words
            words = []
        elif token not in REDIRECTIONS and before not in REDIRECTIONS:
            words.append(token)
    yield words


def bare(words: list[str]) -> list[str]:
    """A command without the variables before it, and with no word of where its program is."""
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    return [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []


@cache
def project() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(settings["project"])


@cache
def targets() -> dict[str, str]:
    """Each target of the Makefile with its recipe."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return {one["name"]: one["recipe"] for one in _TARGET.finditer(text)}


@cache
def variables() -> set[str]:
    """The names of the environment that begin as ours do and mean something somewhere."""
    from penstock.config import DashboardSettings, Settings, ThresholdSettings

    kinds: dict[str, Any] = {
        "": Settings,
        "DASHBOARD_": DashboardSettings,
        "THRESHOLDS_": ThresholdSettings,
    }
    found = {
        f"PENSTOCK_{table}{name.upper()}"
        for table, kind in kinds.items()
        for name in kind.model_fields
    }
    places = [ROOT / "Makefile", ROOT / "tests" / "conftest.py", *ROOT.glob("src/**/*.py")]
    places += [*ROOT.glob("*.py"), *ROOT.glob("tests/cost*.py"), *ROOT.glob("examples/**/*.py")]
    for place in places:
        found |= set(_VARIABLE.findall(place.read_text(encoding="utf-8")))
    return found


@cache
def tree() -> Any:
    """The command, whose options do nothing when they are read: no version, no completion."""
    import typer

    from penstock.cli.app import app

    root = typer.main.get_command(app)
    ahead: list[Any] = [root]
    while ahead:
        command = ahead.pop()
        ahead += getattr(command, "commands", {}).values()
        for one in command.params:
            one.callback = None
    return root


def parse(words: list[str]) -> None:
    """The words behind ``penstock``, as the command itself reads them; it is not invoked."""
    command = tree()
    by_itself = {
        name for one in command.params if one.is_eager or not one.expose_value for name in one.opts
    }
    try:
        context = command.make_context("penstock", list(words))
        while hasattr(context.command, "commands"):
            rest = [*context._protected_args, *context.args]
            if not rest:
                if by_itself & set(words):
                    return
                raise Wrong("it names no verb")
            name, command, rest = context.command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except Exception as failed:
        told = getattr(failed, "format_message", None)
        if told is None:
            raise
        raise Wrong(f"penstock: {told()}") from None


class Page:
    """Checks the lines of one page, in their order."""

    def __init__(self) -> None:
        self._installed: set[str] = set()

    def check(self, line: str) -> None:
        """Raises :class:`Wrong` or :class:`Unknown`; also wrong is what stands behind something unknown."""
        unknown = None
        for words in commands_of(line):
            try:
                self._command(words)
            except Unknown as one:
                unknown = one
        if unknown is not None:
            raise unknown

    def _command(self, words: list[str]) -> None:
        while words and (given := _ASSIGNMENT.fullmatch(words[0])):
            _check_variable(given["name"])
            words = words[1:]
        if not words:
            return
        program, *rest = words
        _check_places(rest)
        developing = program.startswith(".venv/bin/")
        program = program.removeprefix(".venv/bin/")
        match program:
            case "penstock":
                parse(rest)
            case "make":
                _check_make(rest)
            case "python" | "python3":
                self._python(rest, developing=developing)
            case "pip":
                self._pip(rest)
            case "export":
                for one in rest:
                    if not (given := _ASSIGNMENT.fullmatch(one)):
                        raise Wrong(f"{one} has no value")
                    _check_variable(given["name"])
            case "cd" if len(rest) == 1:
                pass
            case "git" if rest[:1] == ["clone"] and len(rest) in (2, 3):
                pass
            case _:
                raise Unknown(program)

    def _python(self, words: list[str], *, developing: bool) -> None:
        match words:
            case ["-m", module, *rest]:
                self._module(module, developing=developing)
                if module == "penstock":
                    parse(rest)
            case [program, *rest] if program.endswith(".py"):
                if not (ROOT / program).is_file():
                    raise Wrong(f"there is no {program}")
                _check_options(rest, (ROOT / program).read_text(encoding="utf-8"))
            case _:
                raise Unknown("python")

    def _module(self, name: str, *, developing: bool) -> None:
        try:
            spec = find_spec(name)
            if spec and spec.submodule_search_locations is not None:
                spec = find_spec(f"{name}.__main__")
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise Wrong(f"there is no module {name} that runs")
        top = name.partition(".")[0]
        here = OURS | sys.stdlib_module_names | self._installed
        if not developing and top not in here:
            raise Wrong(f"{top} is installed by nothing above on this page")

    def _pip(self, words: list[str]) -> None:
        if words[:1] not in (["install"], ["wheel"]):
            raise Unknown("pip")
        rest = iter(words[1:])
        for word in rest:
            if word.startswith("-"):
                if word not in PIP_OPTIONS:
                    raise Wrong(f"{word} is no option of pip that the pages use")
                for _ in range(PIP_OPTIONS[word]):
                    next(rest, None)
            else:
                self._installed.add(_package(word))


def _package(word: str) -> str:
    """What pip is told to get: ``penstock[kafka]``, ``.[kafka]``, or a package of others."""
    try:
        wanted = Requirement(re.sub(r"^(\.|\./dist/penstock-\S+\.whl)(?=\[|$)", "penstock", word))
    except InvalidRequirement:
        raise Wrong(f"{word} is nothing that pip can get") from None
    name = canonicalize_name(wanted.name)
    if name == "penstock" and (
        lacking := wanted.extras - project()["optional-dependencies"].keys()
    ):
        raise Wrong(f"there is no extra {', '.join(sorted(lacking))}")
    return name


def _check_variable(name: str) -> None:
    if name.startswith("PENSTOCK_") and name not in variables():
        raise Wrong(f"{name} means nothing")


def _check_places(words: list[str]) -> None:
    """What looks like a file of the repository is one."""
    for word in words:
        for part in word.split():
            if _PLACE.fullmatch(part) and not (ROOT / part).exists():
                raise Wrong(f"there is no {part}")


def _check_options(words: list[str], source: str) -> None:
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and f'"{option}"' not in source:
            raise Wrong(f"the program has no {option}")


def _check_make(words: list[str]) -> None:
    given = [one["name"] for word in words if (one := _ASSIGNMENT.fullmatch(word))]
    named = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    for target in named:
        if target.startswith("-"):
            raise Unknown("make")
        if target not in targets():
            raise Wrong(f"the Makefile has no target {target}")
    recipes = "".join(targets()[one] for one in named or ["help"])
    exported = re.findall(r"^export (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in given:
        if f"$({name})" not in recipes and name not in exported:
            raise Wrong(f"{' '.join(named)} does not use {name}")
    for word in words:
        if _ASSIGNMENT.fullmatch(word):
            _check_places([word.partition("=")[2]])
