"""The files of groups in ``verify`` and ``repair``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.errors import DamagedFile
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.group_file import GroupFile
from penstock.log.inspection import Problem
from penstock.log.repair_partition import Step
from penstock.stores.base import PersistentBackingStore
from penstock.system import System


def group_problems(store: PersistentBackingStore, groups: Iterable[str]) -> list[Problem]:
    """What is wrong with the members' files of these groups; most subscribers have none."""
    found = _damaged(store, groups, System())
    return [Problem(file.key, "group", str(damage)) for file, damage in found]


def group_steps(
    store: PersistentBackingStore, groups: Iterable[str], system: System
) -> Iterator[Step]:
    """Empty the groups whose members' files are damaged."""
    for file, _ in _damaged(store, groups, system):
        message = "make the group anew, without members: they join again; its offsets stay"
        yield Step(file.key, "group", message, file.reset)


def _damaged(
    store: PersistentBackingStore, groups: Iterable[str], system: System
) -> Iterator[tuple[GroupFile, DamagedFile]]:
    for group in sorted(groups):
        file = GroupFile(store, group, system.clock, LOCK_TIMEOUT_SECONDS)
        try:
            file.read()
        except DamagedFile as damage:
            yield file, damage
