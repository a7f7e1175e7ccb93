"""Which contender of Penstock stands beside which peer, and what is not equal between the two.

Contenders of a group do the same work, but some promise less or get more help. Such a pair is shown after the equal ones,
with a word on what differs. The first rule that fits a pair counts; a pair that none fits is equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

OURS = ("penstock", "resilient", "plain")
OURS_OF = {"ring": ("ring",), "spark_sink": ("table",)}
"""Those whose names say nothing, by workload."""
LIMITS = ("raw", "raw-*", "deque", "bound", "direct", "loop")
"""Bounds by nature: the disk, the interpreter, Spark with nothing to read. Other cases that ratios refer to are peers."""
NUMBERED = ("partitions", "processes")
"""Workloads whose contenders end with a number, which must be the same."""
NOT_COMPARED = ("R²", "%")
"""Units of which more or less is not ahead or behind."""

SERVERS = ("redis", "nats", "kafka", "postgres")
MORE = "with retries, a circuit breaker and dead letters"
FLIGHT = "4 calls in flight, the peer has one"
AHEAD = "goes on while earlier records are written; the peer waits for each commit"
TASKS = "64 tasks; the peer lets one writer commit at a time"
WAITS = "waits for each commit; the peer sends it and goes on"
AT_ONCE = (
    "one record at a time, waits for each commit; the peer sends it and handles 1,000 at a time"
)
WHOLE = (
    "batches that are stored whole or not at all, and once; the peer sends records without an id"
)


@dataclass(frozen=True)
class Rule:
    """What differs between two contenders; None when they do not belong together."""

    group: str
    ours: str
    differs: str | None
    peers: tuple[str, ...] = ("*",)

    def fits(self, group: str, ours: str, peer: str) -> bool:
        """Whether it is about this pair."""
        named = fnmatchcase(group, self.group) and fnmatchcase(ours, self.ours)
        return named and any(fnmatchcase(peer, one) for one in self.peers)


RULES = (
    Rule("publish_many/*", "penstock-pipelined*", FLIGHT),
    Rule("one_by_one/*", "penstock-stop-and-wait", ""),
    Rule("one_by_one/*", "penstock-on-loop", ""),
    Rule("one_by_one/*", "penstock*", AHEAD),
    Rule("awaited/*", "penstock*-64", TASKS),
    Rule("read/*", "penstock-arrow*", "a table of Arrow, no objects", ("sqlite", "lmdb")),
    Rule("read/*", "penstock-for", "one record at a time, by `async for`"),
    Rule("read/*", "penstock-replay", "one record at a time, by `async for`"),
    Rule("tail/*", "penstock-other", "to another process"),
    Rule("durable_batches/*", "penstock-pipelined*", "", SERVERS),
    Rule("durable_batches/*", "penstock-pipelined*", FLIGHT),
    Rule("durable_batches/*", "penstock*", "one call at a time, the peer has 4 in flight", SERVERS),
    Rule("durable_singles/*", "penstock*", "", SERVERS),
    Rule("durable_singles/*", "penstock*", TASKS),
    Rule("wake_up/*", "*-thread", "", ("*-thread",)),
    Rule("wake_up/*", "*-thread", None),
    Rule("wake_up/*", "*", None, ("*-thread",)),
    Rule("events/handled", "*", "the peer calls a function in place", ("pyee", "blinker")),
    Rule("hot/*", "*-awaited", "each `publish` awaited"),
    Rule("*", "resilient*", MORE),
    Rule("ring/*", "ring-batches", "in batches of 1,000"),
    Rule("ring/*", "ring-1*", "in batches; the peer has no call for several"),
    Rule("shared/*", "penstock", "in batches; the peer takes each record", ("mp-queue", "zmq-ipc")),
    Rule("spark_source/*", "penstock-two", "two columns, the peer has seven"),
    Rule("spark_sink/*", "*", "durable, each row once; the peer does not sync", ("parquet",)),
    Rule("on_*/handle", "penstock", "commits every 5 s; the peer acknowledges each"),
    Rule("on_nats/*/handle", "penstock-commit", AT_ONCE, ("faststream",)),
    Rule("on_kafka/*/handle", "penstock-commit", WAITS, ("faststream",)),
    Rule("on_nats/*/publish", "penstock", WHOLE),
)


def is_ours(workload: str, contender: str) -> bool:
    """Whether a contender is Penstock."""
    return contender.startswith(OURS + OURS_OF.get(workload, ()))


def is_limit(contender: str) -> bool:
    """Whether a contender is a bound by nature."""
    return any(fnmatchcase(contender, one) for one in LIMITS)


def difference(group: str, ours: str, peer: str) -> str | None:
    """What is not equal: nothing, a word, or None when the two are not compared."""
    if group.partition("/")[0] in NUMBERED and _number(ours) != _number(peer):
        return None
    return next((rule.differs for rule in RULES if rule.fits(group, ours, peer)), "")


def _number(contender: str) -> str:
    found = re.search(r"-(\d+)$", contender)
    return found[1] if found else ""
