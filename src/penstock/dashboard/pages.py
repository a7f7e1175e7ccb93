"""The addresses of the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui

from penstock.dashboard import (
    page_breakers,
    page_group,
    page_groups,
    page_letter,
    page_letters,
    page_overview,
    page_queries,
    page_scaling,
    page_stalls,
    page_topic,
    page_topics,
)

PAGES: dict[str, Callable[..., Any]] = {
    "/": page_overview.build,
    "/topics": page_topics.build,
    "/topic": page_topic.build,
    "/groups": page_groups.build,
    "/group": page_group.build,
    "/dead-letters": page_letters.build,
    "/dead-letter": page_letter.build,
    "/stalls": page_stalls.build,
    "/breakers": page_breakers.build,
    "/scaling": page_scaling.build,
    "/queries": page_queries.build,
}


def register() -> None:
    """Make the pages known to the framework."""
    for path, build in PAGES.items():
        ui.page(path)(build)
