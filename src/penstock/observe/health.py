"""From a snapshot to a yes or a no, for those who restart processes and send them traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.observe.values import Cause, Health, Snapshot
from penstock.pressure.states import BackpressureState

RESTART_HELPS = frozenset(
    {Cause.HANDLER, Cause.LOOP_BLOCKED, Cause.NO_PROGRESS, Cause.REBALANCING, Cause.QUERY_FAILED}
)
"""A new process begins anew with these. It finds the same circuit, broker and pressure again."""


def health_of(snapshot: Snapshot, troubles: Sequence[str], *, draining: bool) -> Health:
    """Alive: nothing here stands still that a restart can end. Ready: it can take more work."""
    dead = [one for one in snapshot.stalls if one.local and one.cause in RESTART_HELPS]
    unready = [*troubles, *_overloaded(snapshot), *(["the process drains"] if draining else [])]
    return Health(
        alive=not dead,
        ready=not dead and not unready,
        reasons=(*(one.explain() for one in snapshot.stalls), *unready),
        stalls=snapshot.stalls,
    )


def _overloaded(snapshot: Snapshot) -> Iterable[str]:
    for bus in snapshot.buses:
        if bus.pressure is not None and bus.pressure.level is BackpressureState.SHEDDING:
            yield f"bus {bus.name!r} sheds load: {bus.pressure.pressure.explain()}"
    for streams in snapshot.streams:
        if streams.publishers.level is BackpressureState.SHEDDING:
            yield f"streams {streams.name!r} shed load: {streams.publishers.pressure.explain()}"
