"""The test of the tests: bugs that are put into a copy of the source are caught."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.crash.rigs import seed_of
from tests.mutants.bugs import BUGS
from tests.mutants.catching import NO_BUG, RIG, copied_source, put_in, run
from tests.scoreboard import short_amount

SECONDS_MAX = 600.0
FULL_SECONDS_MAX = 7_200.0


def test_every_bug_can_be_put_in():
    """The source changes; a bug whose text is gone would be caught by nothing and nobody would know."""
    problems = [problem for bug in BUGS if (problem := bug.problem())]
    assert not problems, "\n".join(problems)


def test_there_are_enough_bugs_and_each_has_its_name():
    assert len(BUGS) >= short_amount(16)
    assert Counter(bug.name for bug in BUGS).most_common(1)[0][1] == 1
    areas = {bug.area for bug in BUGS}
    assert areas >= {"log", "stores", "bus", "resilience", "pressure", "scaling", "transports"}
    assert areas >= {"streaming", "spark"}


def test_no_bug_is_taken_for_another():
    """Python knows what it compiled by the second and the size of the source; these two have one size."""
    closes, opens = (bug for bug in BUGS if bug.file == "resilience/breaker.py")
    seen = set()
    with copied_source() as copy:
        before = closes.path_in(copy).stat().st_mtime
        for bug in (closes, opens, closes):
            with put_in(copy, bug):
                status = bug.path_in(copy).stat()
            seen.add((int(status.st_mtime), status.st_size))
        assert closes.path_in(copy).stat().st_mtime == before
        assert closes.problem(copy) is None
    assert len({size for _, size in seen}) == 1
    assert len(seen) == 3


def missed_of(names: list[str], seconds: float) -> int:
    """How many of these bugs no test catches. Without any bug all their tests pass."""
    first, *verdicts = run([NO_BUG, *names], seconds)
    assert first.code == 0, f"a test fails without any bug:\n{first.output}"
    missed = [one for one in verdicts if not one.caught]
    for one in missed:
        print(f"{one.name}: pytest ended with {one.code}\n{one.output}")
    assert len(verdicts) == len(names)
    return len(missed)


@pytest.mark.timeout(SECONDS_MAX)
def test_bugs_are_caught(request, scored):
    """Other ones each day."""
    seed = seed_of(request)
    names = Random(seed).sample([bug.name for bug in BUGS], short_amount(16))
    scored(16, tried=len(names), bad=missed_of(names, SECONDS_MAX), seed=seed)


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS_MAX)
def test_every_bug_is_caught(scored):
    names = [bug.name for bug in BUGS]
    scored(16, tried=len(names), bad=missed_of(names, FULL_SECONDS_MAX))


@pytest.mark.timeout(SECONDS_MAX)
def test_the_rig_tells_a_miss():
    """A change that nobody can see is no catch; nor is a test that could not be run."""
    unseen, untested = run([one.name for one in RIG], SECONDS_MAX)
    assert (unseen.code, unseen.caught) == (0, False)
    assert untested.code not in (0, 1)
    assert not untested.caught
