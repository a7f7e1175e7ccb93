"""Why a run does not go on in a partition."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.observe.stacks import await_stack, cause_in
from penstock.observe.values import Cause
from penstock.observe.watched import Position, Why
from penstock.streaming.key_lanes import Work
from penstock.streaming.parallel import ParallelConsumer
from penstock.streaming.run_values import RunMember
from penstock.streaming.stream_event import StreamEvent
from penstock.streaming.stream_run import StreamRun
from penstock.streaming.task_member import TaskMember


def why_of_run(run: StreamRun, position: Position) -> Why | None:
    """What holds a run up, None when it has nothing to say of this partition."""
    members = [place.member for place in run._places if place.member is not None]
    for member in members:
        why = _why_of_member(member, position)
        if why is not None:
            return why
    return None if members else _nobody(run)


def _nobody(run: StreamRun) -> Why:
    died = run.statistics()
    last = f"; the last error was {died.last_error}" if died.last_error else ""
    detail = f"no consumer runs, after {died.restarts} that died{last}"
    return Why(cause=Cause.NO_MEMBER, detail=detail)


def _why_of_member(member: RunMember, position: Position) -> Why | None:
    if isinstance(member, TaskMember):
        return _why_of_records(member._parallel, position)
    work = member.figures().partitions.get(position.partition or 0)
    if work is None or work.oldest_ms is None:
        return None
    return Why(
        cause=Cause.HANDLER,
        detail=f"a handler in a process of its own is not done with offset {work.handled}",
        offset=work.handled,
    )


def _why_of_records(parallel: ParallelConsumer[StreamEvent], position: Position) -> Why | None:
    """The first record that is not handled decides: nothing behind it can be committed."""
    first = _first(parallel._buffered, position.partition)
    if first is None:
        return None
    offset = first.record.offset
    if first.error is not None:
        detail = f"offset {offset} failed for good and is parked: {first.error!r}"
        return Why(cause=Cause.PARKED, detail=detail, offset=offset)
    task = parallel._running.get(first)
    if task is not None:
        seconds = parallel._timers.clock.monotonic() - first.began
        cause, stack = cause_in(task), await_stack(task)
        detail = f"a handler runs for {seconds:.1f} s at offset {offset}"
        return Why(cause=cause, detail=detail, offset=offset, stack=stack)
    if first.attempts:
        detail = f"offset {offset} failed {first.attempts} times and is tried again"
        return Why(cause=Cause.RETRYING, detail=detail, offset=offset)
    return None


def _first(works: Iterable[Work[StreamEvent]], partition: int | None) -> Work[StreamEvent] | None:
    mine = (work for work in works if work.record.partition == partition and not work.settled)
    return min(mine, key=lambda work: work.record.offset, default=None)
