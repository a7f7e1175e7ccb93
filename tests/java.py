"""How the tests start Java: compiled less, and with an archive of classes where one was made; and Spark its Pythons.

Most of what a short run of Java costs is the loading of classes. ``scripts/java-archives`` runs Spark, Kafka and
Pulsar once and keeps the classes that they loaded in the cache of the tests. A Java that finds the archive to be of
other jars goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

CACHE = Path(
    os.environ.get("PENSTOCK_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
)
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
SILENT = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
"""What Java has to say of an archive is said on standard output, which is the program's."""

LAUNCHER = """#!/bin/sh
# Python for Spark, with the PySpark that is installed: its copy in a zip is compiled at every start.
kept=
IFS=:
for one in $PYTHONPATH; do
  case $one in */pyspark.zip) ;; *) kept=$kept:$one ;; esac
done
unset IFS
export PYTHONPATH="${kept#:}"
%s
exec "%s" "$@"
"""
FORK = """if [ "$1" = -m ] && [ -n "$FORKS_FOR_SPARK" ]; then
  exec "%s" -I -S "%s" "$@"
fi"""
FORK_CLIENT = Path(__file__).parent / "spark" / "fork_client.py"


def archive_of(name: str, jars: Path) -> Path:
    """Where the classes of these jars are kept, for the Java of this machine."""
    java = Path(shutil.which("java") or "java").resolve()
    seen = hashlib.sha256(str(jars).encode())
    for file in [java, *sorted(jars.glob("*.jar"))]:
        if file.exists():
            known = file.stat()
            seen.update(f"{file} {known.st_size} {known.st_mtime_ns}\n".encode())
    return CACHE / "classes" / f"{name}-{seen.hexdigest()[:16]}.jsa"


def quick_options(name: str, jars: Path) -> list[str]:
    """The options for a Java that does not run for long."""
    archive = archive_of(name, jars)
    return [*QUICK, *SILENT, f"-XX:SharedArchiveFile={archive}"] if archive.exists() else [*QUICK]


def spark_jars() -> Path:
    """The jars of the Spark that is installed; a folder that is not there when none is."""
    found = find_spec("pyspark")
    return Path(found.origin or "").parent / "jars" if found else Path("no-spark")


def quick_spark() -> str:
    """The options for any Java of Spark, as one word."""
    return " ".join(quick_options("spark", spark_jars()))


def quick_python() -> str:
    """What Spark is to start as Python, in place of this one."""
    text = LAUNCHER % (FORK % (sys.executable, FORK_CLIENT), sys.executable)
    target = CACHE / "python" / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(target)
    return str(target)


def quick_start_of(python: str) -> str:
    """The same for another Python, beside it; it is not forked."""
    target = Path(python).with_name("quick-python")
    target.write_text(LAUNCHER % ("", python))
    target.chmod(0o755)
    return str(target)


def quick_pythons() -> dict[str, str]:
    """For a Spark: it starts most of its Pythons as those of the driver."""
    return dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), quick_python())


def quick_environment() -> dict[str, str]:
    """For programs that start a Spark of their own."""
    return {"JDK_JAVA_OPTIONS": quick_spark(), **quick_pythons()}
