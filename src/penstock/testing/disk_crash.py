"""Which states a power cut may leave behind, and how to build one.

A plan gives every pending operation an outcome: kept, dropped, or (for a write) torn. The plans
come in this order: nothing kept, everything kept, each single operation dropped, torn or kept
alone, then random combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from penstock.testing.disk_names import ROOT, Folders, NameChange, apply_edits, reachable
from penstock.testing.disk_pages import SECTOR_BYTES, CachedFile, Operation, State, put, resize

REPEATS_MAX = 64
"""So many random plans in a row that were seen before: there are no more to find."""
SECTOR_EDGES_MAX = 4


class Outcome(NamedTuple):
    """What is left of an operation: slices of its data, and whether the file grew all the same."""

    slices: tuple[tuple[int, int], ...]
    grown: bool = False

    def apply(self, operation: Operation, content: bytearray) -> None:
        assert operation.data is not None, "a truncate is never torn"
        for start, stop in self.slices:
            put(content, operation.position + start, operation.data[start:stop])
        end = operation.position + len(operation.data)
        if self.grown and end > len(content):
            resize(content, end)


KEEP = Outcome(((0, 1 << 62),))
DROP = Outcome(())
GROWN = Outcome((), grown=True)
"""The file got longer, the bytes did not arrive: zeros."""

Plan = tuple[Outcome, ...]
_Steps = tuple[tuple[int, Operation], ...]
"""The pending operations of a file, each with its place in a plan, or -1 when it is saved."""


class _Tree(NamedTuple):
    """The names that can be reached, and the files and directories that have them."""

    names: frozenset[tuple[int, frozenset[tuple[str, int]]]]
    nodes: frozenset[int]


def _tree(folders: Folders) -> _Tree:
    nodes = reachable(folders, [ROOT])
    names = frozenset((node, frozenset(folders[node].items())) for node in nodes & folders.keys())
    return _Tree(names, frozenset(nodes))


class Snapshot:
    """The disk at the moment of the power cut."""

    def __init__(
        self, files: Mapping[int, CachedFile | bytes], folders: Folders, changes: list[NameChange]
    ) -> None:
        cached = {node: file for node, file in files.items() if isinstance(file, CachedFile)}
        self.files: dict[int, bytes] = {
            node: file if isinstance(file, bytes) else file.freeze() for node, file in files.items()
        }
        self.folders = dict(folders)
        self.changes = tuple(changes)
        self.items = _uncertain(cached.values(), changes)
        order = {item.tick: index for index, item in enumerate(self.items)}
        self._places = tuple(order[change.tick] for change in changes)
        self._pending_ticks = frozenset(change.tick for change in changes)
        self._groups = [
            (node, tuple((order.get(each.tick, -1), each) for each in file.pending))
            for node, file in cached.items()
            if file.pending
        ]
        self._contents: dict[tuple[int, Plan], bytes] = {}
        self._trees: dict[tuple[bool, ...], _Tree] = {}

    def files_after(self, plan: Plan) -> dict[int, bytes]:
        files = self.files.copy()
        for node, steps in self._groups:
            files[node] = self._content_after(plan, node, steps)
        return files

    def disk_after(self, plan: Plan) -> tuple[object, ...]:
        """What a reader of the disk could see; equal for plans that leave the same disk."""
        kept = tuple(plan[place] is not DROP for place in self._places)
        tree = self._trees.get(kept)
        if tree is None:
            tree = self._trees[kept] = _tree(self.folders_after(plan))
        contents = [
            self._content_after(plan, node, steps)
            for node, steps in self._groups
            if node in tree.nodes
        ]
        return (tree.names, *contents)

    def _content_after(self, plan: Plan, node: int, steps: _Steps) -> bytes:
        outcomes = tuple([KEEP if index < 0 else plan[index] for index, _ in steps])
        key = (node, outcomes)
        known = self._contents.get(key)
        if known is None:
            content = bytearray(self.files[node])
            for outcome, (_, operation) in zip(outcomes, steps, strict=True):
                if outcome is KEEP:
                    operation.apply(content)
                elif outcome is not DROP:
                    outcome.apply(operation, content)
            known = self._contents[key] = bytes(content)
        return known

    def folders_after(self, plan: Plan) -> Folders:
        folders = self.folders.copy()
        kept: set[int] = set()
        for place, change in zip(self._places, self.changes, strict=True):
            if plan[place] is not DROP and change.needs & self._pending_ticks <= kept:
                kept.add(change.tick)
                apply_edits(folders, change.edits)
        return folders

    def describe(self, plan: Plan) -> list[str]:
        """One line for each pending operation: what became of it."""
        pairs = zip(plan, self.items, strict=True)
        return [f"{_verdict(outcome)}: {_label(item)}" for outcome, item in pairs]


def _uncertain(
    files: Iterable[CachedFile], changes: list[NameChange]
) -> list[Operation | NameChange]:
    items: list[Operation | NameChange] = list(changes)
    items += [each for file in files for each in file.pending if not _is_saved(each)]
    return sorted(items, key=lambda item: item.tick)


def _is_saved(operation: Operation) -> bool:
    return operation.state is State.SAVED


def _label(item: Operation | NameChange) -> str:
    return item.label if isinstance(item, NameChange) else item.describe()


def _verdict(outcome: Outcome) -> str:
    if outcome is KEEP:
        return "kept"
    if outcome is DROP:
        return "lost"
    return "only zeros" if outcome.grown else f"torn, kept {list(outcome.slices)}"


def plans(snapshot: Snapshot, limit: int, random: Random, *, few_tears: bool) -> Iterator[Plan]:
    """At most ``limit`` different plans; fewer when there are no more.

    With ``few_tears`` each write is torn in a few ways only, so that many plans leave the same disk.
    """
    seen: set[Plan] = set()
    repeats = 0
    for plan in _candidates(snapshot.items, limit, random, few_tears):
        if len(seen) >= limit or repeats > REPEATS_MAX:
            return
        repeats = repeats + 1 if plan in seen else 0
        if not repeats:
            seen.add(plan)
            yield plan


def _candidates(
    items: list[Operation | NameChange], limit: int, random: Random, few_tears: bool
) -> Iterator[Plan]:
    count = len(items)
    yield (DROP,) * count
    yield (KEEP,) * count
    torn = [_tears_of(item, random) for item in items]
    yield from _singles(torn, limit // 2, random)
    ways: list[Callable[[], Outcome] | None] = [_any_tear(item, random) for item in items]
    if few_tears:
        ways = [partial(random.choice, few) if few else None for few in torn]
    while count:
        yield _random_plan(ways, random)


def _singles(torn: list[list[Outcome]], limit: int, random: Random) -> Iterator[Plan]:
    count = len(torn)
    picks = [(index, out) for index in range(count) for out in (DROP, KEEP, *torn[index])]
    if 2 * len(picks) > limit:
        picks = random.sample(picks, min(len(picks), limit // 2))
    for index, outcome in picks:
        before, after = index, count - index - 1
        if outcome is KEEP:
            yield (KEEP,) * before + (KEEP,) + (DROP,) * after
            yield (DROP,) * before + (KEEP,) + (DROP,) * after
        else:
            yield (KEEP,) * before + (outcome,) + (KEEP,) * after
            yield (KEEP,) * before + (outcome,) + (DROP,) * after


def _tears_of(item: Operation | NameChange, random: Random) -> list[Outcome]:
    """The few ways in which it is torn at this moment; at another moment there are others."""
    if isinstance(item, NameChange) or item.data is None:
        return []
    return tears(item.position, len(item.data), random)


def tears(position: int, length: int, random: Random) -> list[Outcome]:
    """Torn at the first byte, the last byte, sector edges, a random byte; sectors missing."""
    edges = sector_edges(position, length)
    cuts = [1, length - 1, *_few(edges, random), random.randrange(length)]
    torn = [Outcome(((0, cut),)) for cut in dict.fromkeys(cuts) if 0 < cut < length]
    if edges:
        torn += [Outcome(((edges[0], length),)), Outcome(((edges[-1], length),))]
        torn.append(_some_sectors(edges, length, random))
    return [*torn, GROWN]


def sector_edges(position: int, length: int) -> list[int]:
    """Where sectors of the file begin inside a write, counted from the write's start."""
    first = -position % SECTOR_BYTES or SECTOR_BYTES
    return list(range(first, length, SECTOR_BYTES))


