"""``penstock config``, ``doctor``, ``bench``, ``dashboard``, and what stands before the verbs."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from penstock.cli import checks, main
from penstock.cli.checks import Check, Health, check_clock
from penstock.cli.codes import PROBLEMS
from penstock.testing import VirtualClock
from tests.cli.terminal import Terminal

ROOT = Path(__file__).parents[2]

# Settings


def test_settings_are_shown_with_their_origin_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", "hush-token")
    monkeypatch.setenv("PENSTOCK_URLL", "x")
    Path("penstock.toml").write_text("name = 'shop'\n")
    terminal = Terminal(tmp_path, "nats://me:hush-password@host")
    shown = terminal("config", "show")
    assert "hush" not in shown.text + shown.errors
    assert re.search(r"url +nats://me:\*+@host +command line", shown.text)
    assert re.search(r"name +shop +penstock.toml", shown.text)
    assert "PENSTOCK_URLL is in the environment, but is no setting" in shown.errors
    found = {one["name"]: one for one in terminal("config", "show", "-o", "json").json}
    assert found["dashboard.token"]["origin"] == "environment, PENSTOCK_DASHBOARD_TOKEN"
    assert found["connect_seconds"] == {
        "name": "connect_seconds",
        "value": 10.0,
        "origin": "default",
    }


def test_the_url_comes_from_where_it_stands(penstock, tmp_path, monkeypatch):
    penstock("produce", "orders", "--create", "-q", "x")
    Path("penstock.toml").write_text(f"url = '{penstock.url}'\n")
    Path("other.toml").write_text("url = 'log:./other'\n")

    def run(*words: str) -> int:
        return main(list(words))

    assert run("topic", "list") == 0
    assert run("--config", "other.toml", "topic", "list") == 2
    assert run("topic", "list", "--url", penstock.url) == 0
    monkeypatch.setenv("PENSTOCK_URL", "log:./wrong")
    assert run("topic", "list") == 2, "the environment comes before the file"
    assert run("--url", penstock.url, "topic", "list") == 0


def test_a_wrong_key_is_told_with_the_right_ones(penstock):
    Path("penstock.toml").write_text("urll = 'x'\n")
    told = penstock("topic", "list", code=2).errors
    assert "penstock.toml: there is no setting urll (did you mean url?); there are" in told


def test_without_the_extra_for_files_the_url_is_enough(penstock, monkeypatch):
    penstock("topic", "create", "orders")
    for name in ("penstock.config.settings", "penstock.config.origins", "pydantic_settings"):
        monkeypatch.setitem(sys.modules, name, None)
    assert penstock("topic", "list", "-o", "json").json[0]["topic"] == "orders"
    Path("penstock.toml").write_text("")
    assert "penstock.toml is not read" in penstock("topic", "list").errors
    assert "pip install 'penstock[config]'" in penstock("config", "show", code=2).errors


# The doctor


def test_a_healthy_log(penstock):
    penstock("topic", "create", "orders")
    found = {one["what"]: one for one in penstock("doctor", "-o", "json", code=None).json}
    assert {"python", "extras", "java", "clock", "permissions", "disk space", "fsync", "log"} <= (
        found.keys()
    )
    assert found["log"]["health"] == "ok"
    assert found["groups"] == {
        "what": "groups",
        "health": "ok",
        "detail": "none is stalled or late",
    }
    assert re.fullmatch(r"[\d.]+ ms for a sync.*", found["fsync"]["detail"])
    assert (
        "pip install 'penstock[NAME]'" in found["extras"]["detail"]
        or found["extras"]["health"] == "ok"
    )
    left = [path.name for path in (penstock.folder / "data").iterdir()]
    assert [name for name in left if "doctor" in name] == []


def test_the_doctor_knows_the_extras_of_the_project():
    """Those that only gather others, such as ``all``, say nothing of their own."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = {
        name: {one.name for one in map(Requirement, lines)}
        for name, lines in listed.items()
        if not all(Requirement(line).name == "penstock" for line in lines)
    }
    assert checks.extras_of(metadata.requires("penstock") or ()) == wanted


def test_an_extra_is_there_when_all_its_packages_are(monkeypatch):
    needed = ["msgspec>=0.20", "msgspec; extra == 'one'", "no.such-thing>=2; extra == 'two'"]
    needed += ["msgspec; extra == 'two'", "numpy<9; python_version > '3' and extra == \"three\""]
    monkeypatch.setattr(checks, "requires", lambda _: needed)
    told = "installed: one, three; not installed: two (pip install 'penstock[NAME]')"
    assert checks._extras() == Check("extras", Health.NOTE, told)


