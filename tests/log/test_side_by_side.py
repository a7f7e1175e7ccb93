"""Jobs side by side: all end, results in order, errors told."""

import threading

import pytest

from penstock.log.side_by_side import JOBS_MIN, OneByOne, SideBySide
from penstock.system import System


@pytest.fixture
def helpers():
    made = SideBySide(System())
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, 1, JOBS_MIN, 50])
def test_results_come_in_order(helpers, count):
    jobs = [lambda number=number: number for number in range(count)]
    assert helpers.run(jobs) == OneByOne().run(jobs) == list(range(count))


def test_jobs_run_at_the_same_time(helpers):
    meeting = threading.Barrier(4)
    assert len(helpers.run([lambda: meeting.wait(20)] * 4)) == 4


def test_all_have_ended_when_one_raises(helpers):
    done = []

    def job(number):
        if number % 3 == 0:
            raise ZeroDivisionError(number)
        done.append(number)

    with pytest.raises(ZeroDivisionError, match="0"):
        helpers.run([lambda number=number: job(number) for number in range(10)])
    assert sorted(done) == [1, 2, 4, 5, 7, 8]


def test_helpers_that_were_closed_are_started_again(helpers):
    for _ in range(2):
        assert helpers.run([lambda: 1] * 5) == [1] * 5
        helpers.close()