def _few(edges: list[int], random: Random) -> list[int]:
    if len(edges) <= SECTOR_EDGES_MAX:
        return edges
    return [edges[0], edges[-1], *random.sample(edges[1:-1], SECTOR_EDGES_MAX - 2)]


def _some_sectors(edges: list[int], length: int, random: Random) -> Outcome:
    bounds = [0, *edges, length]
    return Outcome(tuple(each for each in itertools.pairwise(bounds) if random.random() < 0.5))


def _random_plan(ways: Sequence[Callable[[], Outcome] | None], random: Random) -> Plan:
    keep = random.choice((0.1, 0.5, 0.9))
    torn = random.choice((0.0, 0.1, 0.5))
    chance = random.random
    # In one place, as it is done for each operation of hundreds of thousands of plans.
    return tuple(
        [
            tear() if tear is not None and chance() < torn else (KEEP if chance() < keep else DROP)
            for tear in ways
        ]
    )


def _any_tear(item: Operation | NameChange, random: Random) -> Callable[[], Outcome] | None:
    if isinstance(item, NameChange) or item.data is None:
        return None
    return partial(_random_tear, item.position, len(item.data), random)


def _random_tear(position: int, length: int, random: Random) -> Outcome:
    edges = sector_edges(position, length)
    if edges and random.random() < 0.5:
        return _some_sectors(edges, length, random)
    cut = random.randrange(length)
    return Outcome(((0, cut),)) if cut else GROWN