def test_an_extra_that_gathers_others_is_not_listed():
    needed = ["a; extra == 'one'", "b; extra == 'two'", "a; extra == 'all'", "b; extra == 'all'"]
    assert checks.extras_of(needed) == {"one": {"a"}, "two": {"b"}}


def test_without_an_installation_the_extras_are_not_known(monkeypatch):
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checks, "requires", missing)
    told = "not known, as penstock is not installed"
    assert checks._extras() == Check("extras", Health.NOTE, told)


def test_no_log_yet_is_a_note(penstock):
    found = {one["what"]: one for one in penstock("doctor", "-o", "json", code=None).json}
    assert found["log"]["health"] == "note"
    assert not (penstock.folder / "data").exists()


def test_a_broker_that_is_silent_is_bad(tmp_path):
    pytest.importorskip("nats", reason="needs penstock[nats]")
    Path("penstock.toml").write_text("connect_seconds = 0.3\n")
    terminal = Terminal(tmp_path, "nats://me:hush@127.0.0.1:1")
    done = terminal("doctor", code=PROBLEMS)
    assert re.search(r"bad +broker +", done.text), done.text
    assert "hush" not in done.text
    assert terminal("topic", "list", code=5).errors.startswith("penstock: ")


def test_wrong_settings_are_bad(penstock):
    Path("penstock.toml").write_text("urll = 'x'\n")
    assert "no setting urll" in penstock("doctor", code=PROBLEMS).text


def test_a_stalled_group_is_worth_a_warning(penstock):
    Path("penstock.toml").write_text("[thresholds]\nstalled_seconds = 0.001\n")
    penstock("produce", "orders", "--create", "-q", "a", "b")
    penstock("consume", "orders", "-g", "billing", "-n", "1")
    found = {one["what"]: one for one in penstock("doctor", "-o", "json", code=None).json}
    assert found["groups"]["health"] == "warn"
    assert "billing stands still on orders/0 at offset 1" in found["groups"]["detail"]


def test_a_clock_that_is_wrong_is_seen():
    from penstock import System

    class Odd(VirtualClock):
        slept = 0

        def sleep(self, seconds: float) -> None:
            self.slept = 1

        def time_ms(self) -> int:
            return 1_770_000_000_000 + self.slept * 10_000

        def monotonic(self) -> float:
            return 5.0

    assert check_clock(System(clock=Odd())).health is Health.BAD
    assert check_clock(System()).health is Health.GOOD


# The benchmark


def test_a_benchmark_cleans_up_after_itself(penstock):
    found = penstock("bench", "-n", 3_000, "-s", 20, "-b", 500, "-p", 2, "-o", "json").json
    assert {name: one["records"] for name, one in found.items()} == {
        "produce": 3_000,
        "consume": 3_000,
    }
    assert all(one["records_per_second"] > 0 for one in found.values())
    assert penstock("topic", "list", "-o", "json").json == []
    assert penstock("bench", "-n", 10).lines[0].split()[0] == "records"


# The dashboard


def test_the_dashboard_is_served_with_the_settings(penstock, monkeypatch):
    served = []
    module = ModuleType("penstock.dashboard")
    module.serve = lambda url, **how: served.append((url, how))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock.dashboard", module)
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", "hush-token")
    penstock("dashboard", "--host", "0.0.0.0", "--port", "9000")
    assert served == [
        (penstock.url, {"host": "0.0.0.0", "port": 9_000, "token": "hush-token"}),
    ]


def test_without_the_extra_the_dashboard_names_it(penstock, monkeypatch):
    monkeypatch.setitem(sys.modules, "penstock.dashboard", None)
    assert "pip install 'penstock[dashboard]'" in penstock("dashboard", code=2).errors


# Before the verbs


def test_without_words_there_is_help(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("Usage: penstock")
    assert main(["topic", "--help"]) == 0
    assert "describe" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert main(["--version", "topic"]) == 0
    assert re.match(r"penstock \d", capsys.readouterr().out)


def test_what_goes_wrong_inside_is_told_and_traced_when_asked_for(penstock, monkeypatch, capsys):
    monkeypatch.setattr("penstock.cli.places.Place.check_there", lambda _: 1 / 0)
    assert main(["--url", penstock.url, "topic", "list"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("penstock: this should not happen: ZeroDivisionError")
    assert "Traceback" not in told
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert main(["--url", penstock.url, "topic", "list"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(penstock, monkeypatch, capsys):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.places.Place.check_there", interrupted)
    assert main(["--url", penstock.url, "topic", "list"]) == 130
    assert capsys.readouterr().err == "penstock: interrupted\n"
