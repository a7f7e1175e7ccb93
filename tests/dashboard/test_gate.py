"""Who may see the dashboard, decided without a server."""

import pytest

from penstock import System
from penstock.dashboard.gate import COOKIE, FAILURES_MAX, Gate, check_address, safe_path
from penstock.errors import InvalidOption
from penstock.testing import VirtualClock

TOKEN = "a-long-token"


def gate(token: str | None = TOKEN, host: str = "127.0.0.1", clock: VirtualClock | None = None):
    return Gate(host, token, System(clock=clock or VirtualClock()))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", ""])
def test_an_address_that_others_can_reach_needs_a_token(host):
    with pytest.raises(InvalidOption, match="PENSTOCK_DASHBOARD_TOKEN"):
        check_address(host, None)
    check_address(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(host):
    check_address(host, None)


def test_an_empty_token_is_refused():
    with pytest.raises(InvalidOption):
        check_address("127.0.0.1", " ")


def test_the_cookie_and_the_bearer_token_open_the_gate():
    one = gate()
    assert one.admits({"cookie": f"other=1; {COOKIE}={one.session}"})
    assert one.admits({"authorization": f"Bearer {TOKEN}"})
    assert not one.admits({})
    assert not one.admits({"cookie": f"{COOKIE}={TOKEN}"})
    assert not one.admits({"authorization": f"Basic {TOKEN}"})


def test_the_cookie_does_not_tell_the_token_and_ends_with_the_process():
    assert TOKEN not in gate().session
    assert gate().session != gate().session


def test_after_too_many_wrong_tokens_nobody_may_try_for_a_while():
    clock = VirtualClock()
    one = gate(clock=clock)
    for _ in range(FAILURES_MAX):
        assert not one.try_token("wrong")
    assert one.seconds_to_wait() > 0
    assert not one.admits({"authorization": f"Bearer {TOKEN}"})
    assert one.admits({"cookie": f"{COOKIE}={one.session}"})
    clock.advance(one.seconds_to_wait())
    assert one.seconds_to_wait() == 0
    assert one.admits({"authorization": f"Bearer {TOKEN}"})


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"host": "127.0.0.1:8420"}, True),
        ({"host": "127.0.0.1:8420", "origin": "http://127.0.0.1:8420"}, True),
        ({"host": "127.0.0.1:8420", "origin": "http://127.0.0.1:9"}, False),
        ({"host": "127.0.0.1:8420", "origin": "https://evil.example"}, False),
        ({"host": "127.0.0.1:8420", "origin": "null"}, False),
        ({"host": "127.0.0.1:8420", "sec-fetch-site": "cross-site"}, False),
        ({"host": "127.0.0.1:8420", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_only_a_page_of_the_dashboard_may_change_something(headers, same):
    assert gate().is_same_site(headers) is same


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8420", True),
        ("localhost:8420", True),
        ("[::1]:8420", True),
        ("evil.example:8420", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_without_a_token_a_name_that_points_here_is_refused(host, known):
    assert gate(token=None).knows_host({"host": host}) is known
    assert gate().knows_host({"host": host})


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
def test_a_log_in_goes_on_to_a_page_of_the_dashboard_only(path):
    assert safe_path(path) == "/"
    assert safe_path("/topic?topic=orders") == "/topic?topic=orders"
