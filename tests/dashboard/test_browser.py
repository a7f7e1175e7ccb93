"""The dashboard in a real browser, on a busy program. Screenshots are kept in build/screenshots."""

import re

import pytest

from tests.dashboard.browsing import ROOT, chromium, dashboard_of

SHOTS = ROOT / "build" / "screenshots"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
PATIENCE_MS = 60_000
# The address of each page, and what is there when it is drawn.
PAGES = {
    "overview": ("/", ".ps-finding"),
    "topics": ("/topics", "tbody a"),
    "topic": ("/topic?source=log&topic=orders", "tbody button"),
    "groups": ("/groups", "tbody a"),
    "group": ("/group?source=log&topic=orders&group=audit", "tbody td"),
    "dead-letters": ("/dead-letters", "tbody a"),
    "stalls": ("/stalls", ".ps-pre"),
    "breakers": ("/breakers", "tbody td"),
    "scaling": ("/scaling", ".ps-empty"),
    "queries": ("/queries", ".ps-empty"),
}
# What a screen reader would call each control; the empty ones are the mistakes.
NAMELESS = """() => {
  const name = one => (one.getAttribute('aria-label') || '').trim()
    || (one.getAttribute('aria-labelledby') || '').split(' ')
        .map(id => document.getElementById(id)?.textContent || '').join('').trim()
    || [...(one.labels || [])].map(label => label.textContent).join('').trim()
    || (one.closest('label')?.textContent || '').trim()
    || (['BUTTON', 'A'].includes(one.tagName) || one.getAttribute('role') ? one.textContent.trim() : '');
  const controls = 'a, button, input:not([type=hidden]), select, textarea, [role=button], '
    + '[role=checkbox], [role=switch], [role=meter], [role=img], [role=region], nav';
  return [...document.querySelectorAll(controls)]
    .filter(one => one.offsetParent !== null && !name(one))
    .map(one => one.outerHTML.slice(0, 160));
}"""
TWICE = """() => {
  const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
  return ids.filter((id, place) => ids.indexOf(id) !== place);
}"""
# A button whose words stand on more than two lines was squeezed.
SQUEEZED = """() => [...document.querySelectorAll('main button')]
  .filter(one => one.innerText.trim() && one.getBoundingClientRect().height > 60)
  .map(one => one.innerText)"""
