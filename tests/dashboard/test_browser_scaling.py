"""The pages on scaling and on Spark in a real browser, on a program that scales."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytest.importorskip(
    "nicegui", reason="the dashboard needs nicegui: pip install 'penstock[dashboard]'"
)
pytest.importorskip("pyspark", reason="the figures of a pipeline need pyspark")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
if CHROMIUM is None:
    pytest.skip("the browser tests need chromium", allow_module_level=True)

pytestmark = pytest.mark.timeout(180)
PATIENCE_MS = 40_000


@pytest.fixture
def tab(tmp_path):
    """A tab on a program of its own."""
    program = [sys.executable, str(Path(__file__).with_name("scaling_shop.py")), str(tmp_path)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), "the program did not start"
            with playwright.sync_playwright() as engine:
                browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                context = browser.new_context(base_url=url)
                context.set_default_timeout(PATIENCE_MS)
                yield context.new_page()
                browser.close()
        finally:
            process.kill()


def test_decisions_and_queries_are_shown(tab):
    tab.goto("/scaling")
    run = tab.locator("tbody tr", has_text="billing").first
    run.wait_for()
    decision = tab.locator("tbody tr", has_text="add partitions").first
    decision.wait_for()
    told = decision.inner_text()
    assert "orders" in told
    assert " to " in told
    assert "done" in told
    tab.goto("/queries")
    good = tab.locator("tbody tr", has_text="totals")
    good.wait_for()
    cells = good.inner_text()
    for text in ("running", "2,000/s", "41", "1.6 s", "900", "310", "12 s behind"):
        assert text in cells, (text, cells)
    assert "failed: the table is gone" in tab.locator("tbody tr", has_text="lost").inner_text()
