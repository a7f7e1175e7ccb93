"""Spark's own connector for Kafka: jars that no package of Python brings, fetched once by Maven.

They are kept in the user's cache, by the version of Spark. The connector is that of the very Spark where it is
known, else the newest one of the same major version that is known to work with it. What Maven brings runs with the
rights of the program, so each jar has its hash here; one without is taken only from the user's own hand.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from penstock.errors import DamagedFile, NotSupported
from penstock.spark.java import cache_folder, kept, on_path
from penstock.system import System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
KNOWN_TO_WORK = (("4.2.0", "4.0.0"),)
"""Versions of the connector and of the one part of it that is a jar of its own, the best first."""
HASHES = {
    "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
}
"""SHA-256 of the jars that are fetched. A new version of KNOWN_TO_WORK brings its own."""
READ_BYTES = 1024 * 1024
FETCH_SECONDS = 300
WANTED = (CONNECTOR, PROVIDER, "org.apache.kafka:kafka-clients", "org.apache.commons:commons-pool2")
SPARK_HAS = (
    "com.github.luben", "com.google.code.findbugs", "org.apache.hadoop", "org.apache.spark", "org.lz4",
    "org.scala-lang", "org.scala-lang.modules", "org.slf4j", "org.xerial.snappy",
)  # fmt: skip
"""Groups of jars that come with Spark."""
_log = logging.getLogger("penstock.spark")

Fetch = Callable[[str, str], str | None]
"""Project file, folder → what went wrong, None when all is there."""


def kafka_jars(fetch: Fetch | None = None, *, spark_version: str | None = None) -> list[str]:
    """The jars of the connector; fetched when they are not there, which takes up to some minutes.

    Raises NotSupported, which names them, when they cannot be had. They may be put into the folder that
    it tells by hand. DamagedFile when one is not what was published under its name.
    """
    version = spark_version or metadata.version("pyspark")
    folder = os.path.join(cache_folder(), f"spark-kafka-{version}")
    found = _jars_in(folder)
    if not found:
        _fetch_any(version, folder, fetch or _by_maven)
        found = _jars_in(folder)
    for jar in found:
        _check(jar)
    return found


def add_connector(spark: SparkSession) -> None:
    """Let a session that runs read and write Kafka; nothing when it does already."""
    _hide_keys(spark)
    java: Any = getattr(spark, "_jvm", None)
    if java is None:
        _add_over_connect(spark)
        return
    if not _has_connector(java):
        jars = kafka_jars()
        if not _has_loaded(spark):
            for jar in jars:
                spark.sql(f"ADD JAR '{_quoted(jar)}'")
        # Another thread added them, or this one has just done so: each looks them up in its own way.
        loader = spark._jsparkSession.sharedState().jarClassLoader()
        java.java.lang.Thread.currentThread().setContextClassLoader(loader)


REDACTED = "spark.sql.redaction.options.regex"
PRIVATE = "(?i:keystore[.]key|jaas[.]config|password|secret)"


def _hide_keys(spark: SparkSession) -> None:
    """Have Spark leave private keys out of plans, as it does with passwords: ``explain()``, its pages and its log."""
    before = spark.conf.get(REDACTED, None)
    if before is None or PRIVATE not in before:
        spark.conf.set(REDACTED, f"(?:{before})|{PRIVATE}" if before else PRIVATE)


_ADDED = "_penstock_kafka_connector"


def _has_loaded(spark: SparkSession) -> bool:
    """Whether the session's own loader has them: ``ADD JAR`` would copy them again."""
    context: Any = spark._jsparkSession.sparkContext()
    return "spark-sql-kafka" in str(context.addedJars().mkString(" "))


def _has_connector(java: Any) -> bool:
    """Whether the thread that Spark runs this one's calls in finds it."""
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.getResource("org/apache/spark/sql/kafka010/KafkaSourceProvider.class") is not None


def _add_over_connect(spark: Any) -> None:
    if getattr(spark, _ADDED, False):
        return
    spark.addArtifacts(*kafka_jars())
    setattr(spark, _ADDED, True)


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace("'", "\\'")


def _jars_in(folder: str) -> list[str]:
    files = System().files
    if not files.exists(folder):
        return []
    names = sorted(name for name, _ in files.list_directory(folder) if name.endswith(".jar"))
    return [os.path.join(folder, name) for name in names]


