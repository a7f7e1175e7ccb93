"""What every page has around it: the header, the list of pages, the clock, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nicegui import ui

from penstock.dashboard import focus, parts, texts
from penstock.dashboard.board import Board
from penstock.dashboard.site_state import current
from penstock.dashboard.style import CSS

PAGES = (
    ("/", "Overview", "speed"),
    ("/topics", "Topics", "topic"),
    ("/groups", "Groups", "group_work"),
    ("/dead-letters", "Dead letters", "markunread_mailbox"),
    ("/stalls", "Stalls", "pause_circle"),
    ("/breakers", "Breakers", "electrical_services"),
    ("/scaling", "Scaling", "auto_graph"),
    ("/queries", "Spark queries", "bolt"),
)
REFRESH_SECONDS = 1.0
THEME = "penstock_theme"
# The choice is kept by the browser; it is no secret.
KEEP_THEME = "document.cookie = 'penstock_theme={};path=/;max-age=31536000;samesite=strict'"


@contextmanager
def frame(title: str, path: str, sub: str = "") -> Iterator[Board]:
    """A page: ``path`` is the entry of the list that it belongs to."""
    board = current()
    ui.add_css(CSS)
    ui.add_head_html(focus.SCRIPT)
    ui.page_title(f"{title} · Penstock")
    ui.colors(primary="#0f766e", negative="#b42318", positive="#14653f")
    drawer = _drawer(path, board)
    _header(drawer, board)
    with ui.element("div").classes("ps-main") as main:
        with ui.element("div"):
            parts.heading(title, 1)
            if sub:
                parts.text("div", sub, "ps-sub")
        yield board
    ui.skip_link("Skip to the content", target=main)


def _header(drawer: ui.left_drawer, board: Board) -> None:
    with ui.header().classes("ps-header"):
        menu = ui.button(icon="menu", on_click=drawer.toggle, color=None).props("flat round dense")
        menu.props["aria-label"] = "Pages"
        menu.props["aria-controls"] = "ps-pages"
        ui.link("Penstock", "/").classes("ps-brand")
        ui.element("div").classes("ps-space")
        clock = parts.text("span", "", "ps-live")
        _theme()
        if board.locked:
            _log_out()

    def tick() -> None:
        latest = board.sampler.latest
        clock.set_text(f"{texts.time(latest.time_ms)[11:]} UTC" if latest.time_ms else "Starting")

    tick()
    ui.timer(REFRESH_SECONDS, tick)


def _theme() -> None:
    request = ui.context.client.request
    kept = request.cookies.get(THEME, "")
    mode = ui.dark_mode({"dark": True, "light": False}.get(kept))
    names = {None: "Theme: as the system", True: "Theme: dark", False: "Theme: light"}
    icons = {None: "brightness_auto", True: "dark_mode", False: "light_mode"}

    def show() -> None:
        made.props["aria-label"] = names[mode.value]
        made.set_icon(icons[mode.value])

    def turn() -> None:
        mode.value = {None: True, True: False, False: None}[mode.value]
        name = {None: "auto", True: "dark", False: "light"}[mode.value]
        ui.run_javascript(KEEP_THEME.format(name))
        show()

    made = ui.button(icon="brightness_auto", on_click=turn, color=None).props("flat round dense")
    show()


def _log_out() -> None:
    # A form, as a link would let any page log somebody out.
    with ui.element("form").props("method=post action=/logout").style("display: contents"):
        made = ui.button(icon="logout", color=None).props("flat round dense type=submit")
        made.props["aria-label"] = "Log out"


def _drawer(path: str, board: Board) -> ui.left_drawer:
    drawer = ui.left_drawer().props("width=220 breakpoint=1023 no-swipe-open")
    with drawer, ui.element("nav").classes("ps-nav").props("id=ps-pages aria-label=Pages"):
        links = {place: _link(place, name, icon) for place, name, icon in PAGES}
    if path in links:
        links[path].props["aria-current"] = "page"
    with links["/stalls"]:
        count = parts.badge("", "bad").classes("ps-count")

    def tick() -> None:
        stalls = len(board.sampler.latest.stalls)
        count.set_text(f"{stalls}")
        count.set_visibility(bool(stalls))

    tick()
    ui.timer(REFRESH_SECONDS, tick)
    return drawer


def _link(place: str, name: str, icon: str) -> ui.link:
    with ui.link(target=place) as link:
        ui.icon(icon)
        parts.text("span", name)
    return link


def live(board: Board, draw: Callable[[], None]) -> None:
    """Call something as soon as something was seen, and again whenever there is something new."""
    seen = board.sampler.samples
    if seen:
        draw()

    def tick() -> None:
        nonlocal seen
        if board.sampler.samples != seen:
            seen = board.sampler.samples
            draw()

    ui.timer(REFRESH_SECONDS, tick)
