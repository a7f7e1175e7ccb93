"""What the README shows is what was measured."""

from benchmarks import headlines


def test_the_figures_of_the_readme_are_those_of_the_committed_results():
    """After a new measurement: python -m benchmarks.headlines."""
    page = headlines.README.read_text()
    assert headlines.on_page(page) == page


def test_what_stands_around_the_figures_stays():
    page = f"a\n{headlines.BEGIN}\nold\n{headlines.END}\nb\n"
    changed = headlines.on_page(page)
    assert changed.startswith("a\n")
    assert changed.endswith("\nb\n")
    assert "old" not in changed
    assert changed.count("\n| ") > len(headlines.HEADLINES)
