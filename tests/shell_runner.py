"""Lines of shell in the documents, run as a reader types them: page by page, in one shell, in a copy of the checkout.

What a line of a terminal shows below it is compared with what it printed: ``…`` stands for anything in a line, and a
line with ``...`` for any lines. A server is stopped when it has answered. tests/shell_kinds.py names what is not run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.shell_kinds import is_server, left_out
from tests.shell_lines import lines_of, typed
from tests.snippets import ROOT

COPIED = ("LICENSE", "Makefile", "README.md", "hatch_build.py", "pyproject.toml")
COPIED_FOLDERS = ("examples", "scripts", "src", "tests")
SECONDS_MAX = 280
SERVING = Path(__file__).with_name("shell_serving.py")


class Step(NamedTuple):
    """One line to run: where it stands, and what the page shows below it, if it shows a terminal."""

    number: int
    line: str
    shown: str | None = None


class Failed(AssertionError):
    """A line did not end well, or printed something else."""


def steps_of(page: str, text: str) -> list[Step]:
    """The lines of a page that are run, in their order."""
    return [
        Step(block.line + number, line, shown_below(text, block.line + number))
        for block in typed(page, text)
        for number, line in lines_of(block.code)
        if not left_out(line)
    ]


def shown_below(text: str, number: int) -> str | None:
    """What the page shows as the output of this line, which is nothing in a block that is no terminal."""
    line, *below = text.split("\n")[number - 1 :]
    if not line.lstrip().startswith("$ "):
        return None
    return "\n".join(takewhile(lambda one: not one.lstrip().startswith(("$ ", "```")), below))


def copy_checkout(target: Path) -> Path:
    """What a reader has: a clone with an environment. Nothing that a line does reaches the real one."""
    target.mkdir()
    for name in COPIED:
        shutil.copy2(ROOT / name, target)
    for name in COPIED_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    (target / ".venv").symlink_to(sys.prefix)
    return target


def run_steps(
    steps: Sequence[Step],
    page: str,
    folder: Path,
    instead: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[int, str]:
    """What each line printed. ``instead`` has other places and numbers for them, ``more`` is for the environment."""
    for text, other in instead.items():
        assert any(text in one.line for one in steps), f"{page} does not say {text!r} any more"
        steps = [one._replace(line=one.line.replace(text, other)) for one in steps]
    printed = folder.with_name("printed")
    printed.mkdir()
    ended = _bash("\n".join(_script(steps, printed)), folder, more)
    found = {int(one.name): one.read_text() for one in printed.iterdir()}
    for step in steps:
        place = f"{page}:{step.number}: {step.line}"
        if ended and step.number == max(found):
            raise Failed(f"{place}\n{ended}:\n{found[step.number][-4000:]}")
        if step.shown is not None and not fits(step.shown, found[step.number]):
            raise Failed(f"{place}\nshows\n{step.shown}\nand printed\n{found[step.number]}")
    return found


def _script(steps: Sequence[Step], printed: Path) -> Iterator[str]:
    yield "set -euo pipefail"
    for step in steps:
        yield f"exec >'{printed}/{step.number}' 2>&1"
        if is_server(step.line):
            yield f"mkfifo '{printed}.said'"
            # exec, so that the process that is stopped is the server and not a shell around it.
            yield f"{{ exec env {step.line}\n}} >'{printed}.said' 2>&1 &"
            yield f"'{sys.executable}' '{SERVING}' $! <'{printed}.said'"
            yield f"wait $!; rm '{printed}.said'"
        else:
            yield step.line
            # The shell itself lets `one && other` go on when the first fails.
            yield "(exit $?)"


def _bash(script: str, folder: Path, more: Mapping[str, str]) -> str:
    """What went wrong, if something did: with the last line that it came to."""
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env={**environment(folder.with_name("home")), **more},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = shell.wait(SECONDS_MAX)
        return f"ended with {status}" if status else ""
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS_MAX} s"
    finally:
        _end(shell)


def _end(shell: subprocess.Popen[bytes]) -> None:
    """Nothing that a page started goes on."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()


def environment(home: Path) -> dict[str, str]:
    """That of a reader: without the settings of whoever runs the tests, and with ports that are free."""
    home.mkdir(exist_ok=True)
    hidden = ("PENSTOCK_", "PYTEST_", "XDG_")
    own = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    return own | {
        "EDITOR": "sed -i s/-1.0/1.0/",
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PENSTOCK_DASHBOARD_PORT": "0",
        "PENSTOCK_EXAMPLE_FAST": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SHELL": "/bin/bash",
    }


def fits(shown: str, found: str) -> bool:
    parts = re.split(r"(^\.\.\.\n|…)", shown.strip() + "\n", flags=re.MULTILINE)
    anything = {"...\n": r"(?:[^\n]*\n)*", "…": r"[^\n]*"}
    pattern = "".join(anything.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(pattern, found.strip() + "\n") is not None