def _fetch_any(version: str, folder: str, fetch: Fetch) -> None:
    told = []
    for connector, provider in _candidates(version):
        partial = f"{folder}.{System().random.getrandbits(32):08x}"
        project = kept(f"spark-kafka/{connector}-{provider}/pom.xml", _project(connector, provider))
        wrong = fetch(project, partial)
        if wrong is None:
            _check_fetched(partial)
            _move(partial, folder)
            _log.info("Spark %s reads Kafka with the connector of Spark %s", version, connector)
            return
        told.append(f"{connector}: {wrong}")
    raise NotSupported(
        f"Spark's connector for Kafka, {CONNECTOR}, cannot be fetched ({'; '.join(told)}). Install Maven "
        f"(mvn) and let it reach a repository, or put the jars of {', '.join(WANTED)} into {folder}",
        needed=f"{CONNECTOR}:{version}",
        folder=folder,
    )


def _candidates(version: str) -> list[tuple[str, str]]:
    """Versions of the two that may be fetched, the best first."""
    pairs = dict.fromkeys([(version, version), *KNOWN_TO_WORK])
    names = [name.partition(":")[2] for name in (CONNECTOR, PROVIDER)]
    return [
        pair
        for pair in pairs
        if all(f"{name}-{one}.jar" in HASHES for name, one in zip(names, pair, strict=True))
    ]


def _check_fetched(folder: str) -> None:
    """DamagedFile unless each jar that was fetched is known; the folder goes then."""
    try:
        for jar in _jars_in(folder):
            _check(jar, fetched=True)
    except DamagedFile:
        files = System().files
        for name, _ in files.list_directory(folder):
            files.unlink(os.path.join(folder, name))
        files.remove_directory(folder)
        raise


def _check(jar: str, *, fetched: bool = False) -> None:
    """Whether it is what was published. One without a hash here was put there by hand, or it is refused."""
    name = os.path.basename(jar)
    wanted = HASHES.get(name)
    if wanted is None and not fetched:
        return
    found = _sha256(jar)
    if found != wanted:
        raise DamagedFile(
            f"{jar} has the SHA-256 {found}, not {wanted or 'one that Penstock knows'}: it is not run. Delete it, and "
            "see where Maven gets it from (the mirrors in settings.xml, and ~/.m2/repository). To use jars of your "
            f"own all the same, put them into {cache_folder()}/spark-kafka-<version of Spark> under other names",
            file=jar,
            reason="its hash is another one",
        )


def _sha256(path: str) -> str:
    files = System().files
    digest = hashlib.sha256()
    descriptor = files.open(path, write=False)
    try:
        at = 0
        while part := files.read(descriptor, READ_BYTES, at):
            digest.update(part)
            at += len(part)
    finally:
        files.close(descriptor)
    return digest.hexdigest()


def _move(partial: str, folder: str) -> None:
    files = System().files
    try:
        files.rename(partial, folder)
    except OSError:
        # Another process was quicker.
        if not files.exists(folder):
            raise


def _project(connector: str, provider: str) -> str:
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>*</artifactId></exclusion>"
        for group in SPARK_HAS
    )
    wanted = "".join(
        f"<dependency>{_coordinates(name, version)}<exclusions>{exclusions}</exclusions></dependency>"
        for name, version in {CONNECTOR: connector, PROVIDER: provider}.items()
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>penstock</groupId><artifactId>connector</artifactId><version>1</version>\n"
        f"<dependencies>{wanted}</dependencies></project>\n"
    )


def _coordinates(name: str, version: str) -> str:
    group, _, artifact = name.partition(":")
    return (
        f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    )


def _by_maven(project: str, folder: str) -> str | None:
    program = on_path("mvn")
    if program is None:
        return "there is no Maven (mvn)"
    names = ",".join(name.partition(":")[2] for name in WANTED)
    command = [
        program, "-q", "-B", "--color=never", "-f", project, "dependency:copy-dependencies", "-DincludeScope=runtime",
        f"-DincludeArtifactIds={names}", f"-DoutputDirectory={folder}",
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 - a program of the user's, arguments of our own
            command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        return f"Maven did not come to an end: {type(cause).__name__}"
    return None if done.returncode == 0 else _first_error(done.stdout)


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "[ERROR]" in line]
    return (lines or ["Maven failed"])[0].replace("[ERROR] ", "")[:300]
