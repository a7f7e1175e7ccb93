"""Pieces that pages are made of. What comes from outside is set as text, never as HTML."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from penstock import errors
from penstock.dashboard.figures import BAD, GOOD, NOTICE, Finding
from penstock.observe import GroupActivity

logger = logging.getLogger("penstock.dashboard")

ICONS = {GOOD: "check_circle", NOTICE: "info", BAD: "error"}
MOODS = {
    GroupActivity.IDLE: "",
    GroupActivity.RUNNING: GOOD,
    GroupActivity.PAUSED: NOTICE,
    GroupActivity.STALLED: BAD,
}
ROWS_PAGE = 25


def text(tag: str, words: str = "", classes: str = "") -> TextElement:
    """An element of HTML with text in it."""
    return TextElement(tag=tag, text=words).classes(classes)


def heading(words: str, level: int = 2) -> TextElement:
    """A heading."""
    return text(f"h{level}", words)


def attribute(element: ui.element, name: str, value: str) -> None:
    """Set an attribute to something that is not known beforehand."""
    element.props[name] = value
    element.update()


@contextmanager
def card(title: str = "", classes: str = "") -> Iterator[ui.element]:
    """A box with a heading."""
    with ui.element("section").classes(f"ps-card {classes}") as made:
        if title:
            heading(title)
        yield made


@contextmanager
def row(classes: str = "") -> Iterator[ui.element]:
    """Things beside each other, that wrap."""
    with ui.element("div").classes(f"ps-row {classes}") as made:
        yield made


class Tiles:
    """A few large numbers with their names."""

    def __init__(self, *names: str) -> None:
        self._tiles: dict[str, tuple[ui.element, TextElement]] = {}
        with ui.element("dl").classes("ps-tiles").style(f"--ps-tiles: {len(names)}"):
            for name in names:
                with ui.element("div").classes("ps-tile") as tile:
                    text("dt", name)
                    self._tiles[name] = (tile, text("dd", "–"))

    def set(self, name: str, words: str, mood: str = "") -> None:
        """Change a number."""
        tile, number = self._tiles[name]
        number.set_text(words)
        if tile.props.get("data-mood", "") != mood:
            attribute(tile, "data-mood", mood)


class Meter:
    """A bar that is more or less full, with its value for screen readers."""

    def __init__(self, label: str) -> None:
        with ui.element("div").classes("ps-meter").props("role=meter") as self._bar:
            self._fill = ui.element("div").style("width: 0%")
        self._bar.props["aria-label"] = label
        self._bar.props.update({"aria-valuemin": "0", "aria-valuemax": "100"})

    def set(self, share: float, words: str, mood: str) -> None:
        """How full, in words too."""
        percent = f"{min(1.0, max(0.0, share)) * 100:.0f}"
        self._bar.props.update(
            {"aria-valuenow": percent, "aria-valuetext": words, "data-mood": mood}
        )
        self._bar.update()
        self._fill.style(f"width: {percent}%")


def badge(words: str, mood: str = "") -> TextElement:
    """A state."""
    made = text("span", words, "ps-badge")
    made.props["data-mood"] = mood
    return made


def facts(pairs: Mapping[str, str]) -> None:
    """Names and values, one below the other; those without a value are left out."""
    with ui.element("dl").classes("ps-facts"):
        for name, value in pairs.items():
            if value:
                text("dt", name)
                text("dd", value)


def pre(words: str, label: str) -> TextElement:
    """Text as it is, that can be scrolled by keyboard too."""
    made = text("pre", words, "ps-pre").props("tabindex=0 role=region")
    made.props["aria-label"] = label
    return made


def finding(one: Finding) -> TextElement:
    """What holds things up; the element with the detail, which changes from look to look."""
    with ui.element("div").classes("ps-finding") as box:
        box.props["data-mood"] = one.mood
        ui.icon(ICONS[one.mood])
        with ui.element("div"):
            if one.path is None:
                text("b", one.title)
            else:
                ui.link(one.title, one.path)
            return text("div", one.detail)


def show_silent(sources: Mapping[str, str]) -> None:
    """Which sources do not answer, and why."""
    for name, why in sources.items():
        with card():
            finding(Finding(BAD, f"{name} does not answer", why))


def tell_silent(sources: Mapping[str, str]) -> None:
    """As :func:`show_silent`, on a page that goes on asking."""
    for name, why in sources.items():
        tell(f"{name} does not answer: {why}", bad=True)


def empty(title: str, advice: str, code: str = "", icon: str = "inbox") -> ui.element:
    """What is said when there is nothing: what to do next."""
    with ui.element("div").classes("ps-empty") as made:
        ui.icon(icon)
        text("b", title)
        text("div", advice)
        if code:
            text("code", code)
    return made


def button(
    words: str, on_click: Callable[..., Any] | None = None, kind: str = "plain"
) -> ui.button:
    """A button: plain, main-action or danger."""
    made = ui.button(words, on_click=on_click, color=None).props("unelevated no-caps")
    return made.classes(f"ps-{kind}")


def field(label: str, value: str = "", hint: str = "") -> ui.input:
    """A line of text that somebody may type."""
    made = ui.input(label, value=value).props("outlined dense")
    if hint:
        made.props["placeholder"] = hint
        made.props["stack-label"] = True
    return made


def choice(label: str, options: Mapping[str, str], value: str) -> ui.select:
    """One of some."""
    return ui.select(dict(options), label=label, value=value).props("outlined dense options-dense")


# Tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. A cell shows ``row[name]``, or ``row[shown]`` where that is given."""

    name: str
    label: str
    number: bool = False
    shown: str = ""
    link: str = ""
    """The name of the row's value that has the address."""
    mood: str = ""
    """The name of the row's value that has the colour."""
    classes: str = ""

    def definition(self) -> dict[str, Any]:
        """As the framework has it."""
        return {
            "name": self.name,
            "label": self.label,
            "field": self.name,
            "align": "right" if self.number else "left",
            "sortable": True,
            "classes": self.classes,
            "shown": self.shown or self.name,
            "link": self.link,
            "mood": self.mood,
        }


