"""Settings of the command line, the dashboard and of programs that want them.

They come from the environment (``PENSTOCK_URL``) and from TOML files; docs/configuration.md has the order.
Needs the extra ``penstock[config]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.config.masking import masked_url
from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from penstock.config.origins import Setting, settings_in_use, unknown_variables
    from penstock.config.settings import (
        DashboardSettings,
        Settings,
        ThresholdSettings,
        load_settings,
    )

# Loaded when it is used: pydantic-settings takes a while to import, and is an extra.
_HOMES = {
    "DashboardSettings": "settings",
    "Setting": "origins",
    "Settings": "settings",
    "ThresholdSettings": "settings",
    "load_settings": "settings",
    "settings_in_use": "origins",
    "unknown_variables": "origins",
}

__all__ = [
    "DashboardSettings",
    "Setting",
    "Settings",
    "ThresholdSettings",
    "load_settings",
    "masked_url",
    "settings_in_use",
    "unknown_variables",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ImportError as cause:
        raise MissingExtra(
            "settings from files need: pip install 'penstock[config]'", extra="config"
        ) from cause
    found: object = getattr(module, name)
    return found
