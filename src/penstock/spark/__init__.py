"""Penstock on Spark: topics as tables and streams.

Spark finds ``format("penstock")`` by itself. :func:`spark_session` starts a Spark that suits it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra
from penstock.spark.session import spark_session

if TYPE_CHECKING:
    from penstock.spark.listener import GroupListener, follow
    from penstock.spark.source import PenstockDataSource

__all__ = ["GroupListener", "PenstockDataSource", "follow", "spark_session"]

# Loaded when it is used: importing Spark takes a second, and it is an extra.
_HOMES = {
    "GroupListener": "listener",
    "PenstockDataSource": "source",
    "follow": "listener",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ImportError as cause:
        raise MissingExtra("Spark needs: pip install 'penstock[spark]'", extra="spark") from cause
    found: object = getattr(module, name)
    return found
