"""Markup in records, errors, handlers and names, on every page, in a real browser."""

from urllib.parse import quote

import pytest

from tests.dashboard.browsing import chromium, dashboard_of
from tests.security.corpus import MARKUP
from tests.security.hostile_broker import NAMES

PATIENCE_MS = 60_000
SIGNS = """() => [
  ...[...document.querySelectorAll('img')].filter(one => one.getAttribute('src') === 'x').map(_ => 'an image'),
  ...[...document.querySelectorAll('main script')].map(_ => 'a script'),
  ...(document.title === 'broken' ? ['the title'] : []),
  ...[...document.querySelectorAll('*')].filter(one => one.getAttributeNames().some(name => name.startsWith('on')))
    .map(one => 'a handler in ' + one.tagName),
]"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The address of a hostile program's dashboard, and the names of its parts."""
    folder = tmp_path_factory.mktemp("hostile") / "log"
    started = dashboard_of("-m", "tests.security.hostile_shop", str(folder))
    with started as (address, process):
        assert process.stdout is not None
        names: list[str] = []
        while (line := process.stdout.readline().rstrip("\n")) != ".":
            assert line, "the program did not start"
            names.append(line)
        yield address, names


@pytest.fixture
def tab(program):
    with chromium() as browser:
        context = browser.new_context(base_url=program[0])
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()


def visit(tab, path: str, drawn: str = "h1") -> None:
    tab.goto(path)
    tab.locator(drawn).first.wait_for()
    tab.wait_for_function("() => window.socket?.connected")


def pages(parts: list[str]) -> dict[str, str]:
    """The address of each page, and what is there when it is drawn."""
    found = {
        "/": ".ps-finding",
        "/topics": "tbody a",
        "/groups": "tbody a",
        "/dead-letters": "tbody a",
        "/stalls": ".ps-card",
        "/breakers": "tbody td",
        "/scaling": "h1",
        "/queries": "h1",
    }
    for part in parts:
        found[f"/topic?source={quote(part)}&topic=orders"] = "h1"
        found[f"/group?source={quote(part)}&topic=orders&group=billing"] = "h1"
    for name in NAMES:
        odd = quote(name, safe="")
        found[f"/topic?source=broker&topic={odd}"] = "h1"
        found[f"/group?source=broker&topic={odd}&group={odd}"] = "h1"
    harm = quote(MARKUP, safe="")
    found[f"/topic?source={harm}&topic={harm}"] = "h1"
    found[f"/dead-letter?shelf={harm}&letter={harm}"] = "h1"
    return found


def test_no_page_makes_markup_of_what_others_wrote(findings, program, tab):
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    for path, drawn in pages(program[1]).items():
        visit(tab, path, drawn)
        tab.wait_for_timeout(300)  # the page goes on drawing what comes over the socket
        findings.none([f"{path[:40]}: {one}" for one in tab.evaluate(SIGNS)], 4)
    for path in ("/topics", "/groups"):
        visit(tab, path, "tbody a")
        found = tab.get_by_text("<img src=x", exact=False).first
        found.wait_for()
        findings.check(found.count(), f"{path} does not show the names, so nothing was tried")
        odd = tab.evaluate("() => [...document.querySelectorAll('a')].map(one => one.href)")
        wrong = [one for one in odd if not one.startswith((program[0], "https://", "http://"))]
        findings.none([f"{path} has a link to {one[:60]}" for one in wrong], len(odd))
    visit(tab, "/dead-letters", "tbody a")
    tab.locator("tbody a").first.click()
    payload = tab.get_by_label("Payload", exact=True)
    payload.wait_for()
    findings.none([f"a dead letter: {one}" for one in tab.evaluate(SIGNS)], 4)
    findings.check(
        "<img src=x" in payload.input_value(),
        "the markup is not there as text, so nothing was tried",
    )
    foreign = [one for one in asked if not one.startswith((program[0], "data:", "blob:"))]
    findings.check(not foreign, f"it loads from elsewhere: {foreign[:3]}")


def test_the_browser_runs_no_script_that_was_put_into_a_page(findings, program, tab):
    """The last line of defence: even with markup in the page, its scripts and handlers do not run."""
    visit(tab, "/topics", "tbody a")
    tab.evaluate("() => { window.refused = []; document.addEventListener('securitypolicyviolation', "
                 "event => window.refused.push(event.effectiveDirective)) }")  # fmt: skip
    tab.evaluate(
        "markup => document.querySelector('main').insertAdjacentHTML('beforeend', markup)", MARKUP
    )
    tab.evaluate("() => { const made = document.createElement('script'); "
                 "made.textContent = \"document.title = 'broken'\"; document.body.append(made) }")  # fmt: skip
    tab.evaluate("() => { const made = document.createElement('script'); "
                 "made.src = 'https://evil.example/x.js'; document.body.append(made) }")  # fmt: skip
    tab.wait_for_function("() => window.refused.length >= 3")
    findings.check(tab.title() != "broken", "a script ran that was put into the page")
    refused = tab.evaluate("() => window.refused")
    for wanted in ("script-src-attr", "script-src-elem"):
        findings.check(wanted in refused, f"{wanted} was not refused: {refused}")


def test_another_page_can_neither_frame_it_nor_read_it(findings, program, tab, tmp_path):
    page = tmp_path / "evil.html"
    page.write_text(f"<iframe id=frame src='{program[0]}/topics'></iframe>")
    tab.goto(page.as_uri())
    tab.wait_for_timeout(1_500)
    framed = [one for one in tab.frames if one.url.startswith(program[0])]
    drawn = [one for one in framed if one.locator("h1").count()]
    findings.check(not drawn, "it is drawn in a frame of another page")
    read = tab.evaluate(
        "async url => { try { return (await fetch(url)).status } catch (_) { return 'refused' } }",
        f"{program[0]}/metrics",
    )
    findings.check(read == "refused", f"another page reads it: {read}")
