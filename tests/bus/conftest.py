"""What tests of buses share."""

import pytest

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite(
    "penstock.testing.bus_batches",
    "penstock.testing.bus_cancelling",
    "penstock.testing.bus_commands",
    "penstock.testing.bus_events",
    "penstock.testing.bus_fixtures",
    "penstock.testing.bus_handlers",
    "penstock.testing.bus_life",
    "penstock.testing.bus_middleware",
    "penstock.testing.bus_nesting",
    "penstock.testing.bus_queues",
    "penstock.testing.bus_sessions",
    "penstock.testing.bus_threads",
)
