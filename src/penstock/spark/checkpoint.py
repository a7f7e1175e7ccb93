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
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import DamagedFile
from penstock.spark.ledger import Ledger, Progress, Range, plain
from penstock.spark.open_log import make_folders
from penstock.system import Files, System

_log = logging.getLogger("penstock.spark")
READ_MAX = 16 * 1024 * 1024
NONE_DONE = -1
"""The number before that of the first micro-batch."""
UNFINISHED = (".tmp", ".tmp.crc")
"""How Spark names what it is writing, behind a dot, and the checksum of that."""
Committed = Callable[[str], int | None]


class Condition(enum.Enum):
    """What a checkpoint looks like."""

    ABSENT = "absent"
    SOUND = "sound"
    DAMAGED = "damaged"
    BEHIND = "behind the ledger"
    ELSEWHERE = "elsewhere"
    """On no local disk: Spark and that storage look after it."""


RESET = "reset the output, which removes its rows and its ledger, and run the pipeline again"


def ready_checkpoint(
    path: str,
    ledger: Ledger,
    system: System | None = None,
    *,
    committed: Committed | None = None,
    way_out: str = RESET,
) -> Condition:
    """Make sure that a query can go on; the condition in which its checkpoint was found.

    One that is damaged, gone or behind the ledger is rebuilt when the ledger knows the query. A new
    query gets its id here, so that the ledger knows it from the start. ``committed`` tells the number
    of the last micro-batch that the sink has of a query, None when it cannot tell.

    Raises DamagedFile when it cannot be rebuilt: the message says what has to be done, ``way_out``
    among it, and nothing was changed.
    """
    system = system or System()
    path = path.removeprefix("file://")
    if "://" in path:
        return Condition.ELSEWHERE
    progress = ledger.progress()
    plans = ledger.plans()
    found = condition_of(path, system.files)
    if found is Condition.SOUND and _is_behind(path, progress, plans, system.files):
        found = Condition.BEHIND
    if found is Condition.SOUND:
        _drop_unfinished(path, system.files)
        return found
    if progress is None:
        progress = Progress(query_id=_new_id(system), batch_id=NONE_DONE, ends=())
        ledger.note(progress)
        plans = []
    if progress.stateful:
        raise _state_is_gone(path, progress, way_out)
    number = committed(progress.query_id) if committed else None
    resumed = resume(progress, plans, number, way_out)
    if found is not Condition.ABSENT:
        _set_aside(path, system)
    _write_checkpoint(path, progress, resumed, system.files)
    if resumed.done > NONE_DONE or resumed.planned:
        _log.warning("checkpoint %s was %s: rebuilt at %d", path, found.value, resumed.done)
    return found


def condition_of(path: str, files: Files) -> Condition:
    """Whether the files that Spark needs are there, and are what Spark writes."""
    if not files.exists(path) or not files.list_directory(path):
        return Condition.ABSENT
    names = [
        f"{path}/metadata",
        *_last(f"{path}/offsets", files, 2),
        *_last(f"{path}/commits", files, 1),
    ]
    sound = all(_is_sound(name, files) for name in names) and not _has_empty(f"{path}/state", files)
    return Condition.SOUND if sound else Condition.DAMAGED


@dataclass(frozen=True)
class Resumed:
    """Where a query goes on."""

    done: int
    """The last micro-batch that is done, -1 when none is."""
    ends: tuple[str, ...]
    """Where its sources stand after it."""
    planned: tuple[str, ...] | None
    """Where the micro-batch after it ends, if it was at work: it has to be the same one again."""


def resume(
    progress: Progress, plans: list[list[Range]], committed: int | None, way_out: str = RESET
) -> Resumed:
    """What was done and what was at work, from the last report, the plans and the sink.

    A micro-batch is planned when the one before it is done, so all but the last of those that follow
    each other are done. Raises DamagedFile when the ledger does not tell.
    """
    first = not progress.ends
    last = NONE_DONE if committed is None else committed
    if first and committed == NONE_DONE:
        # Nothing of it came out, so it may read something else.
        return Resumed(NONE_DONE, (), None)
    chains = _first_chains(plans) if first else [_chain(end, plans) for end in progress.ends]
    moved = [number for number, chain in enumerate(chains) if chain]
    if len(moved) > 1:
        return _together(progress, chains, committed, way_out)
    where, steps = (moved[0], chains[moved[0]]) if moved else (0, [])
    state_is_unknown = first and len(steps) > 1
    if state_is_unknown or last > progress.batch_id + len(steps):
        raise _order_is_unknown(progress, way_out)
    if not steps:
        return Resumed(progress.batch_id, progress.ends, None)
    states = [progress.ends, *(_moved(progress.ends, where, end) for end in steps)]
    return Resumed(progress.batch_id + len(steps) - 1, states[-2], states[-1])


def _together(
    progress: Progress, chains: list[list[str]], committed: int | None, way_out: str
) -> Resumed:
    """Several sources moved: in one micro-batch, if the sink has none that was not reported."""
    is_one = committed is not None and committed <= progress.batch_id
    if not is_one or max(map(len, chains)) > 1:
        raise _order_is_unknown(progress, way_out)
    pairs = zip(progress.ends, chains, strict=True)
    return Resumed(
        progress.batch_id, progress.ends, tuple(chain[0] if chain else end for end, chain in pairs)
    )


