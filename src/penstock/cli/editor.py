"""A text in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from penstock import System, errors

EDITORS = ("VISUAL", "EDITOR")


def edited(data: bytes, ending: str = ".json") -> bytes | None:
    """What the user made of it; None when nothing was changed."""
    command = next((os.environ[name] for name in EDITORS if os.environ.get(name)), None)
    if command is None:
        raise errors.UsageError("which editor? Set EDITOR, or give the value with --value")
    system = System()
    base = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a folder of its own is made there
    folder = Path(base) / f"penstock-{system.random.getrandbits(64):016x}"
    system.files.make_directory(str(folder))
    file = folder / f"letter{ending}"
    try:
        file.write_bytes(data)
        _run([*shlex.split(command), str(file)])
        changed = file.read_bytes()
    finally:
        file.unlink(missing_ok=True)
        system.files.remove_directory(str(folder))
    if not data.endswith(b"\n"):
        # Editors add it.
        changed = changed.removesuffix(b"\n")
    return None if changed == data else changed


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False)  # noqa: S603 - the user's own editor
    except OSError as failed:
        raise errors.UsageError(
            f"the editor {command[0]!r} does not start: {failed.strerror}"
        ) from failed
    if done.returncode:
        raise errors.UsageError(f"the editor ended with {done.returncode}: nothing was changed")