TOO_WIDE = """() => [...document.querySelectorAll('main *, header *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth + 1;
}).map(one => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A program with traffic, in a process of its own."""
    directory = tmp_path_factory.mktemp("shop") / "log"
    with dashboard_of("tests/dashboard/shop.py", str(directory)) as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shared(browser, address):
    """One tab for all tests; what it complains about is a failure."""
    context = browser.new_context(viewport=WIDE, base_url=address, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(shared):
    complaints: list[str] = []

    def hear(message) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def note(error) -> None:
        complaints.append(str(error))

    shared.on("console", hear)
    shared.on("pageerror", note)
    shared.set_viewport_size(WIDE)
    shared.emulate_media(color_scheme="light")
    yield shared
    shared.remove_listener("console", hear)
    shared.remove_listener("pageerror", note)
    assert not complaints


def visit(tab, path: str) -> None:
    tab.goto(path)
    tab.locator("h1").wait_for()
    alive(tab)


def alive(tab) -> None:
    # The clock in the header moves by what comes over the socket: the page is alive.
    tab.wait_for_function("() => window.socket?.connected")


def keep(tab, name: str, *, whole: bool = True) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    if whole:
        tab.evaluate("() => scrollTo(0, 0)")
    tab.screenshot(path=SHOTS / f"{name}.png", full_page=whole, animations="disabled")


def tile(tab, name: str):
    return tab.locator(".ps-tile", has=tab.get_by_text(name, exact=True)).locator("dd")


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_whole_wide_and_narrow_light_and_dark(tab, name):
    path, drawn = PAGES[name]
    visit(tab, path)
    tab.locator(drawn).first.wait_for()
    assert tab.locator("h1").count() == 1
    assert tab.locator("main").count() == 1
    assert tab.locator("html").get_attribute("lang") == "en-US"
    assert tab.get_by_role("navigation", name="Pages").count() == 1
    assert tab.evaluate(NAMELESS) == []
    assert tab.evaluate(TWICE) == []
    assert not tab.evaluate("() => document.body.classList.contains('body--dark')")
    keep(tab, f"{name}-light")
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function("() => document.body.classList.contains('body--dark')")
    keep(tab, f"{name}-dark", whole=False)
    tab.emulate_media(color_scheme="light")
    tab.set_viewport_size(PHONE)
    # The list of pages moves out of the way first.
    tab.wait_for_function("() => document.querySelector('h1').getBoundingClientRect().left < 20")
    tab.wait_for_function("() => document.scrollingElement.scrollWidth <= 390")
    keep(tab, f"{name}-phone")
    assert tab.evaluate(TOO_WIDE) == []
    assert tab.evaluate(SQUEEZED) == []


def test_numbers_move_without_a_reload(tab):
    visit(tab, "/")
    first = tile(tab, "Lag in records").inner_text()
    tab.evaluate("() => { window.same = true }")
    moved = "([old]) => [...document.querySelectorAll('.ps-tile')].find("
    moved += (
        "one => one.innerText.startsWith('Lag in records')).innerText.split('\\n').pop() !== old"
    )
    tab.wait_for_function(moved, arg=[first])
    assert tab.evaluate("() => window.same"), "the page was not loaded again"
    # The first figures have no rate yet.
    rate = re.compile(r"^\s*[\d.,]+( k)?/s\s*$")
    tile(tab, "Events published").filter(has_text=rate).wait_for()


def test_a_stall_is_seen_with_its_cause_and_its_stack(tab):
    visit(tab, "/")
    tab.get_by_role("link", name="shipping on parcels stands still: handler running").click()
    tab.get_by_role("heading", name="Stalls", level=1).wait_for()
    card = tab.locator(".ps-card", has_text="shipping on parcels/0")
    assert "a handler runs for" in card.inner_text()
    stack = card.get_by_role("region", name="Where it waits, outermost first").inner_text()
    assert "ask_the_courier: await self.stuck.wait()" in stack
    tab.locator(".ps-card", has_text="bank on refunds/0").get_by_text("circuit open").wait_for()


def test_a_dead_letter_is_filtered_inspected_edited_and_replayed(tab):
    visit(tab, "/dead-letters")
    tab.get_by_label("Key").fill("bad-1")
    tab.get_by_text("1 of 7 dead letters fit.").wait_for()
    tab.locator("tbody a").click()
    tab.get_by_text("a total of -2.0 cannot be billed").first.wait_for()
    assert "in bill" in tab.get_by_role("region", name="Traceback").inner_text()
    payload = tab.get_by_label("Payload", exact=True)
    payload.fill(payload.input_value().replace("-2.0", "2.0"))
    tab.get_by_role("button", name="Save the change").click()
    tab.get_by_role("heading", name="Payload as it failed").wait_for()
    keep(tab, "dead-letter-light")
    tab.get_by_role("button", name="Dry run").click()
    tab.get_by_role("dialog").get_by_text("1 of 1 would be replayed").wait_for()
    tab.keyboard.press("Escape")
    tab.get_by_role("dialog").wait_for(state="detached")
    tab.get_by_role("button", name="Replay").click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_text("This publishes 1 message again").wait_for()
    keep(tab, "replay-light", whole=False)
    dialog.get_by_role("button", name="Replay").click()
    tab.get_by_text("6 of 6 dead letters fit.").wait_for()


def test_purging_asks_first(tab):
    visit(tab, "/dead-letters")
    tab.get_by_label("Key").fill("bad-2")
    tab.get_by_text("1 of 6 dead letters fit.").wait_for()
    tab.get_by_role("button", name="Purge").click()
    tab.get_by_text("Tick the letters first.").wait_for()
    tab.get_by_role("button", name="Tick all").click()
    tab.get_by_role("button", name="Purge").click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_text("There is no way back").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    tab.get_by_text("1 of 6 dead letters fit.").wait_for()
    tab.get_by_role("button", name="Purge").click()
    tab.get_by_role("dialog").get_by_role("button", name="Purge").click()
    tab.get_by_text("0 of 5 dead letters fit.").wait_for()
    tab.get_by_text("No dead letter fits").wait_for()


def test_a_payload_is_never_markup(tab):
    visit(tab, "/topic?source=log&topic=orders")
    tab.get_by_label("Key").fill("markup")
    tab.keyboard.press("Enter")
    tab.get_by_text(re.compile(r"Done: looked at .* found 1\.")).wait_for()
    found = tab.locator(".ps-card", has=tab.get_by_role("heading", name="Search"))
    found.get_by_role("button", name="Show").click()
    shown = tab.get_by_role("dialog").get_by_role("region", name="Value").inner_text()
    assert "<script>document.title" in shown
    tab.keyboard.press("Escape")
    visit(tab, "/dead-letters")
    tab.get_by_label("Payload contains").fill("<img")
    tab.get_by_text("1 of 5 dead letters fit.").wait_for()
    tab.locator("tbody a").click()
    tab.get_by_label("Payload", exact=True).wait_for()
    assert tab.title() == "Dead letter · Penstock"
    assert tab.locator("img[src=x]").count() == 0


def test_a_group_is_moved_after_a_preview(tab):
    visit(tab, "/group?source=log&topic=orders&group=audit")
    tab.get_by_label("Go on from").click()
    tab.get_by_role("option", name="The end: pass all over").click()
    tab.get_by_role("button", name="Preview").click()
    tab.get_by_text("records are passed over.").wait_for()
    keep(tab, "seek-light", whole=False)
    tab.get_by_role("button", name="Seek", exact=True).click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_text("This moves audit on orders.").wait_for()
    dialog.get_by_role("button", name="Seek").click()
    tab.get_by_text("audit goes on from there.").wait_for()


def test_a_group_with_members_is_not_moved(tab):
    visit(tab, "/group?source=log&topic=orders&group=billing")
    tab.get_by_role("button", name="Preview").click()
    tab.get_by_role("button", name="Seek", exact=True).click()
    tab.get_by_role("dialog").get_by_role("button", name="Seek").click()
    tab.get_by_role("alert").get_by_text("billing").wait_for()


def test_the_keyboard_is_enough(tab):
    visit(tab, "/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("() => document.activeElement.innerText") == "Skip to the content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("() => document.activeElement.className") == "ps-main"
    links = tab.get_by_role("navigation", name="Pages").get_by_role("link")
    links.nth(1).focus()
    tab.keyboard.press("Tab")
    assert tab.evaluate("() => document.activeElement.innerText").strip().endswith("Groups")
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="Groups", level=1).wait_for()
    assert tab.locator("nav [aria-current=page]").inner_text().strip().endswith("Groups")
    alive(tab)
    header = tab.get_by_role("columnheader", name="Lag")
    header.focus()
    seen = tab.locator("header").inner_text()
    tab.wait_for_function("seen => document.querySelector('header').innerText != seen", arg=seen)
    # What comes every second does not take the place of the keyboard away.
    assert header.evaluate("one => one === document.activeElement")
    tab.keyboard.press("Enter")
    tab.locator("th.sorted", has_text="Lag").wait_for()


def test_the_theme_is_chosen_and_kept(tab):
    visit(tab, "/queries")
    tab.get_by_role("button", name="Theme: as the system").click()
    tab.wait_for_function("() => document.body.classList.contains('body--dark')")
    tab.get_by_role("button", name="Theme: dark").wait_for()
    visit(tab, "/scaling")
    tab.wait_for_function("() => document.body.classList.contains('body--dark')")
    tab.context.clear_cookies()


def test_the_pages_can_be_reached_on_a_phone(tab):
    tab.set_viewport_size(PHONE)
    visit(tab, "/")
    link = tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Topics")
    tab.get_by_role("button", name="Pages").click()
    link.click()
    tab.get_by_role("heading", name="Topics", level=1).wait_for()
