"""The targets of the bus, as ratios within one run where they are about others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets import Target

_EACH = "events/queued/resilient"
_WAIT = "events/handled/resilient"
_BURST = "burst/unawaited/resilient"
_PACED = "paced/10000/resilient"
_SLOPE = "growth/slope/resilient"

_PEERS = {
    _EACH: ("queue",),
    _WAIT: ("hand-rolled", "pyee", "pyee-asyncio", "blinker", "blinker-async"),
    _BURST: ("queue", "hand-rolled", "bubus", "pyee-asyncio"),
    "commands/executed/resilient": ("bubus",),
}
"""A case of ours → those that it is to be ahead of; bubus has a higher goal where it is not here."""
_CALLS = {
    _EACH: "`await publish`",
    _WAIT: "`await publish_and_wait`",
    _BURST: "burst",
    "commands/executed/resilient": "`await execute`",
}


def _ahead() -> Iterator[Target]:
    for of, peers in _PEERS.items():
        group = of.rpartition("/")[0]
        for peer in peers:
            yield Target(f"{_CALLS[of]}: ahead of {peer}", of, 1, f"{group}/{peer}")


TARGETS: tuple[Target, ...] = (
    Target("`await publish` one by one", _EACH, 100_000),
    Target("`await publish`: times a queue with a switch of tasks", _EACH, 0.15,
           "events/queued/queue-switch"),
    Target("`await publish`: times a queue with room", _EACH, 0.15, "events/queued/queue"),
    Target("`await publish`: times bubus", _EACH, 50, "events/handled/bubus"),
    Target("`await publish_and_wait`: times bubus", _WAIT, 50, "events/handled/bubus"),
    Target("burst: times a queue", _BURST, 0.3, "burst/unawaited/queue"),
    *_ahead(),
    Target("10,000 events/s: p99 of publish to handler", _PACED, 1_000, at_most=True),
    Target("10,000 events/s: p99 of `publish`", _PACED, 10_000, note="publish p99 µs",
           at_most=True),
    Target("sustained, awaited", "sustained/11000/resilient", 10_000),
    Target("sustained, unawaited", "sustained/11000/resilient-unawaited", 10_000),
    Target("idle: p50 of waking up", "wake_up/idle/resilient", 200, at_most=True),
    Target("idle: p99 of waking up", "wake_up/idle/resilient", 10_000, note="p99 µs",
           at_most=True),
    # Nothing that is kept for an event is smaller than 16 bytes: less than one means nothing.
    Target("growth of resident memory", _SLOPE, 1, at_most=True),
    Target("growth of traced memory", _SLOPE, 1, note="traced B/event", at_most=True),
    Target("growth of resident memory, dead letters", f"{_SLOPE}-failing", 1, at_most=True),
    Target("growth of traced memory, dead letters", f"{_SLOPE}-failing", 1,
           note="traced B/event", at_most=True),
    Target("processor time when idle", "processor/rates/resilient", 0.1, note="idle %",
           at_most=True),
    Target("processor time is linear in the rate", "processor/rates/resilient", 0.95),
    Target("chaos: events that are not accounted for", "chaos/failing/resilient", 0,
           note="unaccounted events", at_most=True),
    Target("very many scheduled: p99 of lateness", "schedule/pending/resilient", 5_000,
           at_most=True),
)  # fmt: skip
