"""The checker of histories: each anomaly is found in a history that shows it, and nothing else."""

import random
from pathlib import Path

import pytest

from penstock.testing import HistoryRecorder, check_history, read_history
from penstock.testing.history import Committed, Polled, Sending, Sent
from penstock.testing.history_checks import CHECKS

GROUP = "billing"


class Script:
    """Writes a history by hand: several processes, one time that only grows."""

    def __init__(self, folder):
        self.folder = folder
        self.recorders = {}
        self.time = 0

    def by(self, process):
        if process not in self.recorders:
            self.recorders[process] = HistoryRecorder(self.folder / process, process)
            self.recorders[process].now = self.tick
        return self.recorders[process]

    def tick(self):
        self.time += 1
        return self.time

    def send(self, values, offsets=(), partition=0, by="producer", keys=()):
        self.by(by).sending(values, keys)
        self.by(by).sent(values, partition, offsets)

    def read(self, offsets, values, partition=0, by="consumer", group=GROUP, began=None):
        began = self.tick() if began is None else began
        records = [(partition, *one) for one in zip(offsets, values, strict=True)]
        self.by(by).polled(group, began, records)

    def commit(self, offset, partition=0, by="consumer", group=GROUP):
        began = self.by(by).committing(group, {partition: offset})
        self.by(by).committed(group, began, {partition: offset})

    def check(self):
        for recorder in self.recorders.values():
            recorder.close()
        self.recorders.clear()
        return check_history(read_history(sorted(self.folder.iterdir())))


@pytest.fixture
def script(tmp_path):
    made = Script(tmp_path)
    yield made
    for recorder in made.recorders.values():
        recorder.close()


def only(script, name, *others):
    report = script.check()
    assert list(report.counts) == [name, *others], str(report)
    assert name in str(report)
    return report.counts[name]


def test_a_clean_history_has_no_anomaly(script):
    script.send([1, 2, 3], [0, 1, 2], keys=[7, 7, 7])
    script.send([4, 5], [0, 1], partition=1, keys=[8, 8])
    script.by("consumer").assigned(GROUP, 1, {0: 0, 1: 0})
    script.read([0, 1], [1, 2])
    script.commit(2)
    script.read([2], [3])
    # It dies; the next one has what was not committed again.
    script.by("second").assigned(GROUP, 2, {0: 2, 1: 0})
    script.read([2], [3], by="second")
    script.read([0, 1], [4, 5], partition=1, by="second")
    script.commit(3, by="second")
    script.send([6], [3], by="other producer")
    script.read([3], [6], by="second")
    script.by("second").drained(GROUP)
    report = script.check()
    assert report.is_clean, str(report)
    assert (report.sent, report.acknowledged, report.read) == (6, 6, 7)
    assert "0 anomalies" in str(report)


def test_an_empty_history_is_clean():
    assert check_history([]).is_clean


def test_sends_without_an_answer_may_be_read_or_not(script):
    script.by("producer").sending([1])
    script.by("producer").sending([2])
    script.read([0], [2])
    script.by("consumer").drained(GROUP)
    assert script.check().is_clean


def test_lost(script):
    """The consumer begins behind it, so that nobody has skipped anything."""
    script.send([1, 2], [0, 1])
    script.read([1], [2])
    assert only(script, "lost") == 1


def test_what_nobody_has_come_to_is_not_lost(script):
    script.send([1, 2], [0, 1])
    script.read([0], [1])
    assert script.check().is_clean


def test_stale(script):
    script.send([1, 2], [0, 1])
    script.send([3], by="another")
    script.read([0], [1])
    script.by("consumer").drained(GROUP)
    assert only(script, "stale") == 2


