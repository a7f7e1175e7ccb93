"""The ledger, and checkpoints that are rebuilt from it, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import DamagedFile
from penstock.spark.checkpoint import Condition, Resumed, condition_of, ready_checkpoint, resume
from penstock.spark.ledger import PLANS_MAX, Ledger, Progress, Range
from penstock.stores import MemoryStore
from penstock.system import OsFiles


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryStore(), "shop.orders")


def done(batch: int, *ends: str, stateful: bool = False) -> Progress:
    return Progress(query_id="q-1", batch_id=batch, ends=ends, watermark_ms=5, stateful=stateful)


def test_what_is_planned_and_done_is_kept(ledger) -> None:
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 7}})
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 7}})
    ledger.note(done(0, "x"))
    assert ledger.plans() == [[Range('{"orders":{"0":0}}', '{"orders":{"0":7}}')]]
    assert ledger.progress() == done(0, "x")


def ends_of(ledger: Ledger) -> list[int]:
    (plans,) = ledger.plans()
    return [json.loads(one.end)["orders"]["0"] for one in plans]


def test_plans_are_kept_until_they_are_reported(ledger) -> None:
    for number in range(10):
        ledger.plan({"orders": {0: number}}, {"orders": {0: number + 1}})
    assert ends_of(ledger) == list(range(1, 11))
    ledger.note(done(6, '{"orders": {"0": 7}}'))
    ledger.plan({"orders": {0: 10}}, {"orders": {0: 11}})
    assert ends_of(ledger) == [7, 8, 9, 10, 11]


def test_no_more_than_so_many_plans_are_kept(ledger) -> None:
    for number in range(PLANS_MAX + 5):
        ledger.plan({"orders": {0: number}}, {"orders": {0: number + 1}})
    assert len(ends_of(ledger)) == PLANS_MAX


def test_a_plan_takes_the_place_of_one_with_the_same_start(ledger) -> None:
    for start, end in ((0, 3), (3, 5), (5, 5), (3, 9)):
        ledger.plan({"orders": {0: start}}, {"orders": {0: end}})
    (plans,) = ledger.plans()
    assert [json.loads(one.end)["orders"]["0"] for one in plans] == [3, 9]
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 3}})
    assert ledger.plans() == [plans], "one that is done again changes nothing"


def test_two_uses_of_a_topic_are_planned_apart(ledger) -> None:
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 7}})
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 5}}, 2)
    plans = ledger.plans()
    assert len(plans) == 2
    progress = done(-1, '{"orders":{"0":0}}', '{"#2": {}, "orders": {"0": 0}}')
    found = resume(progress, plans, -1)
    assert found.planned == ('{"orders":{"0":7}}', '{"#2":{},"orders":{"0":5}}')
    ledger.note(done(0, *found.planned))
    assert resume(done(0, *found.planned), plans, 0).planned is None


def test_a_forgotten_ledger_knows_nothing(ledger) -> None:
    ledger.plan({"orders": {0: 0}}, {"orders": {0: 7}})
    ledger.note(done(0, "x"))
    ledger.forget()
    assert ledger.plans() == []
    assert ledger.progress() is None


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"checksum": 1, "body": {"query_id": "q"}}'])
def test_damage_is_told(damage: bytes) -> None:
    store = MemoryStore()
    Ledger(store, "shop").note(done(0, "x"))
    store.write("ledgers/shop/progress", damage)
    with pytest.raises(DamagedFile, match="ledgers/shop/progress"):
        Ledger(store, "shop").progress()


class TestWhereItGoesOn:
    def test_none_was_planned(self) -> None:
        assert resume(done(3, "b"), [[Range("a", "b")]], 3) == Resumed(3, ("b",), None)

    @pytest.mark.parametrize("committed", [3, 4, None])
    def test_one_was(self, committed) -> None:
        plans = [[Range("a", "b"), Range("b", "c")]]
        assert resume(done(3, "b"), plans, committed) == Resumed(3, ("b",), ("c",))

    def test_offsets_are_the_same_however_they_are_written(self) -> None:
        plans = [[Range('{"orders":{"0":2,"1":3}}', '{"orders":{"0":4,"1":3}}')]]
        found = resume(done(3, '{"orders": {"1": 3, "0": 2}}'), plans, 4)
        assert found.planned == ('{"orders":{"0":4,"1":3}}',)

    def test_of_two_sources_one_moved(self) -> None:
        plans = [[Range("b", "c")], [Range("x", "y")]]
        assert resume(done(3, "b", "y"), plans, 4) == Resumed(3, ("b", "y"), ("c", "y"))

    def test_of_several_all_but_the_last_are_done(self) -> None:
        # The report of the first one was lost: Spark plans the next one only when that was done.
        plans = [[Range("b", "c"), Range("c", "d")]]
        for committed in (4, 5):
            assert resume(done(3, "b"), plans, committed) == Resumed(4, ("c",), ("d",))

    def test_two_sources_moved_together_if_the_sink_has_nothing_of_it(self) -> None:
        plans = [[Range("b", "c")], [Range("x", "y")]]
        assert resume(done(3, "b", "x"), plans, 3) == Resumed(3, ("b", "x"), ("c", "y"))

    @pytest.mark.parametrize("committed", [4, None])
    def test_two_sources_moved_and_the_sink_has_one_more(self, committed) -> None:
        with pytest.raises(DamagedFile, match="not which records each of them had"):
            resume(done(3, "b", "x"), [[Range("b", "c")], [Range("x", "y")]], committed)

    def test_several_of_two_sources_have_no_order(self) -> None:
        plans = [[Range("b", "c"), Range("c", "d")], [Range("x", "y")]]
        with pytest.raises(DamagedFile, match="not which records each of them had"):
            resume(done(3, "b", "x"), plans, 3)

    def test_the_sink_has_more_than_the_ledger_knows(self) -> None:
        with pytest.raises(DamagedFile, match="reset the output"):
            resume(done(3, "b"), [[Range("x", "y")]], 7)

    def test_before_the_first_report(self) -> None:
        plans = [[Range("a", "b")]]
        assert resume(done(-1), plans, 0) == Resumed(-1, (), ("b",))
        assert resume(done(-1), plans, -1) == Resumed(-1, (), None)
        assert resume(done(-1), [], None) == Resumed(-1, (), None)

    def test_before_the_first_report_state_may_be_lost(self) -> None:
        with pytest.raises(DamagedFile, match="reset the output"):
            resume(done(-1), [[Range("a", "b"), Range("b", "c")]], 0)


class TestCheckpoints:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "checkpoint"

    def spark_wrote(self, path: Path, batches: int) -> None:
        for number in range(batches):
            for folder, text in (
                ("offsets", f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{number}}}}}'),
                ("commits", 'v1\n{"nextBatchWatermarkMs":0}'),
            ):
                (path / folder).mkdir(parents=True, exist_ok=True)
                (path / folder / str(number)).write_text(text)
        (path / "metadata").write_text('{"id":"q-1"}')

    def test_one_that_spark_wrote_is_sound(self, path, ledger) -> None:
        assert condition_of(str(path), OsFiles()) is Condition.ABSENT
        self.spark_wrote(path, 3)
        assert ready_checkpoint(str(path), ledger) is Condition.SOUND

    @pytest.mark.parametrize("name", ["metadata", "offsets/2", "commits/2"])
    def test_an_empty_file_is_damage(self, path, name) -> None:
        self.spark_wrote(path, 3)
        (path / name).write_bytes(b"")
        assert condition_of(str(path), OsFiles()) is Condition.DAMAGED

    def test_an_empty_file_of_state_is_damage(self, path) -> None:
        self.spark_wrote(path, 3)
        state = path / "state" / "0" / "1"
        state.mkdir(parents=True)
        (state / "2.zip").write_bytes(b"PK")
        (state / ".2.zip.crc").write_bytes(b"")
        assert condition_of(str(path), OsFiles()) is Condition.SOUND
        (state / "3.changelog").write_bytes(b"")
        assert condition_of(str(path), OsFiles()) is Condition.DAMAGED

    def test_a_torn_file_is_damage(self, path) -> None:
        self.spark_wrote(path, 1)
        (path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"orders":{"0"')
        assert condition_of(str(path), OsFiles()) is Condition.DAMAGED

    @pytest.mark.parametrize("gone", [True, False])
    def test_it_is_rebuilt_with_the_micro_batch_that_was_at_work(self, path, ledger, gone) -> None:
        self.spark_wrote(path, 3)
        for file in path.rglob("*"):
            if file.is_file():
                file.unlink() if gone else file.write_bytes(b"")
        ledger.plan({"orders": {0: 1}}, {"orders": {0: 2}})
        ledger.plan({"orders": {0: 2}}, {"orders": {0: 9}})
        ledger.note(done(2, '{"orders":{"0":2}}'))
        ready_checkpoint(str(path), ledger)
        assert condition_of(str(path), OsFiles()) is Condition.SOUND
        assert json.loads((path / "metadata").read_text()) == {"id": "q-1"}
        assert (path / "offsets" / "3").read_text().splitlines()[2:] == ['{"orders":{"0":9}}']
        assert (path / "commits" / "2").exists()
        assert not (path / "commits" / "3").exists()
        assert len(list(path.parent.glob("checkpoint.damaged-*"))) == 1

    def test_state_cannot_be_rebuilt_and_that_is_told(self, path, ledger) -> None:
        self.spark_wrote(path, 3)
        (path / "metadata").write_bytes(b"")
        ledger.note(done(2, '{"orders":{"0":2}}', stateful=True))
        with pytest.raises(DamagedFile, match=r"state of the query.*micro-batch was 2.*replay"):
            ready_checkpoint(str(path), ledger)
        assert (path / "offsets" / "2").exists(), "nothing was changed"

    def test_a_query_has_its_id_before_it_begins(self, path, ledger) -> None:
        assert ready_checkpoint(str(path), ledger) is Condition.ABSENT
        begun = json.loads((path / "metadata").read_text())["id"]
        assert ledger.progress() == Progress(query_id=begun, batch_id=-1, ends=())
        assert ready_checkpoint(str(path), ledger) is Condition.SOUND

    def test_damage_before_the_first_report_keeps_the_id_and_the_first_micro_batch(
        self, path, ledger
    ) -> None:
        ready_checkpoint(str(path), ledger)
        begun = (path / "metadata").read_text()
        ledger.plan({"orders": {0: 0}}, {"orders": {0: 9}})
        (path / "metadata").write_bytes(b"")
        assert ready_checkpoint(str(path), ledger, committed=lambda query: 0) is Condition.DAMAGED
        assert (path / "metadata").read_text() == begun
        assert (path / "offsets" / "0").read_text().splitlines()[2:] == ['{"orders":{"0":9}}']
        assert not (path / "commits").exists()

    def test_what_was_being_written_when_it_ended_is_removed(self, path, ledger) -> None:
        ready_checkpoint(str(path), ledger)
        (path / "offsets").mkdir()
        for name in (".0.b12e.tmp", "..0.b12e.tmp.crc", ".0.crc"):
            (path / "offsets" / name).touch()
        assert ready_checkpoint(str(path), ledger) is Condition.SOUND
        assert [one.name for one in (path / "offsets").iterdir()] == [".0.crc"]

    def test_one_in_other_storage_is_left_alone(self, ledger, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert ready_checkpoint("s3://bucket/checkpoint", ledger) is Condition.ELSEWHERE
        assert ledger.progress() is None
        assert list(tmp_path.iterdir()) == []
        assert ready_checkpoint(f"file://{tmp_path}/local", ledger) is Condition.ABSENT
        assert (tmp_path / "local" / "metadata").exists()

    def test_the_one_before_the_last_is_looked_at_too(self, path, ledger) -> None:
        self.spark_wrote(path, 3)
        (path / "offsets" / "1").write_bytes(b"")
        assert condition_of(str(path), OsFiles()) is Condition.DAMAGED

    def test_whole_files_that_are_behind_the_ledger_are_rebuilt(self, path, ledger) -> None:
        """The newest files are gone, the others are sound: Spark would give a number again."""
        self.spark_wrote(path, 3)
        ledger.plan({"orders": {0: 1}}, {"orders": {0: 2}})
        ledger.note(done(2, '{"orders":{"0":2}}'))
        assert ready_checkpoint(str(path), ledger) is Condition.SOUND
        ledger.plan({"orders": {0: 2}}, {"orders": {0: 9}})
        assert ready_checkpoint(str(path), ledger, committed=lambda query: 3) is Condition.BEHIND
        assert (path / "offsets" / "3").read_text().splitlines()[2:] == ['{"orders":{"0":9}}']
        assert (path / "offsets" / "1").exists(), "Spark wants to see two"
