"""The benchmark of brokers names what it measures; the run itself needs the servers."""

from benchmarks.model import POINTS, SCALES
from benchmarks.suites import SUITES

BROKERS = SUITES["brokers"]


def test_targets_are_about_cases_that_are_measured():
    cases = {case.name: case for one in BROKERS.workloads for case in one.cases(SCALES["default"])}
    for target in BROKERS.targets:
        assert {target.of, target.to or target.of} <= cases.keys()
    assert {case.point for case in cases.values()} <= POINTS.keys()


def test_every_broker_is_measured_beside_its_bare_client():
    for workload in BROKERS.workloads:
        cases = workload.cases(SCALES["quick"])
        pairs = {(case.point, case.contender) for case in cases}
        for point in ("produce", "consume"):
            assert {(point, "penstock"), (point, "bare")} <= pairs
