"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import lmdb

from penstock.speedups import compiled

ROOT = Path(__file__).parent.parent


def describe(
    folder: Path, packages: Sequence[str], servers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Machine, file system of the folder, versions and the commit."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    rivals = _databases() if "lmdb" in packages else {}
    return {
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "memory": f"{_memory_bytes() / (1 << 30):.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system(folder),
        "load before": load,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in packages),
        "compiled twin": "not in use" if compiled is None else "in use",
        **rivals,
        **(servers or {}),
        "commit": _commit(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not here)"


def _databases() -> dict[str, str]:
    return {"SQLite": sqlite3.sqlite_version, "LMDB": ".".join(map(str, lmdb.version()))}


def processor() -> str:
    """What the machine calls its processor."""
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def file_system(folder: Path) -> str:
    """Type and options of the file system that holds a folder."""
    place = str(folder.resolve())
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    around = [one for one in mounts if one[1] == "/" or f"{place}/".startswith(f"{one[1]}/")]
    mount = max(around, key=lambda one: len(one[1]))
    return f"{mount[2]} on {mount[0]} ({mount[3]})"


def _commit() -> str:
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "src")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}{' with changes in src' if changed else ''}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.strip()
