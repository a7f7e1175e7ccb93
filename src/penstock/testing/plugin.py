"""The pytest plugin: buses as fixtures, virtual time, and no handler error that goes unseen.

It is there when Penstock is installed. ``memory_bus`` is a started bus without a disk, ``bus`` one
with a log in a temporary directory. With ``virtual_clock`` in the same test they run on that
clock. When a handler has raised, the test fails at its end, unless it says that this was expected:
``bus_errors.expect(ValueError)`` or ``@pytest.mark.bus_errors_expected``.

Buses and clocks are imported when a test asks for them. The buses need pytest-asyncio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.bus.bus import MessageBus
    from penstock.testing.clock import VirtualClock
    from penstock.testing.errors import BusErrors

MARKER = "bus_errors_expected"


def _async_fixture() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The fixture decorator for coroutines; pytest's own where pytest-asyncio is not installed."""
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture
    return pytest_asyncio.fixture


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}: handlers may raise in this test",
    )


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands still until the test moves it; the buses of the test run on it."""
    from penstock.testing.clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def bus_errors(request: pytest.FixtureRequest) -> Iterator[BusErrors]:
    """What handlers raised in this test; what was not expected is raised when the test has ended."""
    from penstock.testing.errors import BusErrors

    errors = BusErrors()
    if request.node.get_closest_marker(MARKER) is not None:
        errors.expect(BaseException)
    yield errors
    errors.raise_unexpected()


@_async_fixture()
async def memory_bus(
    request: pytest.FixtureRequest, bus_errors: BusErrors
) -> AsyncIterator[MessageBus]:
    """A started ResilientMessageBus that keeps nothing on a disk."""
    async with _started(request, bus_errors) as bus:
        yield bus


@_async_fixture()
async def bus(
    request: pytest.FixtureRequest, bus_errors: BusErrors, tmp_path: Any
) -> AsyncIterator[MessageBus]:
    """A started ResilientMessageBus with a log in the temporary directory of the test."""
    from penstock import WalMessageQueue

    async with (
        WalMessageQueue(tmp_path / "penstock") as log,
        _started(request, bus_errors, log=log) as bus,
    ):
        yield bus


def _started(request: pytest.FixtureRequest, errors: BusErrors, **options: Any) -> MessageBus:
    """A bus that is recorded and whose errors are kept; entering it starts it."""
    from penstock.resilience.bus import ResilientMessageBus
    from penstock.system import System
    from penstock.testing.recording import record

    if "virtual_clock" in request.fixturenames:
        options["system"] = System(clock=request.getfixturevalue("virtual_clock"))
    bus = ResilientMessageBus(**options)
    record(bus)
    bus.on_error(errors.note)
    return bus
