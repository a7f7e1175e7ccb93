"""The dashboard: each route and each role, foreign names and sites, headers, bodies, addresses."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip(
    "nicegui", reason="the dashboard needs nicegui: pip install 'penstock[dashboard]'"
)
import httpx

import penstock
from penstock import Event, topic
from penstock.cli import main
from penstock.dashboard import Dashboard
from penstock.dashboard.gate import COOKIE
from penstock.dashboard.guard import BODY_BYTES_MAX, OPEN_PATHS
from penstock.dashboard.policy import policy_of
from penstock.dashboard.site import _application
from penstock.observe import Observer
from tests.security.corpus import CONTROLS, LABEL, MARKUP, TEMPLATE

TOKEN = "canary-token-of-the-dashboard"
METHODS = ("GET", "POST", "DELETE")
HTML = {"accept": "text/html"}
EVIL = "https://evil.example"

# Every route that there is. "open" needs no token; all others do. A new route gets its line here.
ROUTES = {
    "/healthz": "open",
    "/readyz": "open",
    "/login": "open",
    "/logout": "token",
    "/metrics": "token",
    "/": "token",
    "/topics": "token",
    "/topic": "token",
    "/groups": "token",
    "/group": "token",
    "/dead-letters": "token",
    "/dead-letter": "token",
    "/stalls": "token",
    "/breakers": "token",
    "/scaling": "token",
    "/queries": "token",
    "/favicon.ico": "token",
    "/_nicegui_ws": "token",
    "/_nicegui/{version}/static": "token",
    "/_nicegui/{version}/libraries/{key:path}": "token",
    "/_nicegui/{version}/components/{key:path}": "token",
    "/_nicegui/{version}/resources/{key}/{path:path}": "token",
    "/_nicegui/{version}/dynamic_resources/{name}": "token",
    "/_nicegui/{version}/esm/{key}/{path:path}": "token",
}


@topic("posts")
class Post(Event):
    text: str


@contextlib.asynccontextmanager
async def running(folder: Path, **options) -> AsyncIterator[httpx.AsyncClient]:
    """A dashboard on a bus, and a client that knows its address."""
    async with penstock.open(f"log:{folder}", name="blog") as bus, Observer() as observer:
        bus.subscribe(Post, lambda _: None, group="readers")
        await bus.publish(Post(text=MARKUP))
        await bus.settle()
        observer.watch(bus)
        await observer.look()
        async with Dashboard(observer, port=0, **options) as dashboard:
            async with httpx.AsyncClient(base_url=dashboard.url, timeout=120) as client:
                yield client


def routes_of(application) -> set[str]:
    """All paths of the running application, those of what is mounted in it too."""
    found: set[str] = set()
    waiting = [("", one) for one in application.routes]
    while waiting:
        before, route = waiting.pop()
        path = before + route.path
        inner = getattr(getattr(route, "app", None), "routes", None)
        if inner:
            waiting += [(path, one) for one in inner]
        elif path:
            found.add(re.sub(r"/\d+\.\d+\.\d+/", "/{version}/", path))
    return found


def example_of(route: str) -> str:
    """An address that the route answers to."""
    return re.sub(r"\{[^}]*\}", "3.0.0", route)


async def test_each_route_has_a_rule(findings, tmp_path):
    async with running(tmp_path):
        found = routes_of(_application())
    for route in found | ROUTES.keys():
        findings.check(route in ROUTES, f"{route} has no rule: who may see it?")
        findings.check(route in found, f"{route} is not there any more: take its rule away")
    told = {route for route, rule in ROUTES.items() if rule == "open"}
    findings.check(told == OPEN_PATHS, f"open are {OPEN_PATHS}, and by the rules {told}")


def test_a_route_without_a_rule_is_found():
    """The check above sees routes that are added, also inside of mounted applications."""
    from fastapi import FastAPI

    inner, outer = FastAPI(openapi_url=None), FastAPI(openapi_url=None)
    inner.add_api_route("/secret", lambda: "x")
    outer.mount("/inner", inner)
    outer.add_api_route("/plain", lambda: "x")
    assert routes_of(outer) == {"/inner/secret", "/plain"}


async def test_routes_and_roles(findings, tmp_path):
    """No token, a wrong one, one in the address, an old cookie: nothing. The token, the cookie: in."""
    async with running(tmp_path, token=TOKEN) as client:
        form = {"content-type": "application/x-www-form-urlencoded"}
        entered = await client.post("/login", content=f"token={TOKEN}", headers=form)
        cookie = f"{COOKIE}={entered.cookies[COOKIE]}"
        client.cookies.clear()
        strangers = {
            "nobody": {},
            "a browser": dict(HTML),
            "a wrong cookie": {"cookie": f"{COOKIE}=0000"},
            "the token as a cookie": {"cookie": f"{COOKIE}={TOKEN}"},
            "a wrong login": {"authorization": "Basic eDp4"},
        }
        friends = {
            "the token": {"authorization": f"Bearer {TOKEN}"},
            "the cookie": {"cookie": cookie},
        }
        for route, rule in ROUTES.items():
            for method in METHODS:
                if (method, route) == ("POST", "/login"):  # that says 401 to an empty form
                    continue
                path = example_of(route)
                for who, headers in strangers.items():
                    answer = await client.request(method, path, headers=headers)
                    fine = is_let_in(answer) if rule == "open" else is_refused(answer)
                    told = f"{method} {path} by {who}: {answer.status_code}"
                    findings.check(fine, told)
                for who, headers in friends.items() if method == "GET" else ():
                    answer = await client.request(method, path, headers=headers)
                    told = f"{method} {path} by {who}: {answer.status_code}"
                    findings.check(is_let_in(answer), told)
        for place in ("/metrics", "/topics"):
            for query in (f"?token={TOKEN}", f"?access_token={TOKEN}", f"?authorization={TOKEN}"):
                answer = await client.get(place + query)
                findings.check(is_refused(answer), f"{place} by a token in the address")


def is_refused(answer: httpx.Response) -> bool:
    to_the_form = answer.status_code == 303 and answer.headers["location"].startswith("/login")
    return answer.status_code == 401 or to_the_form


def is_let_in(answer: httpx.Response) -> bool:
    return answer.status_code not in (401, 403, 413, 421) and not is_to_login(answer)


def is_to_login(answer: httpx.Response) -> bool:
    location = answer.headers.get("location", "")
    return answer.status_code == 303 and location.startswith("/login?next=")


async def test_wrong_tokens_are_slowed_and_a_guess_by_bearer_too(findings, tmp_path):
    async with running(tmp_path, token=TOKEN) as client:
        for number in range(12):
            await client.get("/metrics", headers={"authorization": f"Bearer guess-{number}"})
        right = await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        findings.check(right.status_code == 401, "guessing is not slowed")


# ------------------------------------------------------------------- foreign names, foreign sites

HOSTS = [
    "evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0",
    "[::ffff:8.8.8.8]", "169.254.169.254", "localhost@evil.example", "evil.example#localhost", "",
]  # fmt: skip
ORIGINS = {
    "another site": {"origin": EVIL},
    "another port": {"origin": "http://127.0.0.1:1"},
    "no origin": {"origin": "null"},
    "a file": {"origin": "file://"},
    "by fetch": {"sec-fetch-site": "cross-site"},
    "by fetch of a sister": {"sec-fetch-site": "same-site"},
}
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport="


async def test_a_name_that_was_made_to_point_here_gets_nothing(findings, tmp_path):
    """DNS rebinding: without a token only the names of this machine are answered to."""
    async with running(tmp_path) as client:
        for host in HOSTS:
            for route in ROUTES:
                answer = await client.get(example_of(route), headers={"host": host})
                fine = answer.status_code in (400, 421)
                findings.check(fine, f"{route} at {host!r}: {answer.status_code}")
            answer = await client.get(f"{SOCKET}websocket", headers={**UPGRADE, "host": host})
            findings.check(answer.status_code in (400, 403), f"a socket at {host!r}")


async def test_another_site_changes_nothing(findings, tmp_path):
    """With and without a token; the sockets, over which everything is changed, above all."""
    for options in ({}, {"token": TOKEN}):
        async with running(tmp_path / str(len(options)), **options) as client:
            known = {"authorization": f"Bearer {TOKEN}"} if options else {}
            for who, headers in ORIGINS.items():
                for route in ROUTES:
                    answer = await client.post(example_of(route), headers={**known, **headers})
                    told = f"{route} from {who}: {answer.status_code}"
                    findings.check(answer.status_code == 403, told)
                answer = await client.get(
                    f"{SOCKET}websocket", headers={**UPGRADE, **known, **headers}
                )
                findings.check(answer.status_code == 403, f"a socket from {who}")
            own = {**UPGRADE, **known, "origin": str(client.base_url).rstrip("/")}
            async with client.stream("GET", f"{SOCKET}websocket", headers=own) as taken:
                findings.check(taken.status_code == 101, "the own site gets a socket")
            if options:
                stranger = {**UPGRADE, "origin": str(client.base_url).rstrip("/")}
                answer = await client.get(f"{SOCKET}websocket", headers=stranger)
                findings.check(answer.status_code == 403, "a socket without the token")


# ------------------------------------------------------------------------------ headers, policy

WANTED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
DIRECTIVES = {
    "default-src 'self'", "object-src 'none'", "base-uri 'self'", "form-action 'self'",
    "frame-ancestors 'none'", "connect-src 'self'",
}  # fmt: skip


async def test_every_answer_has_the_headers(findings, tmp_path):
    """Pages, errors, refusals, files: nothing leaves without them, and nothing says what serves it."""
    async with running(tmp_path, token=TOKEN) as client:
        for headers in (
            {},
            dict(HTML),
            {"authorization": f"Bearer {TOKEN}", **HTML},
            {"origin": EVIL},
        ):
            for route in [*ROUTES, "/nothing/here", "/docs", "/openapi.json"]:
                for method in ("GET", "POST"):
                    answer = await client.request(method, example_of(route), headers=headers)
                    findings.none(wrong_headers(answer), len(WANTED) + len(DIRECTIVES) + 3)


def wrong_headers(answer: httpx.Response) -> list[str]:
    where = f"{answer.request.method} {answer.request.url.path}"
    told = answer.headers
    policy = told.get("content-security-policy", "")
    parts = {one.strip() for one in policy.split(";")}
    wrong = [f"{where}: no {name}" for name, text in WANTED.items() if told.get(name) != text]
    wrong += [f"{where}: the policy lacks {one}" for one in DIRECTIVES - parts]
    scripts = next((one for one in parts if one.startswith("script-src")), "")
    if "unsafe-inline" in scripts or "http" in scripts or "*" in policy:
        wrong.append(f"{where}: {scripts}")
    if "access-control-allow-origin" in told:
        wrong.append(f"{where}: other sites may read it")
    if "server" in told:
        wrong.append(f"{where}: it says what serves it")
    return wrong


def test_a_script_that_was_put_in_later_is_not_in_the_policy():
    before = policy_of(b"<script>one()</script><script src='/x.js'></script>")
    assert before.count("sha256-") == 1
    assert policy_of(b"<script>two()</script>") != before
    assert "unsafe-inline" not in before.split("style-src")[0]
    assert "sha256" not in policy_of(b"<img src=x onerror=one()>")


async def test_nothing_comes_from_elsewhere(findings, tmp_path):
    """No page names another host for scripts, styles, fonts or images."""
    outside = re.compile(r"""(?:src|href)=["']?(?:https?:)?//|@import\s+url\(["']?(?:https?:)?//""")
    async with running(tmp_path) as client:
        for route, rule in ROUTES.items():
            if rule == "token" and "{" not in route and not route.startswith("/_"):
                page = await client.get(route, headers=HTML)
                findings.check(not outside.search(page.text), f"{route} loads from elsewhere")


async def test_what_is_asked_for_is_never_markup(findings, tmp_path):
    """Hostile names in addresses: the page that says so shows them as text."""
    odd = ["../../etc/passwd", "..%2f..%2fx", "a\\b", "'; DROP TABLE x; --", "//evil.example"]
    async with running(tmp_path) as client:
        for name in [*odd, MARKUP, TEMPLATE, LABEL, CONTROLS.replace("\0", "")]:
            said = quote(name, safe="")
            for page in (
                f"/topic?source={said}&topic={said}",
                f"/group?source={said}&topic={said}&group={said}",
                f"/dead-letter?shelf={said}&letter={said}",
            ):
                answer = await client.get(page, headers=HTML)
                findings.check(answer.status_code == 200, f"{page[:60]}: {answer.status_code}")
                findings.check(MARKUP not in answer.text, f"{page[:60]} has markup in it")
            login = await client.get(f"/login?next={said}", headers=HTML)
            findings.check(MARKUP not in login.text, f"/login?next={said[:40]} has markup in it")
            location = login.headers.get("location", "/")
            findings.check(not location.startswith(("//", "http")), f"/login leads to {location}")


# -------------------------------------------------------------------------- bodies, addresses


async def test_bodies_have_a_bound(findings, tmp_path):
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(BODY_BYTES_MAX // 16)

    async with running(tmp_path) as client:
        paths = [example_of(one) for one in ROUTES] + [f"{SOCKET}polling"]
        for path in paths:
            answer = await client.post(path, content=bytes(BODY_BYTES_MAX + 1))
            findings.check(answer.status_code == 413, f"{path} takes a long body")
        for path in ("/login", "/logout", f"{SOCKET}polling", "/topics"):
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(path, content=endless())
                findings.check(
                    answer.status_code >= 400 or path == "/logout", f"{path} takes it all"
                )
        for length in ("-1", "1e3", "99999999999999999999", "0x10"):
            told = await raw(client, f"POST /login HTTP/1.1\r\nContent-Length: {length}\r\n")
            findings.check(told.split()[1] in ("400", "413"), f"a length of {length}: {told}")
        long = "GET / HTTP/1.1\r\nX: " + "x" * 300_000 + "\r\n"
        told = await raw(client, long)
        findings.check(not told or told.split()[1] in ("400", "431"), f"long headers: {told}")


async def raw(client: httpx.AsyncClient, head: str) -> str:
    """The first line of the answer to bytes of our own."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(f"{head}Host: {client.base_url.netloc.decode()}\r\n\r\n".encode())
            async with asyncio.timeout(120):
                return (await reader.readline()).decode()
        return ""
    finally:
        writer.close()


async def test_it_listens_on_this_machine_alone(findings, tmp_path):
    async with running(tmp_path) as client:
        wanted = f"{client.base_url.port:04X}"
        lines = [one.split() for one in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        places = [one[1] for one in lines if one[3] == "0A" and one[1].endswith(f":{wanted}")]
        findings.check(places == [f"0100007F:{wanted}"], f"it listens at {places}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", ""])
def test_another_address_is_refused_without_a_token(findings, tmp_path, monkeypatch, capsys, host):
    monkeypatch.delenv("PENSTOCK_DASHBOARD_TOKEN", raising=False)
    (tmp_path / "topics").mkdir()
    ended = main(["dashboard", "--url", f"log:{tmp_path}", "--host", host, "--port", "0"])
    findings.check(ended != 0, f"{host!r} was taken")
    told = capsys.readouterr().err
    findings.check("PENSTOCK_DASHBOARD_TOKEN" in told, f"it does not say why: {told}")
