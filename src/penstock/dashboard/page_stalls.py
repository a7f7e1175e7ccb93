"""What stands still, since when, why, and where in the code."""

from __future__ import annotations

from nicegui import ui

from penstock.dashboard import parts, texts
from penstock.dashboard.frame import frame, live
from penstock.observe import Stall

Place = tuple[str, str, str, int | None, str]


def build() -> None:
    """The page."""
    with frame("Stalls", "/stalls", "Groups that have something to do and do not go on") as board:
        box = ui.element("div").style("display: grid; gap: 16px")
        clocks: dict[Place, tuple[ui.label, ui.label]] = {}
        shown: list[tuple[Stall, ...]] = []

        def draw() -> None:
            stalls = board.sampler.latest.stalls
            if not shown or _same(shown[-1]) != _same(stalls):
                box.clear()
                clocks.clear()
                with box:
                    _draw(stalls, clocks)
            shown[:] = [stalls]
            for one in stalls:
                clock, detail = clocks[_place(one)]
                clock.set_text(f"For {texts.seconds(one.seconds)}")
                detail.set_text(one.detail)

        live(board, draw)


def _place(stall: Stall) -> Place:
    return stall.source, stall.group, stall.topic, stall.partition, str(stall.cause)


def _same(stalls: tuple[Stall, ...]) -> list[tuple[Place, int | None, tuple[str, ...]]]:
    """What is drawn, without the clocks that go on."""
    return [(_place(one), one.offset, one.stack) for one in stalls]


def _draw(stalls: tuple[Stall, ...], clocks: dict[Place, tuple[ui.label, ui.label]]) -> None:
    if not stalls:
        with parts.card():
            parts.empty(
                "Nothing stands still",
                "A group with a lag that does nothing for as long as the observer's stall_seconds is "
                "listed here, with its cause.",
                icon="check_circle",
            )
    for one in stalls:
        with parts.card():
            _title(one)
            with parts.row():
                parts.badge(str(one.cause), "bad")
                clock = ui.label().classes("ps-dim")
            clocks[_place(one)] = (clock, ui.label())
            parts.facts(
                {
                    "In": one.source,
                    "At offset": "" if one.offset is None else str(one.offset),
                    "Since (UTC)": texts.time(one.since_ms),
                    "Process": "this one" if one.local else "another one",
                }
            )
            if one.stack:
                parts.pre("\n".join(one.stack), "Where it waits, outermost first")


def _title(stall: Stall) -> None:
    if not stall.topic:
        parts.heading(stall.source)
        return
    where = stall.topic if stall.partition is None else f"{stall.topic}/{stall.partition}"
    parts.heading(f"{stall.group} on {where}")
