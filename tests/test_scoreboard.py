"""The board that the torture tests write to."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests import scoreboard
from tests.scoreboard import FOLDER, NOTED, ROOT, Scores, main
from tests.scoreboard_lines import LINES, NOT_RUN, OTHERS
from tests.scoreboard_table import FULL, Figure, as_markdown, forms
from tests.scored_tests import collected, lines_in, unexplained, without_figure

pytest_plugins = ["pytester"]


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "board"))
    return tmp_path / "board"


def test_the_lines_are_numbered_from_one_without_a_gap():
    assert [one.number for one in LINES] == list(range(1, 24))


def test_figures_of_several_tests_are_added_up(board):
    Scores("a::first")(3, tried=10, bad=0, seed=7)
    Scores("a::second")(3, tried=20, bad=0, seed=8, seconds_per_cut=1.25)
    Scores("b::alone")(6, tried=5, bad=0)
    table = as_markdown(scoreboard.read(board)).splitlines()
    assert len(table) == 2 + len(LINES)
    assert "| 30 (short of 3,000) | 0 | seconds per cut 1.25 | 7, 8 |" in table[4]
    assert "| 5 | 0 |  | every one |" in table[7]
    assert "not run" in table[2]


def test_of_what_several_measured_amounts_are_added_up_and_the_worst_is_told(board):
    Scores("a::first")(5, tried=1, bad=0, seconds_in_all=2.0, states_per_second=7, p99_ms=3)
    Scores("a::second")(5, tried=1, bad=0, seconds_in_all=1.5, states_per_second=9, p99_ms=4)
    table = as_markdown(scoreboard.read(board))
    assert "seconds in all 3.5; states per second 7; p99 ms 4" in table


def test_many_seeds_stand_in_the_data(board):
    for seed in range(5):
        Scores(f"a::part[{seed}]")(15, tried=1_000_000, bad=0, seed=seed, seconds_in_all=2_000_000)
    row = as_markdown(scoreboard.read(board)).splitlines()[16]
    assert "| 5,000,000 (short of 10,000,000) | 0 | seconds in all 10,000,000 |" in row
    assert "| 5, in [scoreboard.json](scoreboard.json) |" in row


def test_bugs_that_were_chosen_from_all_do_not_count_twice(board):
    Scores("a::test_bugs_are_caught")(16, tried=30, bad=0, seed=7)
    assert "| 30 | 0 |  | 7 |" in as_markdown(scoreboard.read(board))
    Scores("a::test_every_bug_is_caught")(16, tried=87, bad=0)
    assert "| 87 | 0 |  | every one |" in as_markdown(scoreboard.read(board))


def test_a_test_that_ran_again_counts_once(board):
    for _ in range(2):
        Scores("a::first")(3, tried=10, bad=0, seed=7)
    [figure] = scoreboard.read(board)
    assert figure.tried == 10


def test_what_went_wrong_fails_the_test_and_is_on_the_board(board):
    with pytest.raises(AssertionError, match="2 acknowledged records lost of 10 kills; seed 7"):
        Scores("a::first")(1, tried=10, bad=2, seed=7)
    done = subprocess.run(
        [sys.executable, "-m", "tests.scoreboard", board],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "1 of 23 lines were run; 2 violations." in done.stdout
    assert f"{board}/scoreboard.json" in done.stdout
    [told] = json.loads((board / "scoreboard.json").read_text())
    assert (told["number"], told["bad"], told["seed"]) == (1, 2, "7")
    assert (board / "scoreboard.md").read_text().splitlines()[2] in done.stdout


def test_the_amounts_of_a_full_run_are_scaled(monkeypatch):
    monkeypatch.delenv(scoreboard.SCALE, raising=False)
    assert (scoreboard.short_amount(3), scoreboard.amount(3)) == (30, 3_000)
    monkeypatch.setenv(scoreboard.SCALE, "0.01")
    assert (scoreboard.short_amount(3), scoreboard.amount(3)) == (30, 30)
    with pytest.raises(ValueError, match="every one"):
        scoreboard.amount(6)


def test_nothing_tried_is_no_success(board):
    with pytest.raises(AssertionError, match="no power cuts were tried"):
        Scores("a::first")(3, tried=0, bad=0)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    Scores("a::first")(3, tried=1, bad=0)
    assert not list(tmp_path.iterdir())


# The day, the commit and the seed


def test_a_figure_says_when_and_on_which_commit(board):
    Scores("a::first", FULL)(3, tried=3_000, bad=0, seed=7)
    [figure] = scoreboard.read(board)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", figure.when)
    assert figure.commit == scoreboard.commit() != ""
    assert re.fullmatch(r"[0-9a-f]{9,}( with changes)?", figure.commit)
    row = as_markdown([figure, Figure(3, "b::old", 1, 0, "8")]).splitlines()[4]
    assert f"| 7, 8 | before 2026-11-18; {figure.when} at {figure.commit} |" in row


def test_the_seed_that_was_chosen_is_the_one_that_stands_there(board):
    """A part of a run adds its number to the seed, and would add it again."""
    NOTED["a::part[3]"].seed = 70
    Scores("a::part[3]")(4, tried=1, bad=0, seed=70 + 3)
    Scores("a::all")(4, tried=1, bad=0, seed="every one")
    assert [one.seed for one in scoreboard.read(board)] == ["70", "every one"]


# Tests that fail or are skipped

PROGRAM = """
import pytest
from tests.scoreboard import NOTED

