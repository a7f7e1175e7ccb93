"""The checkpoint of a query on a local disk: is it sound, and can it be made anew?

Spark writes small files and does not sync them. After a power cut they may be there and empty, which
Spark reports as something else, or takes for a query that never ran. Here they are looked at before
the query starts, and rebuilt from the ledger.
"""

from __future__ import annotations

import enum
import json
import logging
import os

from penstock.errors import DamagedFile
from penstock.spark.ledger import Ledger, Progress, Range
from penstock.system import Files, System

_log = logging.getLogger("penstock.spark")
READ_MAX = 16 * 1024 * 1024


class Condition(enum.Enum):
    """What a checkpoint looks like."""

    ABSENT = "absent"
    SOUND = "sound"
    DAMAGED = "damaged"


def ready_checkpoint(path: str, ledger: Ledger, system: System | None = None) -> Condition:
    """Make sure that a query can go on; the condition in which its checkpoint was found.

    One that is damaged or gone is rebuilt when the ledger knows the query. Raises DamagedFile when that
    is not possible: the message says what has to be done, and nothing was changed.
    """
    system = system or System()
    files = system.files
    found = condition_of(path, files)
    if found is Condition.SOUND:
        return found
    progress = ledger.progress()
    if progress is None:
        if found is Condition.DAMAGED:
            _set_aside(path, system)
        return found
    if progress.stateful:
        raise _state_is_gone(path, progress)
    planned = next_ends(progress, ledger.plans())
    if found is Condition.DAMAGED:
        _set_aside(path, system)
    _write_checkpoint(path, progress, planned, files)
    _log.warning(
        "checkpoint %s was %s: rebuilt at micro-batch %d", path, found.value, progress.batch_id
    )
    return found


def condition_of(path: str, files: Files) -> Condition:
    """Whether the files that Spark needs are there, and are what Spark writes."""
    if not files.exists(path) or not files.list_directory(path):
        return Condition.ABSENT
    names = [
        f"{path}/metadata",
        *filter(None, (_newest(f"{path}/{one}", files) for one in ("offsets", "commits"))),
    ]
    sound = all(_is_sound(name, files) for name in names)
    return Condition.SOUND if sound else Condition.DAMAGED


def next_ends(progress: Progress, plans: list[list[Range]]) -> tuple[str, ...] | None:
    """The ends of the micro-batch that was at work after the last one that is known to be done.

    None when there was none. Raises DamagedFile when several may have been, and their order is not known.
    """
    ends = list(progress.ends)
    moved = False
    for number, end in enumerate(progress.ends):
        after = _chain(end, plans)
        if len(after) > 1 and len(progress.ends) > 1:
            raise DamagedFile(
                "the ledger knows several micro-batches that Spark did not report, and not their order: "
                "remove the checkpoint and the output, and run the pipeline from the start",
                query_id=progress.query_id,
            )
        if after:
            ends[number], moved = after[-1], True
    return tuple(ends) if moved else None


def _chain(end: str, plans: list[list[Range]]) -> list[str]:
    """The ends of the micro-batches that follow each other from here."""
    found: list[str] = []
    following = {one.start: one.end for several in plans for one in several if one.start != one.end}
    while end in following and len(found) < len(following):
        end = following[end]
        found.append(end)
    return found


def _write_checkpoint(
    path: str, progress: Progress, planned: tuple[str, ...] | None, files: Files
) -> None:
    done = progress.batch_id
    documents = {
        f"{path}/metadata": json.dumps({"id": progress.query_id}),
        f"{path}/offsets/{done}": _offsets(progress.ends, progress.watermark_ms),
        f"{path}/commits/{done}": "v1\n"
        + json.dumps({"nextBatchWatermarkMs": progress.watermark_ms}),
    }
    if planned is not None:
        documents[f"{path}/offsets/{done + 1}"] = _offsets(planned, progress.watermark_ms)
    for name, text in documents.items():
        _make_folders(os.path.dirname(name), files)
        descriptor = files.open(name, create=True)
        try:
            files.write(descriptor, [text.encode()], 0)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.sync_directory(os.path.dirname(name))
    files.sync_directory(path)


def _make_folders(path: str, files: Files) -> None:
    if not files.exists(path):
        _make_folders(os.path.dirname(path), files)
        files.make_directory(path)


def _offsets(ends: tuple[str, ...], watermark_ms: int) -> str:
    about = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 0, "conf": {}}
    return "\n".join(["v1", json.dumps(about), *ends])


def _set_aside(path: str, system: System) -> None:
    """Nothing is deleted: somebody may want to look at it."""
    system.files.rename(path, f"{path}.damaged-{system.clock.time_ms()}")


def _newest(folder: str, files: Files) -> str | None:
    if not files.exists(folder):
        return None
    numbers = [
        int(name)
        for name, is_folder in files.list_directory(folder)
        if name.isdigit() and not is_folder
    ]
    return f"{folder}/{max(numbers)}" if numbers else None


def _is_sound(name: str, files: Files) -> bool:
    """Metadata is JSON; the others are lines that begin with a version, all of them JSON or a dash."""
    try:
        descriptor = files.open(name, write=False)
    except OSError:
        return False
    try:
        text = files.read(descriptor, READ_MAX, 0).decode("utf-8", "replace")
    finally:
        files.close(descriptor)
    lines = text.splitlines()
    if lines and lines[0] in {"v1", "v2"}:
        lines = lines[1:] or [""]
    return bool(lines) and all(_is_json(line) for line in lines)


def _is_json(line: str) -> bool:
    body = line.partition(":")[2] if ":{" in line and not line.startswith("{") else line
    if body == "-":
        return True
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _state_is_gone(path: str, progress: Progress) -> DamagedFile:
    return DamagedFile(
        f"the checkpoint {path} is damaged or gone, and with it the state of the query, which the ledger "
        f"does not have. Its last micro-batch was {progress.batch_id}, up to {', '.join(progress.ends)}. "
        "Bring the checkpoint back from a copy, or replay: reset the output, which removes its rows and "
        "its ledger, and run the pipeline from the earliest record",
        path=path,
        query_id=progress.query_id,
        batch_id=progress.batch_id,
    )
