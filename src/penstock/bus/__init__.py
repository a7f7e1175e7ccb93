"""The in-process bus: typed commands and events."""