def tell(scored):
    scored(3, tried=5, bad=0)

@pytest.mark.torture
def test_good(scored):
    tell(scored)

def test_fails_before(request, scored):
    NOTED[request.node.nodeid].seed = 7
    assert not scored
    tell(scored)

def test_fails_after(scored):
    scored(4, tried=5, bad=0)
    raise ValueError

def test_told(scored):
    scored(5, tried=5, bad=2)

@pytest.mark.torture
def test_is_left_out(scored):
    pytest.skip("no such disk")
    scored(6, tried=1, bad=0)

def test_has_nothing_to_tell():
    raise ValueError
"""


@pytest.fixture
def ended(board, pytester):
    pytester.makeconftest("from tests.conftest import pytest_configure, scored")
    pytester.makeini("[pytest]\nmarkers = torture")
    pytester.makepyfile(test_it=PROGRAM)
    around = {FOLDER: str(board), "PYTHONPATH": str(ROOT), "PENSTOCK_SCALE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    subprocess.run(command, cwd=pytester.path, env={**os.environ, **around}, check=False)
    return {one.test.partition("::")[2]: one for one in scoreboard.read(board)}


def test_what_failed_or_was_skipped_is_on_the_board(ended):
    told = {
        name: (one.number, one.tried, one.bad, one.seed, one.form) for name, one in ended.items()
    }
    assert told == {
        "test_good": (3, 5, 0, "every one", "full"),
        "test_fails_before": (3, 1, 1, "7", "short"),
        "test_fails_after": (4, 1, 1, "every one", "short"),
        "test_told": (5, 5, 2, "every one", "short"),
        "test_is_left_out": (6, 0, 0, "", "full"),
    }
    table = as_markdown(ended.values()).splitlines()
    assert "| 6 (short of 3,000) | 1 |" in table[4]
    assert "| 1 skipped: no such disk |" in table[7]
    assert scoreboard.refusals(ended.values()) == [
        "test_it.py::test_fails_after failed",
        "test_it.py::test_fails_before failed",
        "test_it.py::test_is_left_out was skipped: no such disk",
        "test_it.py::test_told failed",
    ]


@pytest.mark.parametrize("form", ["short", "full", "0.01 of full"])
def test_the_page_is_not_written_where_something_failed_or_is_not_whole(
    board, monkeypatch, capsys, form
):
    written: list[Figure] = []
    monkeypatch.setattr(scoreboard, "write_page", written.extend)
    monkeypatch.setattr(scoreboard, "kept", list)
    Scores("a::first", form)(3, tried=1, bad=0)
    assert main([str(board), "--page"]) == int(form == "0.01 of full")
    assert len(written) == int(form != "0.01 of full")
    Scores("a::second", form).skipped([3], "no such disk")
    assert main([str(board), "--page"]) == int(form != "short")
    assert "1 of 23 lines were run; 0 violations; 1 tests were skipped." in capsys.readouterr().out
    Scores("a::third", form).failed([3])
    assert main([str(board), "--page"]) == 1
    assert "The page stays as it was:" in capsys.readouterr().out
    assert {one.test for one in written} <= {"a::first"}


def test_the_lines_of_a_test_are_read_from_its_source():
    folder = ROOT / "tests"
    assert lines_in(folder / "log/test_whole_log.py", "tell_flips") == {6, 7}
    assert lines_in(folder / "crash/test_kill.py", "kill") == {1}


# The page


def test_the_page_shows_the_figures_that_are_kept_beside_it():
    page, figures = scoreboard.PAGE.read_text(), scoreboard.kept()
    assert scoreboard.on_page(page, figures) == page
    assert sum(one.is_failed for one in figures) == 0
    assert not any(one.skipped for one in figures)


def test_the_long_tests_without_a_figure_are_named_with_the_reason():
    tests = collected()
    assert {one.test for one in tests if not one.lines} == set(), "tests that tell unknown lines"
    assert {number for one in tests for number in one.lines} == {one.number for one in LINES}
    gone = {one.test for one in scoreboard.kept()} - {one.test for one in tests}
    assert gone == set(), "figures of tests that are no more: python -m tests.scored_tests --page"
    missing = without_figure(tests)
    assert list(unexplained(missing)) == [], "run them, or say in NOT_RUN why not"
    run = [name for name in NOT_RUN if not any(one.startswith(name) for one in missing)]
    assert run == [], (
        "they have figures now: out of NOT_RUN, then python -m tests.scored_tests --page"
    )


def test_each_line_has_what_others_did():
    assert list(OTHERS) == [one.number for one in LINES]


def test_the_page_says_which_lines_are_from_their_full_forms():
    amounts = {one.number: one.full or 1 for one in LINES}
    full = [Figure(number, "a", many, 0, form=FULL) for number, many in amounts.items()]
    assert forms(full, {}).startswith("Each line has figures of its full form.\n")
    few = [one for one in full if one.number != 4]
    few[0] = Figure(1, "a", 5, 0, form=FULL)
    told = forms(few, {"a::b": "no time"})
    assert "full form, but for 4; lines that tried less than a full run is to try: 1, 4." in told
    assert "- `a::b`: no time" in told


def test_a_table_is_put_between_the_marks_of_a_page():
    page = f"a\n{scoreboard.BEGIN}\nold\n{scoreboard.END}\nb\n"
    once = scoreboard.on_page(page, [])
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert "old" not in once
    assert scoreboard.on_page(once, []) == once
