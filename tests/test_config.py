"""Settings: their order, their checks, and that no secret is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

from hypothesis import given
from hypothesis import strategies as some

from penstock.config import (
    Settings,
    load_settings,
    masked_url,
    settings_in_use,
    unknown_variables,
)
from penstock.config.masking import MASK
from penstock.errors import InvalidOption


@pytest.fixture(autouse=True)
def empty_world(tmp_path: Path, monkeypatch) -> Path:
    """A folder without files, a home without files, and no variables."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def origin_of(name: str, **given: str) -> str:
    return {one.name: one.origin for one in settings_in_use(None, **given)}[name]


def test_without_anything_there_are_defaults():
    settings = load_settings()
    assert (settings.url, settings.name, settings.connect_seconds) == ("log:./data", "bus", 10.0)
    assert (settings.dashboard.host, settings.dashboard.port) == ("127.0.0.1", 8_420)
    assert {one.origin for one in settings_in_use()} == {"default"}


def test_the_order_is_given_then_environment_then_project_then_user(empty_world, monkeypatch):
    write(empty_world / "home/penstock/config.toml", 'url = "log:./user"\nname = "user"\n')
    assert load_settings().url == "log:./user"
    write(Path("penstock.toml"), 'url = "log:./project"\n')
    assert load_settings().url == "log:./project"
    assert load_settings().name == "user", "what the stronger file leaves open"
    assert origin_of("url") == "penstock.toml"
    assert origin_of("name").endswith("home/penstock/config.toml")
    monkeypatch.setenv("PENSTOCK_URL", "log:./environment")
    assert load_settings().url == "log:./environment"
    assert origin_of("url") == "environment, PENSTOCK_URL"
    assert load_settings(url="log:./given").url == "log:./given"
    assert origin_of("url", url="log:./given") == "command line"


def test_tables_are_merged_value_by_value(empty_world, monkeypatch):
    write(empty_world / "home/penstock/config.toml", "[dashboard]\nport = 1\nhost = 'user'\n")
    write(Path("penstock.toml"), "[dashboard]\nport = 2\n")
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", "of the environment")
    dashboard = load_settings().dashboard
    assert (dashboard.host, dashboard.port) == ("user", 2)
    assert dashboard.token is not None
    assert dashboard.token.get_secret_value() == "of the environment"


def test_pyproject_counts_when_there_is_no_own_file():
    write(Path("pyproject.toml"), "[project]\nname = 'x'\n[tool.penstock]\nname = 'shop'\n")
    assert load_settings().name == "shop"
    assert origin_of("name") == "pyproject.toml [tool.penstock]"
    write(Path("penstock.toml"), "")
    assert load_settings().name == "bus", "the own file is in its place, not beside it"


