"""A command line for tests: in this process, which is quick, or in one of its own, which is real."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli import main

SECONDS_MAX = 60


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    data: bytes
    errors: str

    @property
    def text(self) -> str:
        """What it wrote."""
        return self.data.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@dataclass
class Terminal:
    """Runs commands in a folder, on a URL."""

    folder: Path
    url: str

    def __call__(self, *words: object, stdin: bytes = b"", code: int | None = 0) -> Done:
        """In this process; ``code`` is what it has to end with."""
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        errors = io.StringIO()
        before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                ended = main(["--url", self.url, *map(str, words)])
        finally:
            sys.stdin = before
        raw = output.detach()
        assert isinstance(raw, io.BytesIO)
        return _checked(Done(ended, raw.getvalue(), errors.getvalue()), words, code)

    def process(
        self,
        *words: object,
        stdin: bytes = b"",
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """In a process of its own."""
        done = subprocess.run(
            command(*words),
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env=self.environment(env),
            timeout=SECONDS_MAX,
            check=False,
        )
        return _checked(Done(done.returncode, done.stdout, done.stderr.decode()), words, code)

    def start(self, *words: object, **options: Any) -> subprocess.Popen[bytes]:
        """A process that goes on. It hears of Ctrl-C, also where the tests were started to ignore it."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                command(*words), cwd=self.folder, env=self.environment(), **options
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Without the settings of whoever runs the tests."""
        own = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {
            **own,
            "PENSTOCK_URL": self.url,
            "XDG_CONFIG_HOME": str(self.folder / "no-settings"),
            **(more or {}),
        }


def command(*words: object) -> Sequence[str]:
    return [sys.executable, "-m", "penstock", *map(str, words)]


def _checked(done: Done, words: Sequence[object], code: int | None) -> Done:
    told = (
        f"{' '.join(map(str, words))} ended with {done.code}\n{done.errors}\n{done.data[-2000:]!r}"
    )
    assert code is None or done.code == code, told
    assert "Traceback" not in done.errors, told
    return done
