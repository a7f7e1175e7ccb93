"""The pages on scaling and on Spark in a real browser, on a program that scales."""

import pytest

from tests.dashboard.browsing import chromium, dashboard_of

pytest.importorskip("pyspark", reason="the figures of a pipeline need pyspark")
PATIENCE_MS = 60_000


@pytest.fixture
def tab(tmp_path):
    """A tab on a program of its own."""
    program = dashboard_of("tests/dashboard/scaling_shop.py", str(tmp_path))
    with program as (url, _), chromium() as browser:
        context = browser.new_context(base_url=url)
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()


def test_decisions_and_queries_are_shown(tab):
    tab.goto("/scaling")
    run = tab.locator("tbody tr", has_text="billing").first
    run.wait_for()
    # It is shown as soon as it is made, and done later.
    decision = tab.locator("tbody tr", has_text="add partitions").filter(has_text="done").first
    told = decision.inner_text()
    assert "orders" in told
    assert " to " in told
    tab.goto("/queries")
    good = tab.locator("tbody tr", has_text="totals")
    good.wait_for()
    cells = good.inner_text()
    for text in ("running", "2,000/s", "41", "1.6 s", "900", "310", "12 s behind"):
        assert text in cells, (text, cells)
    assert "failed: the table is gone" in tab.locator("tbody tr", has_text="lost").inner_text()
