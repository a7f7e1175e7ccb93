"""The options of the source, read once and checked: a wrong one is an error that names the right ones.

Names are those of Spark's Kafka source, and like there their case does not matter.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import InvalidOption
from penstock.log.names import check_name
from penstock.spark.given_options import log_path
from penstock.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets

Where = Literal["both", "batch", "stream"]
Position = Literal["earliest", "latest"] | Offsets
LONG_POLL_MS = 200
LONG_POLL_MS_MAX = 1_000
USES_MAX = 99
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the documentation shows it, beside that of Spark's Kafka source."""

    name: str
    where: Where
    default: str
    about: str
    kafka: str | None = None
    """The option there: None when it has the same name, ``""`` when there is none."""


OPTIONS = (
    Option("path", "both", "required", "the directory of the log, or the URL of its store",
           "kafka.bootstrap.servers"),
    Option("tier", "both", "none", "the URL of the store that sealed segments move to", ""),
    Option("subscribe", "both", "one of these three", "topics, with commas between them"),
    Option("subscribePattern", "both", "one of these three", "a regular expression of topics"),
    Option("assign", "both", "one of these three", 'partitions: `{"orders": [0, 1]}`'),
    Option("startingOffsets", "both", "latest; batch: earliest",
           'earliest, latest (streams), or `{"orders": {"0": 23, "1": -2}}`; -2 earliest, -1 latest'),
    Option("startingTimestamp", "both", "none", "milliseconds; the first record appended then or later"),
    Option("startingOffsetsByTimestamp", "both", "none", 'the same by partition: `{"orders": {"0": 1700000000000}}`'),
    Option("startingOffsetsByTimestampStrategy", "both", "error",
           "when nothing is as young as the time: error, or latest"),
    Option("endingOffsets", "batch", "latest", "latest, or as startingOffsets; -1 latest"),
    Option("endingTimestamp", "batch", "none", "milliseconds; records before the first appended then or later"),
    Option("endingOffsetsByTimestamp", "batch", "none", "the same by partition"),
    Option("maxOffsetsPerTrigger", "stream", "none", "records of a micro-batch, split in proportion to what waits"),
    Option("maxBytesPerTrigger", "stream", "none", "bytes of a micro-batch on the disk, about", ""),
    Option("minOffsetsPerTrigger", "stream", "none", "a micro-batch waits for so many records"),
    Option("maxTriggerDelay", "stream", "15m", "but not longer than this: `500ms`, `30s`, `15m`, `1h`"),
    Option("minPartitions", "both", "none", "split large ranges into so many tasks"),
    Option("maxRecordsPerPartition", "both", "none", "split ranges into tasks of at most so many records"),
    Option("failOnDataLoss", "both", "true", "an error when records are gone that were to be read"),
    Option("includeHeaders", "both", "false", "a column `headers`"),
    Option("groupId", "stream", "none",
           "the group whose offsets the query commits: its lag is seen, retention waits for it",
           "kafka.group.id"),
    Option("groupUse", "stream", "1", "in a query that reads a topic twice: 2 for the second time", ""),
    Option("longPollMs", "stream", str(LONG_POLL_MS), "how long an idle query waits before it looks again", ""),
)  # fmt: skip

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
_LATE_STARTS: dict[str, Literal["error", "latest"]] = {"error": "error", "latest": "latest"}
_TOPIC_OPTIONS = ("subscribe", "subscribePattern", "assign")
_KAFKA_HINTS = {
    option.kafka.lower(): option.name for option in OPTIONS if option.kafka
} | {"groupidprefix": "groupId"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked for."""

    path: str
    tier: str | None
    topics: tuple[str, ...]
    """Those of ``subscribe`` or ``assign``."""
    pattern: str | None
    partitions: Mapping[str, tuple[int, ...]] | None
    """Those of ``assign``."""
    starting: Position
    starting_ms: int | Offsets | None
    late_start: Literal["error", "latest"]
    ending: Position
    ending_ms: int | Offsets | None
    records_max: int | None
    bytes_max: int | None
    records_min: int | None
    delay_ms_max: int
    tasks_min: int | None
    task_records_max: int | None
    fail_on_loss: bool
    headers: bool
    group: str | None
    use: int
    """The how manieth use of its topics in the query."""
    long_poll_ms: int


def read_options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """The options, checked; InvalidOption says what is wrong and what would be right."""
    found = _Given(given, stream=stream)
    topics, partitions = found.topics()
    return SourceOptions(
        path=found.path(),
        tier=found.text("tier"),
        topics=topics,
        pattern=found.pattern(),
        partitions=partitions,
        starting=found.starting(),
        starting_ms=found.times("starting"),
        late_start=found.late_start(),
        ending=found.ending(),
        ending_ms=found.times("ending"),
        records_max=found.number("maxOffsetsPerTrigger"),
        bytes_max=found.number("maxBytesPerTrigger"),
        records_min=found.number("minOffsetsPerTrigger"),
        delay_ms_max=found.duration_ms("maxTriggerDelay", "15m"),
        tasks_min=found.number("minPartitions"),
        task_records_max=found.number("maxRecordsPerPartition"),
        fail_on_loss=found.flag("failOnDataLoss", default=True),
        headers=found.flag("includeHeaders", default=False),
        group=found.group(),
        use=found.number("groupUse", high=USES_MAX) or 1,
        long_poll_ms=found.number("longPollMs", low=0, high=LONG_POLL_MS_MAX) or 0
        if found.text("longPollMs")
        else LONG_POLL_MS,
    )


def with_headers(given: Mapping[str, str]) -> bool:
    """Whether rows have headers; asked before it is known if this is a stream."""
    return _Given(given, stream=None).flag("includeHeaders", default=False)


class _Given:
    """The options as they came."""

    def __init__(self, given: Mapping[str, str], *, stream: bool | None) -> None:
        self._given = {name.lower(): str(value).strip() for name, value in given.items()}
        self._stream = stream
        for name in self._given:
            self._check_name(name)

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower()) or None

    def path(self) -> str:
        path = self.text("path")
        if path is None:
            raise _wrong("path", 'names no log: .option("path", "./data") or .load("./data")')
        return log_path(path, "the source")

    def topics(self) -> tuple[tuple[str, ...], Mapping[str, tuple[int, ...]] | None]:
        chosen = [name for name in _TOPIC_OPTIONS if self.text(name)]
        if len(chosen) != 1:
            what = f"both {chosen[0]} and {chosen[1]} are" if chosen else "none is"
            raise _wrong(
                "subscribe",
                f"or subscribePattern or assign says which topics to read; {what} given",
            )
        if chosen == ["assign"]:
            partitions = _assigned(self.text("assign") or "")
            return tuple(sorted(partitions)), partitions
        names = (self.text("subscribe") or "").split(",")
        return tuple(
            sorted({check_name("topic", one.strip()) for one in names if one.strip()})
        ), None

    def pattern(self) -> str | None:
        pattern = self.text("subscribePattern")
        try:
            re.compile(pattern or "")
        except re.error as cause:
            raise _wrong("subscribePattern", f"is no regular expression: {cause}") from cause
        return pattern

    def starting(self) -> Position:
        default: Position = "latest" if self._stream else "earliest"
        found = self._position("startingOffsets", default)
        if not self._stream and (found == "latest" or _has(found, LATEST)):
            raise _wrong(
                "startingOffsets", "of a batch query cannot be latest (-1): it would read nothing"
            )
        return found

    def ending(self) -> Position:
        found = self._position("endingOffsets", "latest")
        if found == "earliest" or _has(found, EARLIEST):
            raise _wrong("endingOffsets", "cannot be earliest (-2): nothing would be read")
        return found

    def times(self, which: Literal["starting", "ending"]) -> int | Offsets | None:
        one = self.number(f"{which}Timestamp", low=0)
        each = self.text(f"{which}OffsetsByTimestamp")
        if one is not None or each is None:
            return one
        return _parsed(f"{which}OffsetsByTimestamp", each, low=0)

    def late_start(self) -> Literal["error", "latest"]:
        found = (self.text("startingOffsetsByTimestampStrategy") or "error").lower()
        if found in _LATE_STARTS:
            return _LATE_STARTS[found]
        raise _wrong("startingOffsetsByTimestampStrategy", f"is {found!r}: use error or latest")

    def group(self) -> str | None:
        group = self.text("groupId")
        return None if group is None else check_name("group", group)

    def number(self, name: str, low: int = 1, high: int = (1 << 63) - 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text) or not low <= int(text) <= high:
            upper = f" to {high}" if high < 1 << 62 else " or more"
            raise _wrong(name, f"is {text[:80]!r}: use a whole number, {low}{upper}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in {"true", "false"}:
            raise _wrong(name, f"is {text[:80]!r}: use true or false")
        return text == "true"

    def duration_ms(self, name: str, default: str) -> int:
        text = (self.text(name) or default).lower()
        match = _DURATION.fullmatch(text)
        if match is None:
            raise _wrong(name, f"is {text[:80]!r}: use a time such as 500ms, 30s, 15m or 1h")
        return int(match[1]) * _UNIT_MS[match[2] or "ms"]

    def _position(self, name: str, default: Position) -> Position:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() == "earliest":
            return "earliest"
        if text.lower() == "latest":
            return "latest"
        return _parsed(name, text, low=EARLIEST)

    def _check_name(self, name: str) -> None:
        option = _BY_LOWER_NAME.get(name)
        if option is None:
            raise _unknown(name)
        wanted = {True: "stream", False: "batch", None: option.where}[self._stream]
        if option.where not in {"both", wanted}:
            other = "streaming" if option.where == "stream" else "batch"
            raise _wrong(option.name, f"is an option of {other} queries only")


def _has(position: Position, mark: int) -> bool:
    return not isinstance(position, str) and any(
        offset == mark for partitions in position.values() for offset in partitions.values()
    )


def _parsed(name: str, text: str, low: int) -> Offsets:
    try:
        return parse_offsets(json.loads(text), low=low)
    except ValueError as cause:
        example = '{"orders": {"0": 23, "1": 5}}'
        raise _wrong(name, f"is {text[:200]!r}: {cause}. Use JSON such as {example}") from cause


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    try:
        found: Any = json.loads(text)
        lists = {check_name("topic", topic): tuple(numbers) for topic, numbers in found.items()}
        if not lists or not all(
            type(one) is int and one >= 0 for all_ in lists.values() for one in all_
        ):
            raise ValueError("partitions are whole numbers from 0 on")
    except (ValueError, TypeError, AttributeError) as cause:
        message = f'is {text[:200]!r}: {cause}. Use JSON such as {{"orders": [0, 1]}}'
        raise _wrong("assign", message) from cause
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in lists.items()}


def _wrong(name: str, what: str) -> InvalidOption:
    return InvalidOption(f"option {name} {what}", option=name)


def _unknown(name: str) -> InvalidOption:
    known = [option.name for option in OPTIONS]
    meant = _KAFKA_HINTS.get(name) or next(
        (_BY_LOWER_NAME[near].name for near in difflib.get_close_matches(name, _BY_LOWER_NAME, 1)),
        None,
    )
    hint = f" Did you mean {meant}?" if meant else ""
    return InvalidOption(
        f"there is no option {name!r}.{hint} The options are {', '.join(known)}", option=name
    )


def option_table() -> str:
    """The options beside those of Spark's Kafka source, as a table for the documentation."""
    lines = ["| option | in | default | meaning | Spark's Kafka source |", "|---|---|---|---|---|"]
    for one in OPTIONS:
        kafka = "the same" if one.kafka is None else f"`{one.kafka}`" if one.kafka else "none"
        lines.append(f"| `{one.name}` | {one.where} | {one.default} | {one.about} | {kafka} |")
    return "\n".join(lines) + "\n"
