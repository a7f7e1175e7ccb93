"""The suite of buses on a bus whose topics are all durable, around the plain and the resilient one.

What the suite says of the memory of a bus does not hold for a log. ``NOT_DURABLE`` names these tests,
each with the reason; ``test_durable_topics.py``, ``test_durable_corners.py`` and ``test_durable_atomic.py`` say
what holds instead.
"""

import pytest

from penstock.bus.bus import MessageBus
from penstock.resilience.bus import ResilientMessageBus
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing import BusConformance
from penstock.testing.bus_events import EventConformance
from penstock.testing.bus_threads import ThreadConformance
from tests.scaling.durable_world import DurableBuses, InlineExecutor, PatientTable

NO_BOUND = (
    "the log takes what no lane has room for: publishers wait for the disk, never for handlers"
)
UNREAD = "what is in the log and was not read when the bus stops is handled at the next start"
WAITS = "what nobody listens to stays in the log, for who comes next"
WRITES = (
    "publishing takes the time of a write: a caller cancelled before has published nothing, and one \
cancelled during it may have published"
)
READS = (
    "events come from the log one after the other, so how many are in a batch depends on the disk"
)

NOT_DURABLE = {
    "test_publish_waits_for_room_and_keeps_the_order": NO_BOUND,
    "test_waiting_for_room_has_a_deadline": NO_BOUND,
    "test_pressure_begins_at_the_high_mark_and_ends_at_the_low_one": NO_BOUND,
    "test_the_marks_are_apart_in_queues_of_any_size": NO_BOUND,
    "test_drop_oldest": NO_BOUND,
    "test_drop_oldest_spares_higher_priorities": NO_BOUND,
    "test_reject_new": NO_BOUND,
    "test_what_a_filter_refuses_needs_no_room": NO_BOUND,
    "test_a_group_without_room_for_one_publishes_none": NO_BOUND,
    "test_an_avalanche_is_bounded": NO_BOUND,
    "test_what_waits_for_the_start_is_bounded": NO_BOUND,
    "test_a_slow_batch_slows_its_publishers": NO_BOUND,
    "test_what_a_thread_was_told_is_true_when_the_queue_is_full": NO_BOUND,
    "test_nobody_waits_for_a_bus_that_stopped": NO_BOUND,
    "test_stop_handles_all_that_is_queued": UNREAD,
    "test_stop_without_draining_reports_everything": UNREAD,
    "test_stop_without_draining_reports_what_threads_have_published": UNREAD,
    "test_settle_and_stop_know_what_threads_have_published": UNREAD,
    "test_threads_hear_that_the_bus_is_stopped": UNREAD,
    "test_a_handler_may_publish_from_a_thread": UNREAD,
    "test_what_follows_from_queued_events_is_handled_while_it_drains": UNREAD,
    "test_who_leaves_the_stop_does_not_stop_it": UNREAD,
    "test_stop_hands_over_what_is_there": UNREAD,
    "test_stopped_at_any_point_every_event_is_done_or_reported": UNREAD,
    "test_a_filter_that_raises_lets_none_of_a_group_through": UNREAD,
    "test_events_wait_for_the_start": "they wait in the log, where the bus does not count them",
    "test_threads_may_publish_before_the_start": "they wait in the log, which the bus does not count",
    "test_an_event_that_nobody_wants_is_counted": WAITS,
    "test_who_unsubscribes_is_called_no_more": WAITS,
    "test_publish_cancelled_at_any_point_queues_one_or_none": WRITES,
    "test_publish_and_wait_cancelled_at_any_point_loses_nothing[False": WRITES,
    "test_nested_work_cancelled_at_any_point": WRITES,
    "test_a_batch_is_full_or_handed_over_when_nothing_more_waits": READS,
    "test_a_failing_event_is_isolated": READS,
    "test_a_busy_class_lets_others_in": READS,
    "test_a_timeout_ends_handlers_that_run_side_by_side": "the caller does not run the handlers, so "
    "its timeout does not end them",
    "test_who_fails_without_saying_which_has_failed_on_all": "an open circuit makes events wait, longer "
    "than the test does",
    "test_keys_need_not_be_hashable": "what is no value of its field's type cannot be read back",
    "test_ten_thousand_topics_stay_subscribed": "ten thousand topics are ten thousand directories",
    "test_buses_in_different_threads_and_loops": "a log belongs to one loop",
}
"""Test → why it says nothing about durable topics."""


class Durable:
    """Leaves out what does not hold."""

    inner: type[MessageBus] = MessageBus

    @pytest.fixture(autouse=True)
    def _only_what_holds(self, request):
        node = request.node
        reason = NOT_DURABLE.get(node.originalname) or NOT_DURABLE.get(node.name.split("-")[0])
        if reason is not None:
            pytest.skip(reason)

    @pytest.fixture
    async def make_bus(self, _only_what_holds):
        async with DurableBuses(self.inner, MemoryStore, InlineExecutor()) as buses:
            yield buses


class WithoutThreads(BusConformance):
    """The suite without what starts threads: the log of these tests has none."""


for name in [name for name in vars(ThreadConformance) if name.startswith("test_")]:
    setattr(WithoutThreads, name, None)


class TestDurable(Durable, WithoutThreads):
    pass


class TestDurableResilient(Durable, WithoutThreads):
    inner = ResilientMessageBus


class TestDurableThreads(Durable, ThreadConformance):
    """With the real threads of a log, in real time."""

    @pytest.fixture
    async def make_bus(self, _only_what_holds):
        async with DurableBuses(self.inner, MemoryStore) as buses:
            yield buses

    @pytest.fixture
    def table(self, make_bus):
        return PatientTable(make_bus)


class TestDurableDirectory(Durable, EventConformance):
    inner = ResilientMessageBus

    @pytest.fixture
    async def make_bus(self, _only_what_holds, tmp_path):
        stores = iter(range(10))
        make_store = lambda: DirectoryStore(tmp_path / str(next(stores)))  # noqa: E731
        async with DurableBuses(self.inner, make_store, InlineExecutor()) as buses:
            yield buses


def test_everything_that_is_left_out_exists():
    assert all(hasattr(BusConformance, name.split("[")[0]) for name in NOT_DURABLE)
