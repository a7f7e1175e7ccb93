"""One log for the tests of a file that only look, one for each test that changes."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("typer", reason="the command line needs: pip install 'penstock[cli]'")
pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

from tests.cli.terminal import Terminal


@pytest.fixture(autouse=True)
def no_settings(tmp_path, monkeypatch) -> None:
    """Nothing of the machine's own settings counts."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def penstock(tmp_path) -> Terminal:
    """A command line on an empty log."""
    return Terminal(tmp_path, f"log:{tmp_path / 'data'}")
