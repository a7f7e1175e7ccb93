"""A Spark session with settings that suit topics: one call, one Spark in a process."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidOption, MissingExtra, NotSupported
from penstock.spark.java import Java, find_java, logging_options
from penstock.system import System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MIN = (4, 3)
DEFAULTS: Mapping[str, str] = {
    # Columns go to Python and back as Arrow.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # State outside of Java's heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # The other one starts twenty processes for each micro-batch on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_STACK = "-Xss4m"
"""A long error message must not overflow the stack of the thread that shows it."""
LOCAL_DEFAULTS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
}
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")

Tell = Callable[[str], object]


def spark_session(
    name: str = "penstock",
    *,
    master: str = "local[*]",
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    tell: Tell | None = None,
) -> SparkSession:
    """The Spark session of this process, started now if there is none yet.

    ``config`` goes before the settings that are chosen here; options for Java are added to them. ``remote`` asks for Spark Connect: the
    address of a server, or ``local[2]`` for one that is started here. Which Spark it is, on which
    Java, and how long the start took goes to ``tell``; to standard error if nothing else is given.

    Raises MissingExtra without PySpark, NotSupported without a Java that is new enough, and
    InvalidOption when a session with another master runs already.
    """
    _check_package()
    started = System().clock.monotonic()
    running = _running()
    if running is not None:
        return _as_wanted(running, None if remote else master)
    needs_java = remote is None or not remote.startswith("sc://")
    java = _prepare(local=_cores(master) is not None) if needs_java else None
    session = _start(name, master, remote, settings(master, config))
    seconds = System().clock.monotonic() - started
    (tell or _to_standard_error)(_greeting(session.version, java, remote or master, seconds))
    return session


def settings(master: str = "local[*]", config: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a session: those that are chosen here, and ``config`` before them."""
    chosen = dict(DEFAULTS)
    cores = _cores(master)
    if cores is not None:
        chosen |= LOCAL_DEFAULTS
        # The default is 200: far too many tasks for a machine with a few cores.
        chosen["spark.sql.shuffle.partitions"] = str(max(2, cores))
    chosen |= dict(config or {})
    chosen[JAVA_OPTIONS] = " ".join([_STACK, logging_options(), chosen.get(JAVA_OPTIONS, "")])
    return chosen


def _cores(master: str) -> int | None:
    """How many cores a local master uses; None when it is not local."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def _check_package() -> None:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError as cause:
        message = "Spark needs: pip install 'penstock[spark]'"
        raise MissingExtra(message, extra="spark") from cause
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < SPARK_MIN:
        wanted = ".".join(map(str, SPARK_MIN))
        raise NotSupported(
            f"pyspark {version} is too old, {wanted} is needed: pip install 'penstock[spark]'",
            needed=wanted,
        )


def _running() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def make_active(session: SparkSession) -> None:
    """Make it the session of this thread too: Spark looks up sinks in Python by that alone.

    A session is that of the thread that started it. Spark Connect knows no such thing.
    """
    java: Any = getattr(session, "_jvm", None)
    if java is not None:
        java.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def _as_wanted(session: SparkSession, master: str | None) -> SparkSession:
    present = session.conf.get("spark.master", None)
    if master is not None and present is not None and present != master:
        raise InvalidOption(
            f"a Spark session on {present} runs in this process, and there can be only one: stop() "
            f"it before you ask for {master}",
            option="master",
        )
    return session


def _prepare(*, local: bool) -> Java:
    """Tell Spark, by way of the environment, which Java and which Python to start."""
    java = find_java()
    os.environ["JAVA_HOME"] = java.home
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # Workers, and whoever looks for data sources, need the packages of this Python.
        os.environ.setdefault(variable, sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


def _start(name: str, master: str, remote: str | None, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(name)
    builder = builder.master(master) if remote is None else builder.remote(remote)
    for key, value in config.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Spark warns of a pandas that is newer than it knows; nothing here uses it.
        warnings.simplefilter("ignore", FutureWarning)
        return builder.getOrCreate()  # type: ignore[no-any-return]


def _greeting(version: str, java: Java | None, place: str, seconds: float) -> str:
    on = "" if java is None else f" on Java {java.version} ({java.origin})"
    return f"Spark {version}{on}, {place}: ready after {seconds:.1f} s"


def _to_standard_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
