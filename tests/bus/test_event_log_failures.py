"""An event log that fails or hangs, and the position below which everything is handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import event_log as module
from penstock.bus.bus import MessageBus
from penstock.bus.positions import HandledPositions
from penstock.errors import BufferFull, DeadlineExceeded, StoreFailed
from penstock.messages import Envelope
from penstock.system import System
from penstock.testing.clock import VirtualClock
from tests.bus.kept_events import Order, figures_of, until

# ------------------------------------------------------------------------------- a failing sink


class FailingLog:
    """An event log whose appends fail, or hang, when told. The records that went well are kept."""

    batch_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.handled = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.skipped = 0

    def event_log(self, name: str) -> FailingLog:
        return self

    def journal(self, name: str) -> Any:
        return EmptyJournal()

    async def open(self) -> tuple[int, int]:
        return self.handled, len(self.records)

    async def append(self, records: Sequence[bytes], *, durable: bool) -> int:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.records += records
        return len(self.records) - len(records)

    async def read(
        self, start: int | None = None, end: int | None = None
    ) -> AsyncIterator[tuple[int, bytes]]:
        for position in range(start or 0, len(self.records) if end is None else end):
            yield position, self.records[position]

    async def commit(self, position: int) -> None:
        if self.error is not None:
            raise self.error
        self.handled = position

    async def close(self) -> None:
        pass


class EmptyJournal:
    async def open(self) -> dict[str, bytes]:
        return {}

    async def change(self, changes: Any) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.acceptance(143)
async def test_a_failing_sink_is_counted_and_breaks_nothing(caplog):
    log = FailingLog()
    seen: list[int] = []
    async with MessageBus(log=log, event_log=True) as bus:
        bus.subscribe(Order, lambda event: seen.append(event.number))
        await bus.publish(Order(0))
        await bus.history.flush()
        log.error = StoreFailed("the disk is gone")
        for number in range(1, 4):
            await bus.publish(Order(number))
            await bus.history.flush()
        with pytest.raises(StoreFailed):
            await bus.publish(Order(4), durable=True)
        await bus.settle()
        assert seen == [0, 1, 2, 3]  # the durable one was not published
        figures = figures_of(bus)
        assert (figures.logged, figures.lost, figures.failing) == (1, 3, "the disk is gone")
        assert len([one for one in caplog.records if "not kept" in one.message]) == 1
        log.error = None
        await bus.publish(Order(5), durable=True)
        await bus.settle()
        figures = figures_of(bus)
        assert (figures.logged, figures.failing, figures.handled_position) == (2, None, 2)
    assert log.handled == 2


async def test_a_handled_position_that_is_not_written_breaks_nothing(caplog):
    log = FailingLog()
    async with MessageBus(log=log, event_log=True) as bus:
        await bus.publish(Order(0))
        await bus.settle()
        await bus.history.flush()
        log.error = StoreFailed("the disk is gone")
    assert "was not written" in caplog.text
    assert log.handled == 0


async def test_a_slow_disk_slows_no_handler_and_has_a_bound(monkeypatch):
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 2_000)
    log = FailingLog()
    log.gate.clear()
    seen: list[int] = []
    async with MessageBus(log=log, event_log=True) as bus:
        bus.subscribe(Order, lambda event: seen.append(event.number))
        for number in range(100):
            await bus.publish(Order(number))
        await bus.settle()
        assert len(seen) == 100
        figures = figures_of(bus)
        assert figures.pending + figures.lost == 100
        assert figures.lost > 0
        with pytest.raises(BufferFull):
            await bus.publish(Order(100), durable=True)
        log.gate.set()
        await bus.history.flush()
        assert len(log.records) + figures.lost == 100


async def test_a_durable_publish_has_a_deadline():
    clock = VirtualClock()
    log = FailingLog()
    seen: list[int] = []
    async with MessageBus(log=log, event_log=True, system=System(clock=clock)) as bus:
        bus.subscribe(Order, lambda event: seen.append(event.number))
        log.gate.clear()
        task = asyncio.ensure_future(bus.publish(Order(1), durable=True, timeout=5.0))
        await until(lambda: figures_of(bus).pending)
        clock.advance(5.0)
        with pytest.raises(DeadlineExceeded):
            await task
        assert seen == []
        log.gate.set()
        await bus.history.flush()
        await bus.settle()
        assert seen == [1]  # it was on its way


async def test_nothing_waits_for_the_log_of_a_bus_without_one():
    async with MessageBus() as bus:
        assert bus._intake.recorder is None
        assert bus._dispatch.on_settled is None


# ------------------------------------------------------------------------------- the position


@given(st.data())
def test_the_handled_position_is_that_of_the_first_event_that_is_not_settled(data):
    """Against a model that knows where every event is."""
    backlog = data.draw(st.integers(0, 5), "backlog")
    handled = data.draw(st.integers(0, 3), "handled")
    positions = HandledPositions()
    positions.begin(handled, handled + backlog)
    log: list[int | None] = [None] * handled  # position → sequence of the envelope there
    settled: set[int] = set()
    waiting: list[int] = []
    envelopes = {n: Envelope(Order(n), n, 0, "a") for n in range(200)}
    unread = handled if backlog else None
    log += range(100, 100 + backlog)
    fresh = 0
    for _ in range(data.draw(st.integers(0, 40), "steps")):
        step = data.draw(st.sampled_from(["note", "write", "fail", "settle", "read"]), "step")
        if step == "note":
            positions.note(envelopes[fresh])
            waiting.append(fresh)
            fresh += 1
        elif step in ("write", "fail") and waiting:
            count = data.draw(st.integers(1, len(waiting)), "count")
            taken, waiting = waiting[:count], waiting[count:]
            if step == "write":
                positions.write(count, len(log))
                log += taken
            else:
                positions.fail(count)
        elif step == "settle":
            known = [n for n in range(fresh) if n not in settled]
            read = backlog if unread is None else unread - handled
            known += [n for n in range(100, 100 + read) if n not in settled]
            if known:
                one = data.draw(st.sampled_from(known), "settled")
                positions.settle(envelopes[one])
                settled.add(one)
        elif step == "read" and unread is not None:
            positions.reopen(envelopes[100 + unread - handled], unread)
            unread = unread + 1 if unread + 1 < handled + backlog else None
            positions.read(unread)
        expected = next(
            (at for at, one in enumerate(log) if one is not None and one not in settled), len(log)
        )
        assert positions.handled() <= expected
        if not any(n < 100 and n not in settled and n not in log for n in range(fresh)):
            assert positions.handled() == expected
