"""Which inner loops run compiled: those of ``penstock._speedups``, where it was built.

The Python beside them is the same to the last byte; ``PENSTOCK_SPEEDUPS=0`` chooses it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

SWITCH = "PENSTOCK_SPEEDUPS"
REVISION = 10
"""Counts the changes of what the twin has; it stands in both."""


def _find() -> Any:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        found = import_module("penstock._speedups")
    except ImportError:
        return None
    # One that was built from other sources, before these came, is left out.
    return found if getattr(found, "REVISION", 0) == REVISION else None


compiled: Any = _find()
"""The module, or None."""
