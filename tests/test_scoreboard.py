"""The board that the torture tests write to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import scoreboard
from tests.scoreboard import FOLDER, LINES, Scores

ROOT = Path(__file__).parents[1]


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "board"))
    return tmp_path / "board"


def test_the_lines_are_numbered_from_one_without_a_gap():
    assert [one.number for one in LINES] == list(range(1, 23))


def test_figures_of_several_tests_are_added_up(board):
    Scores("a::first")(3, tried=10, bad=0, seed=7)
    Scores("a::second")(3, tried=20, bad=0, seed=8, seconds_per_cut=1.25)
    Scores("b::alone")(6, tried=5, bad=0)
    table = scoreboard.as_markdown(scoreboard.read(board)).splitlines()
    assert len(table) == 2 + len(LINES)
    assert "| 30 | 0 | seconds per cut 1.25 | 7, 8 |" in table[4]
    assert "| 5 | 0 |  | every one |" in table[7]
    assert "not run" in table[2]


def test_of_what_several_measured_amounts_are_added_up_and_the_worst_is_told(board):
    Scores("a::first")(5, tried=1, bad=0, seconds_in_all=2.0, states_per_second=7, p99_ms=3)
    Scores("a::second")(5, tried=1, bad=0, seconds_in_all=1.5, states_per_second=9, p99_ms=4)
    table = scoreboard.as_markdown(scoreboard.read(board))
    assert "seconds in all 3.5; states per second 7; p99 ms 4" in table


def test_many_seeds_stand_in_the_data(board):
    for seed in range(5):
        Scores(f"a::part[{seed}]")(15, tried=1_000_000, bad=0, seed=seed, seconds_in_all=2_000_000)
    row = scoreboard.as_markdown(scoreboard.read(board)).splitlines()[16]
    assert "| 5,000,000 | 0 | seconds in all 10,000,000 |" in row
    assert "| 5, in [scoreboard.json](scoreboard.json) |" in row


def test_bugs_that_were_chosen_from_all_do_not_count_twice(board):
    Scores("a::test_bugs_are_caught")(16, tried=30, bad=0, seed=7)
    assert "| 30 | 0 |  | 7 |" in scoreboard.as_markdown(scoreboard.read(board))
    Scores("a::test_every_bug_is_caught")(16, tried=87, bad=0)
    assert "| 87 | 0 |  | every one |" in scoreboard.as_markdown(scoreboard.read(board))


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
    assert "1 of 22 lines were run; 2 violations." in done.stdout
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


def test_the_page_shows_the_figures_that_are_kept_beside_it():
    page, figures = scoreboard.PAGE.read_text(), scoreboard.kept()
    assert scoreboard.on_page(page, figures) == page
    assert sum(one.bad for one in figures if not one.peer) == 0


def test_a_table_is_put_between_the_marks_of_a_page():
    page = f"a\n{scoreboard.BEGIN}\nold\n{scoreboard.END}\nb\n"
    once = scoreboard.on_page(page, [])
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert "old" not in once
    assert scoreboard.on_page(once, []) == once
