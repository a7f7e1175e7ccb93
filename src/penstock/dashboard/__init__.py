"""The dashboard: what a program or a log does, in a browser. Needs ``penstock[dashboard]``.

``async with Dashboard(observer)`` shows what an observer watches, from inside the program.
``serve(url)`` shows a log or a broker from outside; it is what ``penstock dashboard`` runs.
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock import errors

if find_spec("nicegui") is None:
    raise errors.MissingExtra(
        "the dashboard needs packages that are not installed: pip install 'penstock[dashboard]'",
        extra="dashboard",
    )

from penstock.dashboard.server import Dashboard
from penstock.dashboard.serving import serve

__all__ = ["Dashboard", "serve"]