def test_a_file_can_be_named(tmp_path):
    write(tmp_path / "other.toml", "name = 'other'\n")
    write(Path("penstock.toml"), "name = 'project'\n")
    assert load_settings(tmp_path / "other.toml").name == "other"
    assert load_settings().name == "project", "only that one call reads it"
    with pytest.raises(InvalidOption, match=r"there is no file .*gone\.toml"):
        load_settings(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("urll = 'log:./x'", r"no setting urll \(did you mean url\?\); there are .*url"),
        ("[dashboard]\nprot = 1", r"no setting dashboard\.prot \(did you mean dashboard\.port\?\)"),
        ("dashboard = 1", r"dashboard is a table: write \[dashboard\]"),
        ("[url]\nx = 1", "url is a value and no table"),
        ("url = ", "is no TOML"),
        (
            "connect_seconds = -1",
            r"connect_seconds \(PENSTOCK_CONNECT_SECONDS in the environment\)",
        ),
        ("connect_seconds = nan", "connect_seconds"),
        ("log_level = 'loud'", "log_level.*'WARNING'"),
        ("[dashboard]\nport = 70000", "dashboard.port"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(text, told):
    write(Path("penstock.toml"), text)
    with pytest.raises(InvalidOption, match=told):
        load_settings()


def test_a_file_that_is_no_text_is_told():
    Path("penstock.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidOption, match="is no TOML"):
        load_settings()


def test_a_file_that_is_too_large_is_refused():
    Path("penstock.toml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InvalidOption, match="more than 1048576 bytes"):
        load_settings()


def test_a_value_of_the_environment_that_is_wrong_is_told(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONNECT_SECONDS", "soon")
    with pytest.raises(InvalidOption, match="PENSTOCK_CONNECT_SECONDS"):
        load_settings()


def test_a_misspelled_variable_is_found(monkeypatch):
    monkeypatch.setenv("PENSTOCK_URLL", "x")
    monkeypatch.setenv("PENSTOCK_REDIS_PASSWORD", "x")
    assert unknown_variables() == ["PENSTOCK_URLL"]


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_CACHE",
        "PENSTOCK_DEBUG",
        "PENSTOCK_SEED",
        "PENSTOCK_SPEEDUPS",
        "PENSTOCK_EXAMPLE_FAST",
    ],
)
def test_a_variable_that_is_documented_is_not_told_as_unknown(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert unknown_variables() == []
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert name in page


@pytest.mark.parametrize("transport", ["KAFKA", "NATS", "PULSAR", "RABBITMQ", "REDIS", "PIGEON"])
def test_a_variable_of_a_transport_is_not_told_also_of_one_of_another_package(
    monkeypatch, transport
):
    monkeypatch.setenv(f"PENSTOCK_{transport}_PASSWORD", "x")
    assert unknown_variables() == []


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_CACHES",
        "PENSTOCK_CONNECT_SECOND",
        "PENSTOCK_CONECT_SECONDS",
        "PENSTOCK_DASHBOARD_PROT",
        "PENSTOCK_DASHBORD_PORT",
        "PENSTOCK_LOG_LEVLE",
        "PENSTOCK_STALLED_SECONDS",
        "PENSTOCK_TRESHOLD_LAG_RECORDS",
    ],
)
def test_a_misspelled_variable_is_found_though_others_have_variables_too(monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert unknown_variables() == [name]


def test_secrets_are_never_shown(monkeypatch):
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", "hush-token")
    monkeypatch.setenv("PENSTOCK_URL", "nats://me:hush-password@host")
    write(Path("penstock.toml"), "tier = 's3://key:hush-tier@host/bucket'\n")
    shown = [repr(load_settings()), str(load_settings()), str(settings_in_use())]
    assert not any("hush" in text for text in shown)
    assert {one.name: one.value for one in settings_in_use()}["url"] == f"nats://me:{MASK}@host"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://me:hush@h:4222,h2:4222?a=1", f"nats://me:{MASK}@h:4222,h2:4222?a=1"),
        ("redis://:hush@h/0", f"redis://:{MASK}@h/0"),
        ("nats://hush@h", f"nats://{MASK}@h"),
        ("kafka://h?sasl.password=hush&x=1", f"kafka://h?sasl.password={MASK}&x=1"),
        ("kafka://me:hu:sh@h", f"kafka://me:{MASK}@h"),
        ("postgresql://me:hu@sh@h/db", f"postgresql://me:{MASK}@h/db"),
        ("log:./data", "log:./data"),
        ("log:./a@b:c", "log:./a@b:c"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert masked_url(url) == shown


@given(some.text("abc:@/?#", max_size=6), some.from_regex(r"\A[A-Z]{8,12}\Z"))
def test_a_password_never_comes_through(user, password):
    name = "".join(letter for letter in user if letter.isalpha())
    assert password not in masked_url(f"redis://{name}:{password}@host:1/0?x=1")


def test_settings_are_a_value():
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.url = "x"


def test_without_the_extra_the_error_names_it():
    program = (
        "import sys; sys.modules['pydantic_settings'] = None\n"
        "from penstock.config import masked_url\n"
        "import penstock.config\n"
        "try:\n    penstock.config.load_settings\n"
        "except ImportError as missing:\n    print(missing)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'penstock[config]'" in done.stdout
