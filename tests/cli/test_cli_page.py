"""docs/cli.md: its examples are run, and its table of options is what the command says.

``python -m tests.cli.test_cli_page`` writes the table. In an example, ``…`` stands for anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.consume import FORMAT_MEANINGS
from penstock.cli.formats import renderer
from penstock.errors import InvalidOption

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
BEGIN = "<!-- options: python -m tests.cli.test_cli_page writes them -->"
END = "<!-- end of the options -->"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    line: str
    shown: str


def examples() -> Iterator[Example]:
    for block in BLOCK.findall(PAGE.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            yield Example(line, shown.strip())


def run(line: str, folder: Path) -> str:
    from tests.cli.terminal import Terminal

    stdin = b""
    before, pipe, words = line.rpartition(" | ")
    if pipe:
        program, text = shlex.split(before)
        assert program == "printf", f"only printf is understood before a pipe: {line}"
        stdin = text.encode().decode("unicode_escape").encode()
    name, *rest = shlex.split(words)
    assert name == "penstock", line
    done = Terminal(folder, "log:./data")(*rest, stdin=stdin, code=None)
    return (done.text + done.errors).strip()


def fits(shown: str, found: str) -> bool:
    pattern = r"[^\n]*".join(re.escape(part) for part in shown.split("…"))
    return re.fullmatch(pattern, found) is not None


def test_the_examples_of_the_page(tmp_path):
    count = 0
    for example in examples():
        found = run(example.line, tmp_path)
        assert fits(example.shown, found), f"$ {example.line}\n{found}"
        count += 1
    assert count > 10


# The table


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every verb, with its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        yield from commands(one, (*path, name))


def spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return "`" + "`, `".join(parameter.opts) + "`"


def table() -> str:
    import typer

    from penstock.cli.app import app

    lines = ["| command | what it does | arguments and options |", "|---|---|---|"]
    for words, command in commands(typer.main.get_command(app)):
        about = " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")
        options = " ".join(spelled(one) for one in command.params if one.name != "help")
        lines.append(f"| `{words}` | {about} | {options.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def test_the_table_is_what_the_command_says():
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert written == table(), "python -m tests.cli.test_cli_page"


def test_every_option_says_what_it_is_for():
    import typer

    from penstock.cli.app import app

    silent = [
        f"{words} {one.name}"
        for words, command in commands(typer.main.get_command(app))
        for one in command.params
        if one.param_type_name == "option" and not one.help
    ]
    assert silent == []
    assert all(command.help for _, command in commands(typer.main.get_command(app)))


def test_every_exit_code_is_in_the_page():
    from penstock.cli import codes

    numbers = [value for name, value in vars(codes).items() if name.isupper()]
    for number in numbers:
        assert f"| {number} |" in PAGE.read_text()


def test_every_letter_of_a_format_is_in_the_page():
    text = PAGE.read_text()
    assert [letter for letter in FORMAT_MEANINGS if letter.split(" ")[0] not in text] == []


def test_every_letter_of_a_format_is_in_the_help():
    with pytest.raises(InvalidOption) as refused:
        renderer("%x")
    letters = re.findall(r"%.", str(refused.value).partition("use ")[2])
    help_text = " ".join([*FORMAT_MEANINGS, *FORMAT_MEANINGS.values()])
    assert len(letters) > 10
    assert [one for one in letters if one not in help_text] == []


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:start]}\n{table()}\n{text[end:]}")


if __name__ == "__main__":
    main()
