"""What the tests of all transports use."""

import pytest


@pytest.fixture
def topic(request):
    """A name of its own for each test and each run: servers may outlive both."""
    return f"t{abs(hash(request.node.nodeid)):x}"
