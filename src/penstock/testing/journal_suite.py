"""The conformance suite of journals: what a bus may rely on.

A log of your own keeps the journals of a bus when a subclass in your tests passes::

    class TestMyJournals(JournalConformance):
        @pytest.fixture
        def open_log(self, tmp_path):
            return functools.partial(MyLog, tmp_path / "data")

``open_log`` gives a callable. Each call makes an async context manager that opens a
:class:`penstock.bus.journal.JournalLog` on one place, which is empty when the test starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus.journal import Journal, JournalLog
from penstock.errors import Closed, InvalidName, RecordTooLarge, SubscriberBusy, UsageError
from penstock.testing.queue_fixtures import EXAMPLES

OpenLog = Callable[[], AbstractAsyncContextManager[JournalLog]]
Changes = Mapping[str, bytes | None]

NAME = "bus.schedule"
CHANGES = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.none() | st.binary(max_size=20), max_size=4),
    max_size=12,
)


async def opened(log: JournalLog, name: str = NAME) -> Journal:
    """A journal that is open."""
    journal = log.journal(name)
    await journal.open()
    return journal


async def held(log: JournalLog, name: str = NAME) -> dict[str, bytes]:
    """What a journal holds."""
    journal = log.journal(name)
    try:
        return dict(await journal.open())
    finally:
        await journal.close()


def applied(changes: list[Changes]) -> dict[str, bytes]:
    """What a journal must hold after these changes, the oldest change first."""
    model: dict[str, bytes] = {}
    for change in changes:
        for key, value in change.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
    return model


class JournalConformance:
    """All tests of journals. Subclass it and say how to open a log: see the module's text."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def open_log(self) -> OpenLog:
        """A callable that opens a log on one place."""
        raise NotImplementedError("define the fixture open_log in your subclass")

    async def test_a_new_journal_is_empty(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            assert await held(log) == {}

    async def test_what_was_changed_is_there_after_a_restart(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            await journal.change({"a": b"1", "b": b"2", "c": b""})
            await journal.change({"b": None, "d": b"\x00\xff"})
            await journal.change({"a": b"3"})
        async with open_log() as log:
            found = await held(log)
        assert list(found.items()) == [("c", b""), ("d", b"\x00\xff"), ("a", b"3")]

    async def test_keys_are_any_text(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            await journal.change({"größe/ñ": b"1", "": b"2", "x" * 1_000: b"3"})
            await journal.close()
            assert await held(log) == {"größe/ñ": b"1", "": b"2", "x" * 1_000: b"3"}

    async def test_it_has_one_owner_at_a_time(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            with pytest.raises(SubscriberBusy, match="give each bus its own name"):
                await opened(log)
            await journal.change({"a": b"1"})
            await journal.close()
            assert await held(log) == {"a": b"1"}

    async def test_names_are_apart(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            one, other = await opened(log, "one"), await opened(log, "other")
            await one.change({"a": b"1"})
            await other.change({"a": b"2"})
            await one.close()
            await other.close()
            assert await held(log, "one") == {"a": b"1"}
            assert await held(log, "other") == {"a": b"2"}

    async def test_a_journal_that_is_not_open_takes_nothing(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = log.journal(NAME)
            with pytest.raises(UsageError, match="open"):
                await journal.change({"a": b"1"})
            await journal.open()
            with pytest.raises(UsageError, match="open"):
                await journal.open()
            await journal.close()
            await journal.close()
            with pytest.raises(Closed):
                await journal.change({"a": b"1"})
            with pytest.raises(Closed):
                await journal.open()
            assert await held(log) == {}

    async def test_a_bad_name_is_refused(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            with pytest.raises(InvalidName):
                log.journal("a/b")

    async def test_changes_at_the_same_time_are_made_in_order(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            await asyncio.gather(*(journal.change({"a": b"%d" % at}) for at in range(50)))
            await journal.close()
            assert await held(log) == {"a": b"49"}

    async def test_a_change_that_is_too_large_changes_nothing(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            with pytest.raises(RecordTooLarge):
                await journal.change({"a": b"x" * 30_000_000, "b": b"x" * 30_000_000})
            await journal.change({})
            await journal.change({"c": b"1"})
            await journal.close()
            assert await held(log) == {"c": b"1"}

    async def test_a_cancelled_change_is_made_whole_or_not(self, open_log: OpenLog) -> None:
        async with open_log() as log:
            journal = await opened(log)
            change = asyncio.ensure_future(journal.change({"a": b"1", "b": b"2"}))
            await asyncio.sleep(0)
            change.cancel()
            await asyncio.wait([change])
            await journal.change({"c": b"3"})
            await journal.close()
            found = await held(log)
            assert found in ({"c": b"3"}, {"a": b"1", "b": b"2", "c": b"3"})

    @given(changes=CHANGES)
    @settings(EXAMPLES, max_examples=20)
    async def test_it_holds_the_newest_of_each_key(
        self, open_log: OpenLog, changes: list[Changes]
    ) -> None:
        async with open_log() as log:
            journal = log.journal(NAME)
            await journal.open()
            await journal.change(dict.fromkeys("abcdef"))
            for change in changes:
                await journal.change(change)
            await journal.close()
            assert list((await held(log)).items()) == list(applied(changes).items())