# Vue puts the values in as text: what is in a record stays text.
CELL = """
<q-td :props="props" :data-label="props.col.label" :data-cell="props.row.id + '/' + props.col.name">
  <a v-if="props.col.link && props.row[props.col.link]" :href="props.row[props.col.link]"
    >{{ props.row[props.col.shown] }}</a>
  <span v-else-if="props.col.mood" class="ps-badge" :data-mood="props.row[props.col.mood]"
    >{{ props.row[props.col.shown] }}</span>
  <span v-else>{{ props.row[props.col.shown] }}</span>
</q-td>
"""
ACTION_CELL = """
<q-td :props="props" auto-width :data-cell="props.row.id + '/act'">
  <q-btn flat dense no-caps color="primary" :label="props.col.action"
    :aria-label="props.col.action + ' ' + props.row[props.col.about]"
    @click="$parent.$emit('act', props.row.id)" />
</q-td>
"""
HEAD = """
<q-th :props="props" scope="col" tabindex="0" @keydown.enter="props.sort(props.col)"
  :data-cell="'head/' + props.col.name">
  {{ props.col.label }}
</q-th>
"""

TICK_ALL = """
<q-checkbox v-model="props.selected" aria-label="Tick all" data-cell="head/tick" />
"""
TICK = """
<q-checkbox v-model="props.selected" :aria-label="'Tick ' + props.row[props.cols[0].name]"
  :data-cell="props.row.id + '/tick'" />
"""


class Table:
    """Rows with an ``id``; says what to do when there are none. Changed rows are sent alone as a whole."""

    def __init__(
        self,
        label: str,
        columns: Sequence[Column],
        nothing: Callable[[], ui.element],
        *,
        action: tuple[str, str, Callable[[str], Any]] | None = None,
        selection: bool = False,
        rows_page: int = ROWS_PAGE,
    ) -> None:
        self._rows_page = rows_page
        defined = [one.definition() for one in columns]
        if action is not None:
            name, about, _ = action
            defined.append(
                {"name": "act", "label": "", "field": "id", "action": name, "about": about}
            )
        self.table = ui.table(
            rows=[],
            columns=defined,
            row_key="id",
            selection="multiple" if selection else None,
            pagination=rows_page,
        ).classes("ps-table")
        self.table.props["table-aria-label"] = label
        self.table.props.update({"aria-label": label, "flat": True, "hide-no-data": True})
        self.table.add_slot("body-cell", CELL)
        self.table.add_slot("header-cell", HEAD)
        if selection:
            self.table.add_slot("header-selection", TICK_ALL)
            self.table.add_slot("body-selection", TICK)
        if action is not None:
            self.table.add_slot("body-cell-act", ACTION_CELL)
            self.table.add_slot(
                "header-cell-act", "<q-th auto-width><span class='ps-hidden'>Actions</span></q-th>"
            )
            handler = action[2]
            self.table.on("act", lambda event: handler(event.args))
        self._nothing = nothing()
        self._rows: list[dict[str, Any]] | None = None
        self.hide()

    def set(self, rows: list[dict[str, Any]]) -> None:
        """Show these rows."""
        if rows == self._rows:
            return
        self._rows = rows
        self.table.rows = rows
        self.table.props["hide-pagination"] = len(rows) <= self._rows_page
        self.table.update()
        self.table.set_visibility(bool(rows))
        self._nothing.set_visibility(not rows)

    def hide(self) -> None:
        """Show neither rows nor what is said when there are none, until rows are set."""
        self._rows = None
        self.table.set_visibility(False)
        self._nothing.set_visibility(False)

    @property
    def chosen(self) -> list[str]:
        """The ids of the rows that are ticked and still there."""
        there = {one["id"] for one in self._rows or ()}
        return [one["id"] for one in self.table.selected if one["id"] in there]

    def choose(self, *, every: bool) -> None:
        """Tick all rows, or none."""
        self.table.selected = list(self._rows or ()) if every else []
        self.table.update()


# Asking and telling


async def confirm(
    title: str, what: str, yes: str, details: Sequence[str] = (), kind: str = "danger"
) -> bool:
    """Ask before something is done that cannot be undone. Escape means no."""
    with ui.dialog() as dialog, ui.card().classes("ps-ask"):
        heading(title)
        ui.label(what)
        if details:
            pre("\n".join(details), "Details")
        with row():
            button("Cancel", lambda: dialog.submit(False)).props("autofocus")
            ui.element("div").classes("ps-space")
            button(yes, lambda: dialog.submit(True), kind)
    dialog.props["aria-label"] = title
    answer = await dialog
    dialog.clear()
    dialog.delete()
    return bool(answer)


def tell(words: str, *, bad: bool = False) -> None:
    """Say what came of something."""
    ui.notify(
        words,
        type="negative" if bad else "positive",
        position="bottom",
        multi_line=True,
        timeout=6_000,
    )


def careful(work: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a handler tell what went wrong, in words."""

    @wraps(work)
    async def run(*args: Any, **kwargs: Any) -> None:
        try:
            await work(*args, **kwargs)
        except errors.PenstockError as error:
            tell(str(error), bad=True)
        except Exception as error:
            logger.exception("the dashboard failed")
            tell(f"This did not work: {type(error).__name__}: {error}", bad=True)

    return run
