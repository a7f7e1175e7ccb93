"""The web server: what it answers to whom. No browser."""

import asyncio
import contextlib
import json

import httpx
import pytest

import penstock
from penstock import Event, topic
from penstock.dashboard import Dashboard
from penstock.dashboard.board import Board
from penstock.dashboard.gate import COOKIE, FAILURES_MAX
from penstock.errors import InvalidOption, UsageError
from penstock.observe import Observer
from penstock.transports import open_transport

TOKEN = "a-long-token"
HTML = {"accept": "text/html"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PAGES = [
    "/",
    "/topics",
    "/topic?source=log&topic=posts",
    "/groups",
    "/group?source=log&topic=posts&group=readers",
    "/dead-letters",
    "/dead-letter?shelf=x&letter=y",
    "/stalls",
    "/breakers",
    "/scaling",
    "/queries",
]


@topic("posts")
class Post(Event):
    text: str


@contextlib.asynccontextmanager
async def running(tmp_path, **options):
    """A dashboard on a bus, and a client that knows its address."""
    async with penstock.open(f"log:{tmp_path}", name="blog") as bus:
        bus.subscribe(Post, lambda _: None, group="readers")
        await bus.publish(Post(text="<script>alert(1)</script>"))
        await bus.settle()
        async with Observer() as observer:
            observer.watch(bus)
            await observer.look()
            async with Dashboard(observer, port=0, **options) as dashboard:
                async with httpx.AsyncClient(base_url=dashboard.url, timeout=120) as client:
                    yield client


async def test_a_broker_that_does_not_answer_hides_nothing_of_the_others(tmp_path):
    pytest.importorskip("redis", reason="needs the client of Redis")
    async with penstock.WalMessageQueue(tmp_path) as log, Observer() as observer:
        await log.create_topic("orders.dead-letters")
        observer.watch(open_transport("redis://127.0.0.1:1"), name="far")
        observer.watch(log, name="near")
        board = Board(observer, asyncio.get_running_loop())
        topics = await board.topics()
        await board.close()
        assert topics.found == {"near": ("orders.dead-letters",)}
        assert [one.where for one in board.shelves(topics.found)] == [
            "topic orders.dead-letters, in near"
        ]
        assert "open the transport first" in topics.silent["far"]
        async with Dashboard(observer, port=0) as dashboard:
            async with httpx.AsyncClient(base_url=dashboard.url, timeout=120) as client:
                for path in ("/dead-letters", "/dead-letter?shelf=x&letter=y", "/topics"):
                    page = await client.get(path, headers=HTML)
                    assert page.status_code == 200, path


async def test_pages_health_and_metrics_are_served_on_loopback_without_a_token(tmp_path):
    async with running(tmp_path) as client:
        for path in PAGES:
            page = await client.get(path, headers=HTML)
            assert page.status_code == 200, path
            assert "<script>alert(1)" not in page.text
            assert page.headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            assert page.headers["cache-control"] == "no-store"
        health = await client.get("/healthz")
        assert (health.status_code, health.json()) == (200, {"alive": True, "reasons": []})
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "penstock_events_published_total" in metrics.text
        assert (await client.get("/docs")).status_code == 404


async def test_a_name_that_somebody_let_point_here_is_refused(tmp_path):
    async with running(tmp_path) as client:
        answer = await client.get("/", headers={**HTML, "host": "evil.example"})
        assert answer.status_code == 421


async def test_cross_site_requests_are_refused(tmp_path):
    evil = {"origin": "https://evil.example"}
    async with running(tmp_path) as client:
        assert (await client.post("/logout", headers=evil)).status_code == 403
        polling = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
        assert (await client.post(polling, headers=evil)).status_code == 403
        upgrade = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        socket = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        refused = await client.get(socket, headers={**upgrade, **evil})
        assert refused.status_code == 403
        own = {**upgrade, "origin": str(client.base_url).rstrip("/")}
        async with client.stream("GET", socket, headers=own) as taken:
            assert taken.status_code == 101


async def test_with_a_token_nothing_is_shown_before_it_is_given(tmp_path):
    async with running(tmp_path, token=TOKEN) as client:
        page = await client.get("/topics", headers=HTML)
        assert (page.status_code, page.headers["location"]) == (303, "/login?next=/topics")
        for path in ("/metrics", "/topics", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.get("/healthz")).json() == {"alive": True}
        assert (await client.get("/readyz")).json() == {"ready": True}
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/metrics", headers=bearer)).status_code == 200
        assert "reasons" in (await client.get("/healthz", headers=bearer)).json()
        wrong = {"authorization": "Bearer nonsense"}
        assert (await client.get("/metrics", headers=wrong)).status_code == 401


async def test_logging_in_gives_a_strict_cookie_and_no_token_is_in_an_address(tmp_path):
    async with running(tmp_path, token=TOKEN) as client:
        form = await client.get("/login?next=/groups", headers=HTML)
        assert 'name="token"' in form.text
        assert 'method="post"' in form.text
        wrong = await client.post("/login", content="token=x&next=/groups", headers=FORM)
        assert wrong.status_code == 401
        assert COOKIE not in wrong.cookies
        right = await client.post("/login", content=f"token={TOKEN}&next=/groups", headers=FORM)
        assert (right.status_code, right.headers["location"]) == (303, "/groups")
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert (await client.get("/groups", headers=HTML)).status_code == 200
        client.cookies.clear()
        assert (await client.get(f"/groups?token={TOKEN}")).status_code == 401


async def test_a_log_in_does_not_lead_elsewhere_and_its_form_is_escaped(tmp_path):
    async with running(tmp_path, token=TOKEN) as client:
        form = await client.get('/login?next=/"><script>x</script>', headers=HTML)
        assert "<script>" not in form.text
        body = f"token={TOKEN}&next=//evil.example"
        answer = await client.post("/login", content=body, headers=FORM)
        assert answer.headers["location"] == "/"
        too_long = "token=" + "x" * 100_000
        assert (await client.post("/login", content=too_long, headers=FORM)).status_code == 401


async def test_guessing_is_slowed(tmp_path):
    async with running(tmp_path, token=TOKEN) as client:
        for _ in range(FAILURES_MAX):
            await client.post("/login", content="token=guess", headers=FORM)
        refused = await client.post("/login", content=f"token={TOKEN}", headers=FORM)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0


async def test_there_is_one_dashboard_in_a_process_and_a_taken_port_is_explained(tmp_path):
    observer = Observer()
    async with Dashboard(observer, port=0) as first:
        with pytest.raises(UsageError, match="close it first"):
            await Dashboard(observer, port=0).start()
        port = int(first.url.rsplit(":", 1)[1].rstrip("/"))
    async with contextlib.AsyncExitStack() as stack:
        other = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        stack.push_async_callback(other.wait_closed)
        stack.callback(other.close)
        with pytest.raises(InvalidOption, match="another port"):
            await Dashboard(observer, port=port).start()
    async with Dashboard(observer, port=0) as again:
        async with httpx.AsyncClient(base_url=again.url) as client:
            assert (await client.get("/healthz")).status_code == 200


def test_other_addresses_need_a_token_before_anything_listens():
    with pytest.raises(InvalidOption, match="token"):
        Dashboard(Observer(), host="0.0.0.0")


async def test_it_answers_while_the_loop_of_the_program_is_blocked(tmp_path):
    """The dashboard has a loop of its own, so that it can tell of the other one."""
    async with running(tmp_path) as client:
        url = str(client.base_url.join("/healthz"))
        # Blocks this very loop until the answer is here.
        answer = httpx.get(url, timeout=120)
    assert answer.status_code == 503
    told = json.loads(answer.text)
    assert told["alive"] is False
    assert "event loop is held up" in told["reasons"][0]