def _moved(ends: tuple[str, ...], where: int, end: str) -> tuple[str, ...]:
    return (*ends[:where], end, *ends[where + 1 :])


def _first_chains(plans: list[list[Range]]) -> list[list[str]]:
    """The micro-batches of each source before the first report."""
    return [[one.end for one in several] for several in plans]


def _is_behind(
    path: str, progress: Progress | None, plans: list[list[Range]], files: Files
) -> bool:
    """A power cut may take the newest files and leave the others whole."""
    if progress is None:
        return False
    ahead = [len(_chain(end, plans)) for end in progress.ends]
    if not progress.ends:
        ahead = [len(one) for one in _first_chains(plans)]
    newest = _newest(f"{path}/offsets", files)
    stands = NONE_DONE if newest is None else int(os.path.basename(newest))
    return stands < progress.batch_id + max(ahead, default=0)


def _chain(end: str, plans: list[list[Range]]) -> list[str]:
    """The ends of the micro-batches that follow each other from here."""
    found: list[str] = []
    ranges = [one for several in plans for one in several if one.start != one.end]
    following = {plain(one.start): one.end for one in ranges}
    while (place := plain(end)) in following and len(found) < len(following):
        end = following[place]
        found.append(end)
    return found


def _write_checkpoint(path: str, progress: Progress, resumed: Resumed, files: Files) -> None:
    watermark, done = progress.watermark_ms, resumed.done
    documents = {f"{path}/metadata": json.dumps({"id": progress.query_id})}
    if done > 0:
        # Spark wants to see the one before as well. It reads nothing from it.
        documents[f"{path}/offsets/{done - 1}"] = _offsets(resumed.ends, watermark)
    if done > NONE_DONE:
        documents[f"{path}/offsets/{done}"] = _offsets(resumed.ends, watermark)
        documents[f"{path}/commits/{done}"] = (
            f"v1\n{json.dumps({'nextBatchWatermarkMs': watermark})}"
        )
    if resumed.planned is not None:
        documents[f"{path}/offsets/{done + 1}"] = _offsets(resumed.planned, watermark)
    for name, text in documents.items():
        make_folders(os.path.dirname(name), files)
        _write_durably(name, text, files)
    files.sync_directory(path)


def _write_durably(name: str, text: str, files: Files) -> None:
    descriptor = files.open(name, create=True)
    try:
        files.write(descriptor, [text.encode()], 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(os.path.dirname(name))


def _offsets(ends: tuple[str, ...], watermark_ms: int) -> str:
    about = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 0, "conf": {}}
    return "\n".join(["v1", json.dumps(about), *ends])


def _new_id(system: System) -> str:
    return str(uuid.UUID(int=system.random.getrandbits(128), version=4))


def _set_aside(path: str, system: System) -> None:
    """Nothing is deleted: somebody may want to look at it."""
    system.files.rename(path, f"{path}.damaged-{system.clock.time_ms()}")


def _drop_unfinished(path: str, files: Files) -> None:
    """Remove what a query was writing when it ended: Spark begins no first micro-batch beside it."""
    for folder in (f"{path}/offsets", f"{path}/commits"):
        names = files.list_directory(folder) if files.exists(folder) else []
        for name, _ in names:
            if name.startswith(".") and name.endswith(UNFINISHED):
                files.unlink(f"{folder}/{name}")


def _newest(folder: str, files: Files) -> str | None:
    return next(iter(_last(folder, files, 1)), None)


def _last(folder: str, files: Files, count: int) -> list[str]:
    """The files with the highest numbers."""
    if not files.exists(folder):
        return []
    numbers = sorted(
        int(name)
        for name, is_folder in files.list_directory(folder)
        if name.isdigit() and not is_folder
    )
    return [f"{folder}/{number}" for number in numbers[-count:]]


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


def _has_empty(folder: str, files: Files) -> bool:
    """Whether a file below the folder is empty: none of those that keep state ever is."""
    if not files.exists(folder):
        return False
    return any(
        _has_empty(place, files) if is_folder else _is_empty(place, files)
        for name, is_folder in files.list_directory(folder)
        if not name.startswith(".")
        for place in (f"{folder}/{name}",)
    )


def _is_empty(name: str, files: Files) -> bool:
    descriptor = files.open(name, write=False)
    try:
        return files.status(descriptor).size == 0
    finally:
        files.close(descriptor)


def _order_is_unknown(progress: Progress, way_out: str) -> DamagedFile:
    return DamagedFile(
        "the ledger knows micro-batches that Spark did not report, and not which records each of them "
        f"had; the last one that was reported is {progress.batch_id}. Bring the checkpoint back from a "
        f"copy, or replay all records: {way_out}",
        query_id=progress.query_id,
        batch_id=progress.batch_id,
    )


def _state_is_gone(path: str, progress: Progress, way_out: str) -> DamagedFile:
    return DamagedFile(
        f"the checkpoint {path} is damaged or gone, and with it the state of the query, which the ledger "
        f"does not have. Its last micro-batch was {progress.batch_id}: all records up to "
        f"{', '.join(progress.ends)} have to be read again. Bring the checkpoint back from a copy, or "
        f"replay them: {way_out}",
        path=path,
        query_id=progress.query_id,
        batch_id=progress.batch_id,
    )