def test_a_group_missed_what_another_read(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.read([0, 1, 2], [1, 2, 3], by="reader", group="audit")
    script.by("one").assigned(GROUP, 1, {0: 0})
    script.read([0], [1], by="one")
    script.by("two").assigned(GROUP, 2, {0: 2})
    script.read([2], [3], by="two")
    assert only(script, "missed") == 1


def test_duplicate(script):
    script.send([1], [0])
    script.send([2], [2])
    script.read([0, 1, 2], [1, 1, 2])
    assert only(script, "duplicate") == 1


def test_a_record_read_again_is_no_duplicate(script):
    script.send([1], [0])
    for name in ("one", "two"):
        script.read([0], [1], by=name)
    assert script.check().is_clean


def test_inconsistent_offsets(script):
    script.by("producer").sending([1, 2])
    script.read([0], [1], group="audit", by="reader")
    script.read([0], [2])
    assert only(script, "inconsistent offset") == 1


def test_an_acknowledgement_and_a_read_that_disagree(script):
    script.send([1], [0])
    script.by("other").sending([2])
    script.read([0], [2])
    assert "inconsistent offset" in script.check().counts


def test_phantom(script):
    script.read([0], [99])
    assert only(script, "phantom") == 1


def test_aborted_read(script):
    script.by("producer").sending([1, 2])
    script.by("producer").refused([2])
    script.read([0, 1], [1, 2])
    assert only(script, "aborted read") == 1


def test_what_was_aborted_need_not_be_read(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.by("producer").refused([2])
    script.read([0, 2], [1, 3])
    script.by("consumer").drained(GROUP)
    assert script.check().is_clean


def test_nonmonotonic_poll(script):
    script.send([1, 2], [0, 1])
    script.read([0, 1], [1, 2])
    script.read([1], [2])
    assert only(script, "nonmonotonic poll") == 1


def test_internal_nonmonotonic_poll(script):
    script.send([1, 2], [0, 1])
    script.read([1, 0], [2, 1])
    assert only(script, "nonmonotonic poll, internal") == 1


@pytest.mark.parametrize("generation", [2, 4])
def test_a_partition_that_was_away_may_begin_again(script, generation):
    script.send([1, 2], [0, 1])
    script.by("consumer").assigned(GROUP, 1, {0: 0})
    script.read([0, 1], [1, 2])
    if generation == 2:
        script.by("consumer").assigned(GROUP, 2, {})
        generation = 3
    script.by("consumer").assigned(GROUP, generation, {0: 0})
    script.read([0, 1], [1, 2])
    assert script.check().is_clean


def test_a_partition_that_stays_goes_on(script):
    script.send([1, 2], [0, 1])
    script.by("consumer").assigned(GROUP, 1, {0: 0, 1: 0})
    script.read([0, 1], [1, 2])
    script.by("consumer").assigned(GROUP, 2, {0: 0})
    script.read([1], [2])
    assert only(script, "nonmonotonic poll") == 1


def test_who_seeks_may_go_anywhere(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.read([0, 1, 2], [1, 2, 3], by="reader", group="audit")
    script.read([0], [1])
    script.commit(1)
    script.by("consumer").sought(GROUP, {0: 2})
    script.read([2], [3])
    script.commit(3)
    script.by("consumer").sought(GROUP, {0: 0})
    script.read([0], [1])
    assert script.check().is_clean


def test_poll_skip(script):
    """Nobody has told the place of value 2 but another reader; the group comes back for it."""
    script.send([1, 2, 3], [0, 1, 2])
    script.read([0], [1])
    script.read([2], [3])
    script.read([0, 1, 2], [1, 2, 3], by="second")
    assert only(script, "poll skip") == 1


def test_internal_skip(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.read([0, 2], [1, 3])
    script.read([0, 1, 2], [1, 2, 3], by="second")
    assert only(script, "poll skip, internal") == 1


def test_a_hole_where_nothing_is_known_to_be_is_no_skip(script):
    script.send([1, 2], [0, 5])
    script.read([0, 5], [1, 2])
    assert script.check().is_clean


def test_nonmonotonic_send(script):
    script.send([1], [1])
    script.send([2], [0])
    script.read([0, 1], [2, 1])
    assert only(script, "nonmonotonic send", "order in time") == 1


def test_internal_nonmonotonic_send(script):
    script.send([1, 2], [1, 0])
    script.read([0, 1], [2, 1])
    assert only(script, "nonmonotonic send, internal") == 1


def test_partitions_and_producers_are_apart(script):
    script.by("other").sending([3])
    script.send([1], [5])
    script.send([2], [0], partition=1)
    script.by("other").sent([3], 0, [0])
    assert script.check().is_clean


def test_order_in_time(script):
    script.by("slow").sending([9])
    script.send([1], [3])
    script.send([2], [0], by="other")
    script.by("slow").sent([9], 0, [2])
    script.read([0, 2, 3], [2, 9, 1])
    assert only(script, "order in time") == 1


def test_a_send_without_an_answer_is_anywhere_in_time(script):
    script.by("killed").sending([9])
    script.send([1], [0])
    script.read([0, 1], [1, 9])
    assert script.check().is_clean


def transaction(script, values, *, by="teller"):
    script.by(by).sending(values)
    script.by(by).deciding(values)


def test_a_precommitted_read(script):
    script.by("teller").sending([1, 2])
    script.read([0], [1])
    script.by("teller").deciding([1, 2])
    script.by("teller").sent([1, 2])
    script.read([1], [2])
    assert only(script, "precommitted read") == 1


def test_a_read_before_the_send(script):
    script.read([0], [1])
    script.send([1], [0])
    assert only(script, "precommitted read") == 1


def test_a_torn_transaction(script):
    transaction(script, [1, 2, 3])
    transaction(script, [4, 5])
    script.read([0, 1, 2], [1, 4, 5])
    script.by("consumer").drained(GROUP)
    assert only(script, "torn transaction") == 1


def test_a_transaction_over_partitions_without_an_answer_may_be_there_or_not(script):
    transaction(script, [1, 2])
    transaction(script, [3, 4], by="other")
    script.read([0], [1])
    script.read([0], [2], partition=1)
    script.by("consumer").drained(GROUP)
    assert script.check().is_clean


def test_a_poll_below_what_was_committed(script):
    script.send([1, 2], [0, 1])
    script.read([0, 1], [1, 2])
    script.commit(2)
    script.read([1], [2], by="second")
    assert only(script, "offset went back") == 1


def test_a_poll_that_began_before_the_commit_may_be_below(script):
    script.send([1, 2], [0, 1])
    began = script.tick()
    script.read([0, 1], [1, 2])
    script.commit(2)
    script.read([0, 1], [1, 2], by="zombie", began=began)
    assert script.check().is_clean


def test_a_member_that_goes_on_below_what_was_committed(script):
    script.send([1, 2], [0, 1])
    script.read([0, 1], [1, 2])
    script.commit(2)
    script.by("second").assigned(GROUP, 2, {0: 1})
    assert only(script, "offset went back") == 1


def test_a_member_that_goes_on_beyond_every_commit(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.read([0, 1], [1, 2])
    script.commit(1)
    script.by("consumer").committing(GROUP, {0: 2})
    script.by("second").assigned(GROUP, 2, {0: 2})  # the commit without an answer may count
    script.by("third").assigned(GROUP, 3, {0: 3})
    assert only(script, "offset went ahead") == 1


def test_what_comes_back_before_it_was_given_away_goes_on_where_it_was(script):
    script.send([1, 2, 3], [0, 1, 2])
    script.by("consumer").assigned(GROUP, 1, {0: 0, 1: 0})
    script.read([0, 1], [1, 2])
    script.commit(1)
    script.by("consumer").assigned(GROUP, 2, {1: 0})
    script.by("consumer").assigned(GROUP, 3, {0: 2, 1: 0})
    script.read([2], [3])
    assert script.check().is_clean


def test_a_commit_that_goes_back(script):
    script.send([1, 2], [0, 1])
    script.read([0, 1], [1, 2])
    script.commit(2)
    script.commit(1, by="zombie")
    assert only(script, "commit went back") == 1


def test_commits_at_the_same_time_have_no_order(script):
    script.send([1, 2], [0, 1])
    script.read([0, 1], [1, 2])
    began = script.by("zombie").committing(GROUP, {0: 1})
    script.commit(2)
    script.by("zombie").committed(GROUP, began, {0: 1})
    assert script.check().is_clean


def test_the_order_of_a_key_over_partitions(script):
    """As after a change of the partition count, when the old partition is not read out first."""
    script.send([1], [0], keys=[7])
    script.send([2], [0], partition=1, keys=[7])
    script.send([3], [1], partition=1, keys=[8])
    script.read([0, 1], [2, 3], partition=1)
    script.read([0], [1])
    assert only(script, "order of a key") == 1


def test_every_check_has_a_test_that_it_fails():
    shown = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CHECKS if f'only(script, "{name}"' not in shown] == []


def test_a_torn_last_line_is_left_out(tmp_path):
    with HistoryRecorder(tmp_path / "one", "one") as recorder:
        recorder.sending([1])
        recorder.sending([2])
    whole = (tmp_path / "one").read_bytes()
    (tmp_path / "one").write_bytes(whole[:-5])
    (operation,) = read_history([tmp_path / "one"])
    assert isinstance(operation, Sending)
    assert operation.values == [1]


def test_examples_are_few_and_counts_are_whole(script):
    script.read(range(100), range(100))
    report = script.check()
    assert report.counts == {"phantom": 100}
    assert len(report.anomalies[0].examples) == 5
    assert "value 0 at 0/0" in report.anomalies[0].examples[0]


def large(operations):
    """A clean history of so many operations: 8 producers, 16 partitions, 4 groups."""
    chance = random.Random(1)
    ends = [0] * 16
    batches = []
    for at in range(operations // 8):
        partition = chance.randrange(16)
        values = list(range(at * 10, at * 10 + 10))
        offsets = list(range(ends[partition], ends[partition] + 10))
        ends[partition] += 10
        batches.append((at, partition, offsets, values))
        name = f"p{partition % 8}"
        yield Sending(process=name, at=at, values=values, keys=[partition] * 10)
        yield Sent(process=name, at=at, values=values, partition=partition, offsets=offsets)
    for group in ("a", "b", "c", "d"):
        for at, partition, offsets, values in batches:
            yield Polled(
                process=group,
                group=group,
                began=at,
                at=at,
                partition=partition,
                offsets=offsets,
                values=values,
            )
            if at % 2:
                done = {partition: offsets[-1] + 1}
                yield Committed(process=group, group=group, began=at, at=at, offsets=done)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.torture)])
def test_a_large_history(operations):
    report = check_history(large(operations))
    assert report.is_clean, str(report)
    assert report.operations >= operations * 0.99
