"""Checks of where the topics are: settings, permissions, disk, the log or the broker, the groups."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from penstock import System, errors
from penstock.cli.checks import Check, Health
from penstock.cli.places import Place, local_path
from penstock.cli.table import counted
from penstock.config import masked_url

SYNCS = 5
CLOCK_SLACK_SECONDS = 5.0


class Limits(NamedTuple):
    """From when on something is worth a warning."""

    disk_free_bytes: int = 1024**3
    fsync_ms: float = 50.0


def check_place(url: str | None, file: str | None) -> Iterator[Check]:
    """All of them, as far as one makes sense after another."""
    try:
        place = Place.of(url, file)
        limits = _limits(url, file)
    except errors.PenstockError as wrong:
        yield Check("settings", Health.BAD, str(wrong))
        return
    yield Check("settings", Health.GOOD, f"url {masked_url(place.url)}")
    try:
        path = local_path(place.store()) if place.is_log else None
    except errors.PenstockError as wrong:
        yield Check("url", Health.BAD, str(wrong))
        return
    if path is not None:
        yield from _disk(path, limits)
        if not path.exists():
            return
    yield from _reach(place)


def _limits(url: str | None, file: str | None) -> Limits:
    try:
        from penstock.config import load_settings

        found = load_settings(file, url=url).thresholds
    except errors.MissingExtra:
        return Limits()
    return Limits(found.disk_free_bytes, found.fsync_ms)


# The disk


def _disk(path: Path, limits: Limits) -> Iterator[Check]:
    folder = path
    while not folder.is_dir():
        folder = folder.absolute().parent
    if not path.exists():
        yield Check(
            "log", Health.NOTE, f"there is none at {path} yet; it would be made in {folder}"
        )
    yield _permissions(folder)
    yield _space(folder, limits)
    if os.access(folder, os.W_OK):
        yield from _speed(folder, limits)


def _permissions(folder: Path) -> Check:
    missing = [
        word
        for word, mode in (("read", os.R_OK), ("write", os.W_OK), ("enter", os.X_OK))
        if not os.access(folder, mode)
    ]
    if missing:
        return Check(
            "permissions",
            Health.BAD,
            f"{folder} cannot be used by user {os.getuid()} ({', '.join(missing)}): chown or chmod it",
        )
    return Check("permissions", Health.GOOD, f"{folder} can be read and written")


def _space(folder: Path, limits: Limits) -> Check:
    told = os.statvfs(folder)
    free = told.f_bavail * told.f_frsize
    detail = f"{free / 1e9:,.1f} GB free on the disk of {folder}"
    if told.f_favail == 0 and told.f_files:
        return Check("disk space", Health.BAD, f"{detail}, but no file can be made: no inodes left")
    if free < limits.disk_free_bytes:
        return Check(
            "disk space", Health.WARN, f"{detail}: less than {limits.disk_free_bytes / 1e9:,.1f}"
        )
    return Check("disk space", Health.GOOD, detail)


def _speed(folder: Path, limits: Limits) -> Iterator[Check]:
    """A small file is written and synced, as the log does it, and removed."""
    system = System()
    probe = folder.absolute() / f".penstock-doctor-{system.random.getrandbits(48):012x}"
    try:
        took = _syncs(system, str(probe))
        behind = abs(probe.stat().st_mtime - system.clock.time_ms() / 1_000)
    except OSError as failed:
        yield Check("fsync", Health.BAD, f"a file in {folder} cannot be synced: {failed.strerror}")
        return
    finally:
        with suppress(OSError):
            probe.unlink()
    milliseconds = median(took) * 1_000
    slow = milliseconds > limits.fsync_ms
    detail = f"{milliseconds:.2f} ms for a sync"
    if slow:
        detail += ": acknowledgements wait for it. FsyncPolicy.TIMED waits less and promises less"
    yield Check("fsync", Health.WARN if slow else Health.GOOD, detail)
    if behind > CLOCK_SLACK_SECONDS:
        yield Check("disk clock", Health.WARN, f"{behind:.0f} s apart from that of this machine")


def _syncs(system: System, path: str) -> list[float]:
    files, clock = system.files, system.clock
    descriptor = files.open(path, create=True)
    took = []
    try:
        for number in range(SYNCS):
            start = clock.monotonic()
            files.write(descriptor, [b"x" * 4_096], number * 4_096)
            files.sync(descriptor)
            took.append(clock.monotonic() - start)
    finally:
        files.close(descriptor)
    return took


# The log or the broker


def _reach(place: Place) -> Iterator[Check]:
    what = "log" if place.is_log else "broker"
    try:
        topics, stalls = asyncio.run(_look(place))
    except errors.Unreachable as silent:
        yield Check(what, Health.BAD, str(silent))
        return
    except (errors.PenstockError, OSError) as wrong:
        yield Check(what, Health.BAD, f"{type(wrong).__name__}: {wrong}")
        return
    yield Check(
        what, Health.GOOD, f"{masked_url(place.url)} answers, with {counted(topics, 'topic')}"
    )
    if stalls is not None:
        detail = "; ".join(stalls) or "none is stalled or late"
        yield Check("groups", Health.WARN if stalls else Health.GOOD, detail)


async def _look(place: Place) -> tuple[int, list[str] | None]:
    async with place.reading() as transport:
        topics = len(await transport.topics())
        can = transport.capabilities
    if not (can.list_groups and can.lag):
        return topics, None
    from penstock.cli.group_sight import look

    groups = await look(place)
    late = [f"late: {one.headline()}" for one in groups if one.late and not one.stalls]
    return topics, [stall.explain() for one in groups for stall in one.stalls] + late
