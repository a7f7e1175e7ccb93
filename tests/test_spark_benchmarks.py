"""The benchmark of Spark names what it measures; the run itself needs minutes and a quiet machine."""

from benchmarks.model import POINTS, SCALES
from benchmarks.spark import sink
from benchmarks.spark.common import BATCHES
from benchmarks.spark.source import CALL, RECORDS, RECORDS_DEFAULT
from benchmarks.suites import SUITES

SPARK = SUITES["spark"]


def test_targets_are_about_cases_that_are_measured():
    cases = {case.name: case for one in SPARK.workloads for case in one.cases(SCALES["default"])}
    for target in SPARK.targets:
        assert {target.of, target.to or target.of} <= cases.keys()
    assert {case.point for case in cases.values()} <= POINTS.keys()


def test_micro_batches_are_of_one_size():
    for records in (*RECORDS.values(), RECORDS_DEFAULT):
        assert records % BATCHES == records % CALL == 0
    for rows in (*sink.ROWS.values(), sink.ROWS_DEFAULT):
        assert rows % (BATCHES * sink.FILES_OF_A_BATCH) == 0
