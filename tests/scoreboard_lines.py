"""The lines of the scoreboard, what others scored in them, and which of the long tests have no figure yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One line of the scoreboard: what is tried, what must not happen, and how often it is tried."""

    number: int
    what: str
    bad: str
    short: int | None = None
    """How many the tests of every day try; None: as many as there are."""
    full: int | None = None


LINES = (
    Line(1, "kills", "acknowledged records lost", 1_000, 100_000),
    Line(2, "crash points (system calls)", "not covered, or violated"),
    Line(3, "power cuts", "acknowledged records lost, or logs that do not open", 30, 3_000),
    Line(4, "block-level crash states", "violated", 100, 20_000),
    Line(5, "simulated crash states", "violated", 200_000, 10_000_000),
    Line(6, "flipped bits", "silently wrong"),
    Line(7, "flipped bits", "silently lost"),
    Line(8, "damaged files", "not noticed"),
    Line(9, "failed syncs", "acknowledgements after them"),
    Line(10, "failing calls of the disk", "violated"),
    Line(11, "compound faults", "violated", 10_000, 10_000),
    Line(12, "records sent and read in histories", "anomalies", 1_000_000, 10_000_000),
    Line(13, "kills under the exactly-once oracle", "records lost or twice", 100, 1_000),
    Line(14, "commits of zombies", "accepted", 10_000, 10_000),
    Line(15, "seeded schedules", "violated", 10_000, 10_000_000),
    Line(16, "seeded bugs", "missed", 30, 30),
    Line(17, "branches of the log, of recovery and of the disk below", "not covered"),
    Line(18, "fuzzed inputs", "crashes, hangs, or memory over the bound"),
    Line(
        19,
        "recoveries",
        "over 2 s (and the disk's own time for what was never synced) or 64 MiB for a GB",
    ),
    Line(20, "policies with a measured window of loss", "over the stated window"),
    Line(21, "checks of security", "findings"),
    Line(22, "slow and hung disks", "with the loop late by over 50 ms (p99)"),
    Line(23, "mutants of the log", "over one in ten not noticed", None, 600),
)
"""Those up to 22 keep their numbers."""
BY_NUMBER = {one.number: one for one in LINES}
OTHERS = {
    1: "NATS 2.10.20 forgot the stream; Faust lost 644 of 300,000 (exactly once); Kafka's own test of exactly once: about 9 kills",
    2: "SQLite tries every call of its file layer, in the process; of others not known",
    3: "RabbitMQ streams (default) lost all, quorum queues none",
    4: "developers of Linux file systems do the same (dm-log-writes); no broker publishes figures",
    5: "TigerBeetle simulates all day on 1,024 cores, FoundationDB tens of thousands of runs a night; neither publishes a count of states",
    6: "NATS 2.15.1 1 of 100, RocksDB (single reads) 0 of 200",
    7: "RocksDB read by iteration (rocksdict) 197 of 200",
    8: (
        "NATS deletes streams whose snapshot is damaged; a RabbitMQ node (classic queues) and Spark "
        "(zeroed checkpoint) do not start"
    ),
    9: "Redis (everysec) refuses writes; PostgreSQL ends itself since 2018",
    10: "SQLite fails every call in turn, once and for ever, by the same method; its count of calls is not known",
    11: "SQLite tries errors of the disk during recovery from a crash; the count is not known",
    12: "Jepsen found 7 safety faults in Redpanda 21.10, 3 in Bufstream and more in Kafka itself, several in NATS 2.12",
    13: (
        "Kafka Streams passes its own; Faust does not; Spark with a local checkpoint did "
        "not restart after 3 of 3 power cuts"
    ),
    14: "Kafka before its change of epochs in every transaction: accepted some",
    15: "TigerBeetle and Iggy have a simulator with seeds; FastStream and Faust have none; counts are not known",
    16: "SQLite: each branch is changed, and its tests have to notice; the rate is not known",
    17: "SQLite: 100 %, each condition",
    18: "SQLite: about 1,000,000,000 inputs a day",
    19: "Kafka reads all since its recovery point after an unclean stop; seconds per GB are not known",
    20: (
        "by default durable before the acknowledgement: Redpanda, RabbitMQ quorum queues, LMDB; SQLite "
        "with EXTRA; Redis says one second, NATS two minutes"
    ),
    21: (
        "published weaknesses of the same kinds: NATS CVE-2022-26652, RabbitMQ CVE-2025-30219, "
        "Kafka CVE-2023-25194, Spark CVE-2022-33891, Celery CVE-2021-23727, Dask CVE-2021-42343"
    ),
    22: "Chronicle Queue says that it may crash on a full disk; of others not known",
    23: "not known",
}
"""What others did in the same test or by the same method, by the number of the line, where that is known."""
WHOLE = {16: "::test_every_bug_is_caught", 17: "::test_every_branch_of_the_log_is_reached"}
"""The test of a line that tries all of which others choose some."""
NOT_RUN = {
    "tests/crash/test_peers.py::test_a_failed_sync_of_others[NATS (default)]": "it does not sync",
    "tests/crash/test_peers.py::test_a_failed_sync_of_others[Redis (everysec)]": "it syncs apart from its writes",
    "tests/crash/test_peers.py::test_a_failed_sync_of_others[RocksDB (default)]": "it does not sync",
    "tests/crash/test_peers.py::test_a_failed_sync_of_others[SQLite WAL (NORMAL)]": "it does not sync",
    "tests/crash/test_peers.py::test_a_failed_sync_of_others[a file, flushed]": "it does not sync",
}
"""The long tests that have no figure on the page, by how their names begin, and why."""
