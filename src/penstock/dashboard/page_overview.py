"""All in all: rates, the lag, the pressure, and what holds things up."""

from __future__ import annotations

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from penstock import BackpressureState
from penstock.dashboard import figures, parts, texts
from penstock.dashboard.board import Board
from penstock.dashboard.charts import Chart
from penstock.dashboard.figures import BAD, GOOD, NOTICE, Finding
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import Meter, Tiles
from penstock.dashboard.sampler import Sampler
from penstock.observe import Snapshot

PUBLISHED, PROCESSED, APPENDED = "Events published", "Events processed", "Records written"
LAG, OLDEST, LETTERS = "Lag in records", "Oldest unread", "Dead letters"
MOODS = {
    BackpressureState.NORMAL: GOOD,
    BackpressureState.WARNING: NOTICE,
    BackpressureState.CRITICAL: BAD,
    BackpressureState.SHEDDING: BAD,
}
FINDINGS_MAX = 4


def build() -> None:
    """The page."""
    with frame("Overview", "/") as board:
        findings = _Findings()
        tiles = Tiles(PUBLISHED, PROCESSED, APPENDED, LAG, OLDEST, LETTERS)
        with ui.element("div").classes("ps-two"):
            with parts.card("Rates per second"):
                rates = Chart("Rates per second", "published", "processed", "appended")
            with parts.card("Lag in records"):
                lag = Chart("Lag in records", "all groups")
        pressure = _Pressure()

        def draw() -> None:
            latest = board.sampler.latest
            findings.set(figures.findings(latest))
            _fill(tiles, board)
            _draw(rates, lag, board.sampler)
            pressure.set(latest)

        live(board, draw)


class _Findings:
    """What holds things up. What only counts on is changed in place: a link keeps the focus."""

    def __init__(self) -> None:
        self._box = ui.element("section").style("display: grid; gap: 8px")
        self._box.props["aria-label"] = "What holds things up"
        self._shown: list[tuple[str, str]] = []
        self._details: list[TextElement] = []

    def set(self, found: tuple[Finding, ...]) -> None:
        """Show these."""
        titles = [(one.mood, one.title) for one in found]
        if titles != self._shown:
            self._shown = titles
            self._box.clear()
            with self._box:
                self._details = [parts.finding(one) for one in found[:FINDINGS_MAX]]
                if (more := len(found) - FINDINGS_MAX) > 0:
                    parts.text("div", f"And {more} more of less weight.", "ps-dim")
        for detail, one in zip(self._details, found, strict=False):
            detail.set_text(one.detail)


class _Pressure:
    """The gauge, and what explains it."""

    def __init__(self) -> None:
        with parts.card("Pressure"):
            with parts.row():
                self._level = parts.badge("")
                self._share = ui.label()
            self._meter = Meter("Pressure")
            self._text = ui.label().classes("ps-dim")

    def set(self, snapshot: Snapshot) -> None:
        """Show the highest pressure."""
        now = figures.pressure(snapshot)
        if now is None:
            self._level.set_text("not measured")
            self._text.set_text(
                "Nothing that is watched measures pressure: attach the dashboard to a "
                "ScalableMessageBus or a StreamingScalingManager to see it."
            )
            return
        mood = MOODS[now.level]
        self._level.set_text(now.level.name.lower())
        parts.attribute(self._level, "data-mood", mood)
        self._share.set_text(f"{now.utilisation:.0%} full")
        self._meter.set(now.utilisation, f"{now.utilisation:.0%}, {now.level.name.lower()}", mood)
        self._text.set_text(now.text)


def _fill(tiles: Tiles, board: Board) -> None:
    latest, rates = board.sampler.latest, board.sampler.rates
    tiles.set(PUBLISHED, texts.rate(rates.published))
    tiles.set(PROCESSED, texts.rate(rates.processed))
    tiles.set(APPENDED, texts.rate(rates.appended))
    tiles.set(LAG, texts.count(figures.lag_records(latest)))
    tiles.set(OLDEST, texts.seconds(figures.lag_seconds(latest)))
    letters = sum(bus.dead_letters.letters for bus in latest.buses if bus.dead_letters)
    tiles.set(LETTERS, texts.count(letters), NOTICE if letters else "")


def _draw(rates: Chart, lag: Chart, sampler: Sampler) -> None:
    points = list(sampler.points)
    times = [one.time_ms for one in points]
    rates.set(
        times,
        [one.rates.published for one in points],
        [one.rates.processed for one in points],
        [one.rates.appended for one in points],
    )
    lag.set(times, [one.lag_records for one in points])
