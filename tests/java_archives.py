"""Keeps the classes that Spark, Kafka and Pulsar load, so that Java starts sooner: ``python -m tests.java_archives``.

Each is run once for a moment. What is there already stays; what cannot be made costs time alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.java import QUICK, SILENT, archive_of, quick_pythons, spark_jars
from tests.transports.servers import kafka, pulsar

EXIT_SECONDS = 300.0
RECORDS = 100
KEPT_MAX = 4
"""Archives of the same program for other jars: those of other copies of the project."""
Run = Callable[[Path, list[str]], None]
"""Runs a program in an empty folder, with these options for its Java, until that has ended."""


def run_spark(folder: Path, options: list[str]) -> None:
    """A topic to a table and to a topic."""
    from pyspark import SparkContext

    from penstock.errors import HandlerFailed
    from penstock.spark import spark_session
    from penstock.spark.session import JAVA_OPTIONS
    from tests.spark.crash_program import shop
    from tests.spark.spark_world import LogWorld

    warnings.simplefilter("ignore")
    os.environ.update(quick_pythons())
    (folder / "log").mkdir()
    log = LogWorld(folder / "log")
    log.create("sold", partitions=2)
    log.publish("sold", [b'{"item":"a","amount":1}'] * RECORDS, [b"a"] * RECORDS)
    config = {JAVA_OPTIONS: " ".join(options)}
    spark = spark_session("classes", master="local[2]", config=config, tell=lambda _: None)
    with suppress(HandlerFailed):  # a busy machine; what was loaded until then is worth keeping
        shop(log.path, str(folder / "warehouse")).run(spark, timeout=EXIT_SECONDS)
    rows = spark.read.format("penstock").options(path=log.path, subscribe="sold").load()
    rows.groupBy("partition").count().collect()
    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_SECONDS)


def run_server(server: Any) -> None:
    try:
        server.start()
        server.stop()
    finally:
        server.kill()


def run_kafka(folder: Path, options: list[str]) -> None:
    run_server(kafka.KafkaServer(folder, java=options))


def run_pulsar(folder: Path, options: list[str]) -> None:
    run_server(pulsar.PulsarServer(folder, java=options))


PROGRAMS: dict[str, tuple[Path, Run]] = {
    "spark": (spark_jars(), run_spark),
    "kafka": (kafka.JARS, run_kafka),
    "pulsar": (pulsar.JARS, run_pulsar),
}


def make(name: str, jars: Path, run: Run) -> None:
    """Run it, and let Java write down its classes when it ends."""
    archive = archive_of(name, jars)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, ignore_cleanup_errors=True) as work:
        written = Path(work) / "classes"
        run(Path(work), [*QUICK, *SILENT, f"-XX:ArchiveClassesAtExit={written}"])
        os.replace(written, archive)
    for old in sorted(archive.parent.glob(f"{name}-*"), key=os.path.getmtime)[:-KEPT_MAX]:
        old.unlink()


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as in tests/conftest.py
    for name, (jars, run) in PROGRAMS.items():
        if shutil.which("java") is None or not jars.is_dir() or archive_of(name, jars).exists():
            continue
        print(f"Keeping the classes of {name}, for Java to start sooner ...", flush=True)
        try:
            make(name, jars, run)
        except Exception as failure:
            print(f"  not kept: {failure!r}", file=sys.stderr)


if __name__ == "__main__":
    main()
