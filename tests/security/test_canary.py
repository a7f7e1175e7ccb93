"""Secrets: a canary is given as every password and token there is, and nothing that comes out may hold it."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from urllib.parse import quote

import pytest

import penstock
from penstock.cli import main
from penstock.dashboard import Dashboard
from penstock.errors import PenstockError
from penstock.observe import Observer, prometheus_text
from penstock.stores import open_store
from penstock.streaming import StreamingScalingManager
from penstock.transports import shared_registry
from tests import scoreboard
from tests.security.test_tls import EXTRAS

CANARY = "canary/zqjw:9c@x"
"""With what has a meaning in URLs, so that a mask that looks for the wrong part is found."""
SAID = quote(CANARY, safe="")
FORMS = (CANARY, SAID, "zqjw")
PORT = 1  # nobody listens there

URLS = {
    "kafka": f"kafka://ada@127.0.0.1:{PORT}?connect_seconds=0.3&security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN",
    "nats": f"nats://ada:{SAID}@127.0.0.1:{PORT}?connect_seconds=0.2",
    "rabbitmq": f"rabbitmq://ada:{SAID}@127.0.0.1:{PORT}?connect_seconds=0.2",
    "rabbitmq queues": f"rabbitmq://ada:{SAID}@127.0.0.1:{PORT}?mode=quorum&connect_seconds=0.2",
    "redis": f"redis://ada:{SAID}@127.0.0.1:{PORT}/0?connect_seconds=0.2",
    "rediss": f"rediss://ada:{SAID}@127.0.0.1:{PORT}/0?connect_seconds=0.2",
    "pulsar": f"pulsar://ada:{SAID}@127.0.0.1:{PORT}?connect_seconds=0.2&timeout=0.3",
}
WRONG_URLS = [
    f"redis://ada:{SAID}@127.0.0.1:{PORT}/x",
    f"redis://ada:{SAID}@",
    f"redis://:{SAID}@127.0.0.1:99999/0",
    f"nats://ada:{SAID}@127.0.0.1?nonsense=1",
    f"rabbitmq://ada:{SAID}@",
    f"rabbitmq://ada:{SAID}@127.0.0.1:port",
    f"pulsar://ada:{SAID}@127.0.0.1/one/two/three",
    f"kafka://ada:{SAID}@127.0.0.1",
    f"kafka://127.0.0.1?sasl.password={SAID}",
    f"nonsense://ada:{SAID}@127.0.0.1",
    f"postgresql://ada:{CANARY}@127.0.0.1:{PORT}/x",
    f"http://ada:{SAID}@127.0.0.1",
    f"redis://ada:{CANARY}@127.0.0.1:{PORT}/0",
]
VARIABLES = [
    "PENSTOCK_KAFKA_PASSWORD", "PENSTOCK_KAFKA_KEY_PASSWORD", "PENSTOCK_KAFKA_CLIENT_SECRET",
    "PENSTOCK_NATS_PASSWORD", "PENSTOCK_NATS_TOKEN", "PENSTOCK_PULSAR_TOKEN", "PENSTOCK_PULSAR_PASSWORD",
    "PENSTOCK_RABBITMQ_PASSWORD", "PENSTOCK_REDIS_PASSWORD", "PENSTOCK_DASHBOARD_TOKEN",
    "PENSTOCK_KAFKA_KEY",
]  # fmt: skip


def leaks(text: object) -> bool:
    return any(form in str(text) for form in FORMS)


@pytest.fixture(autouse=True)
def everything_is_said(caplog, monkeypatch):
    """The lowest level of every logger; no settings of the machine."""
    caplog.set_level(logging.DEBUG)
    for name in [one for one in os.environ if one.startswith("PENSTOCK_")]:
        if name != scoreboard.FOLDER:
            monkeypatch.delenv(name)


def everything_of(error: BaseException) -> str:
    """An error in every form: text, fields, the chain, a traceback."""
    chain: BaseException | None = error
    told = ["".join(traceback.format_exception(error))]
    while chain is not None:
        told += [str(chain), repr(chain), repr(chain.__dict__), repr(chain.args)]
        chain = chain.__cause__ or chain.__context__
    return "\n".join(told)


async def all_that_is_said_of(url: str, **options: object) -> list[str]:
    """A transport that cannot be reached, in every text that it has."""
    told: list[str] = []
    try:
        transport = shared_registry().make(url, **options)
    except PenstockError as error:
        return [everything_of(error)]
    told += [repr(transport), str(transport), f"{transport}"]
    told += [repr(value) for value in vars(transport).values()]
    for work in (transport.open, transport.topics):
        try:
            await work()
        except PenstockError as error:
            told.append(everything_of(error))
    async with Observer() as observer:
        observer.watch(transport, name="broker")
        told.append(repr(observer.snapshot()))
        told.append(prometheus_text(observer).decode())
        told.append(repr(observer.health()))
    await transport.close()
    manager = StreamingScalingManager()
    try:
        await manager.connect(url, **options)
    except PenstockError as error:
        told.append(everything_of(error))
    told.append(repr(manager))
    await manager.close()
    return told


@pytest.mark.parametrize("name", URLS)
async def test_transports_tell_no_secret(findings, caplog, monkeypatch, name):
    url = URLS[name]
    needed = {"rabbitmq": "rstream", "redis": "redis", "pulsar": "pulsar", **EXTRAS}
    pytest.importorskip(needed[url.partition(":")[0]], reason=f"needs the client of {name}")
    for way in ("in the URL", "in the environment"):
        if way == "in the environment":
            for variable in VARIABLES:
                monkeypatch.setenv(variable, CANARY)
            url = url.replace(f"ada:{SAID}@", "")
        for text in await all_that_is_said_of(url):
            findings.check(not leaks(text), f"{name}, {way}: {text[:300]}")
        for record in caplog.records:
            said = f"{record.getMessage()} {record.__dict__}"
            findings.check(not leaks(said), f"{name}, {way}, in the log: {said[:300]}")


async def test_a_seed_of_nats_is_told_nowhere(findings, caplog, monkeypatch):
    """Alone: with it the client needs a package of its own, and refuses one that is no seed in words of its own."""
    pytest.importorskip("nats", reason="needs the client of NATS")
    monkeypatch.setenv("PENSTOCK_NATS_NKEY_SEED", CANARY)
    transport = shared_registry().make(f"nats://127.0.0.1:{PORT}?connect_seconds=0.2")
    told = [repr(transport), *(repr(one) for one in vars(transport).values())]
    try:
        await transport.open()
    except Exception as error:
        told.append(everything_of(error))
    await transport.close()
    findings.check(len(told) > 2, "nothing was tried")
    for text in [*told, caplog.text]:
        findings.check(not leaks(text), text[:300])


@pytest.mark.parametrize("url", WRONG_URLS, ids=lambda url: url.partition(":")[0])
async def test_a_url_that_is_wrong_is_not_repeated(findings, caplog, url):
    for text in await all_that_is_said_of(url):
        findings.check(not leaks(text), f"{url.partition(':')[0]}: {text[:300]}")
    for door in (open_store, penstock.WalMessageQueue):
        try:
            opened = door(url)
        except Exception as error:
            findings.check(not leaks(everything_of(error)), f"{door.__name__}: {error}")
        else:
            findings.check(not leaks(repr(opened)), f"{door.__name__}: {opened!r}")
            opened.close() if door is open_store else None
    try:
        async with penstock.open(url):
            pass
    except PenstockError as error:
        findings.check(not leaks(everything_of(error)), f"open: {error}")
    findings.check(not leaks(caplog.text), f"the log: {caplog.text[:300]}")


def leaf_commands() -> list[tuple[str, ...]]:
    """Every command that there is, with something for each argument that it needs."""
    typer = pytest.importorskip("typer")
    from penstock.cli.app import app

    found: list[tuple[str, ...]] = []

    def walk(command, words: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))
        if not hasattr(command, "commands"):
            needed = [one for one in command.params if one.required]
            values = [
                word
                for one in needed
                for word in (
                    ["x"] if one.param_type_name == "argument" else [one.opts[0], "latest"]
                )
            ]
            yes = ["--yes"] if any(one.name == "yes" for one in command.params) else []
            found.append((*words, *values, *yes))

    walk(typer.main.get_command(app), ())
    return found


def run(words: tuple[str, ...]) -> str:
    told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"x\n"))
    try:
        with redirect_stdout(told), redirect_stderr(told):
            main(list(words))
    finally:
        sys.stdin = before
    return told.buffer.getvalue().decode()


def test_no_command_tells_a_secret(findings, monkeypatch, caplog, tmp_path):
    """Each command, on a broker that is not there: with the secret in the URL, and in the environment."""
    monkeypatch.chdir(tmp_path)
    commands = leaf_commands()
    findings.check(len(commands) > 20, f"only {len(commands)} commands were found")
    for url, more in ((URLS["redis"], ()), (URLS["nats"], ("-o", "json"))):
        monkeypatch.setenv("PENSTOCK_URL", url)
        monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", CANARY)
        for words in commands:
            if words[0] == "dashboard":  # it serves until it is stopped: see below
                continue
            told = run((*words, *more))
            findings.check(not leaks(told), f"{' '.join((*words, *more))}: {told[:300]}")
    findings.check(not leaks(caplog.text), f"the log: {caplog.text[:300]}")


def test_settings_and_checks_show_no_secret(findings, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, CANARY)
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    for url in [*URLS.values(), *WRONG_URLS]:
        (tmp_path / "penstock.toml").write_text(f'url = "{url}"\n')
        for words in (("config", "show"), ("config", "show", "-o", "json"), ("topic", "list")):
            told = run(words)
            findings.check(not leaks(told), f"{' '.join(words)} with {url[:12]}: {told[:300]}")


async def test_the_dashboard_tells_no_secret(findings, caplog):
    observer = Observer()
    dashboard = Dashboard(observer, port=0, token=CANARY)
    async with dashboard:
        findings.check(not leaks(dashboard.url), "its address")
    findings.check(not leaks(repr(dashboard)), repr(dashboard))
    findings.check(not leaks(caplog.text), f"the log: {caplog.text[:300]}")


PAGES = (
    "/", "/topics", "/groups", "/dead-letters", "/stalls", "/breakers", "/scaling", "/queries", "/metrics", "/healthz",
    "/readyz", "/topic?source=broker-0&topic=x", "/group?source=broker-0&topic=x&group=y",
)  # fmt: skip


def test_no_page_figure_or_message_of_the_socket_tells_a_secret(findings, monkeypatch):
    """In a real browser, over brokers that are not there: their errors are on the pages."""
    from tests.dashboard.browsing import chromium, dashboard_of

    pytest.importorskip("nats", reason="needs the client of NATS")
    monkeypatch.setenv("PENSTOCK_NATS_TOKEN", CANARY)
    urls = [URLS[name] for name in ("redis", "nats", "rabbitmq")]
    heard: list[str] = []
    with dashboard_of("-m", "tests.security.canary_shop", *urls) as (address, _), chromium() as one:
        tab = one.new_context(base_url=address).new_page()
        tab.set_default_timeout(60_000)
        tab.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda data: heard.append(str(data))),
        )
        tab.on("console", lambda message: heard.append(message.text))
        shown = 0
        for path in PAGES:
            answer = tab.goto(path)
            findings.check(path == "/readyz" or answer.ok, f"{path} answers {answer.status}")
            if path[1:] not in ("metrics", "healthz", "readyz"):
                tab.locator("h1").first.wait_for()
                if path == "/dead-letters":
                    tab.get_by_text("broker-0 does not answer").wait_for()
                tab.wait_for_function("() => window.socket?.connected")
                tab.wait_for_timeout(300)  # the page goes on drawing what comes over the socket
            told = f"{tab.content()} {answer.headers}"
            shown += "broker-0" in told
            findings.check(not leaks(told), f"{path} shows it")
    findings.check(shown, "no page shows the brokers, so nothing was tried")
    findings.check(len(heard) > len(PAGES), f"only {len(heard)} messages of the socket were seen")
    findings.none([f"the socket: {one[:200]}" for one in heard if leaks(one)], len(heard))


def test_the_command_that_serves_the_dashboard_tells_no_secret(findings, tmp_path):
    """On a log, with the secret as its token, until it is stopped; and on a broker that is not there."""
    environment = {**os.environ, "PENSTOCK_DASHBOARD_TOKEN": CANARY}
    for url in (f"log:{tmp_path}", URLS["redis"]):
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "penstock", "--url", url, "dashboard", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            told = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            told += process.communicate(timeout=60)[0]
        findings.check(told, f"{url[:6]}: it says nothing, so nothing was tried")
        findings.check(not leaks(told), f"{url[:6]}: {told[-300:]}")


def test_keys_of_object_storage_are_told_nowhere(findings, caplog, monkeypatch):
    """As options, in the URL where they do not belong, and in the environment of the cloud's own tools."""
    pytest.importorskip("obstore", reason="needs penstock[objects]")
    quick = {"retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}}
    place = {"endpoint": f"http://127.0.0.1:{PORT}", "region": "x"}
    keys = {"access_key_id": CANARY, "secret_access_key": CANARY, "session_token": CANARY}
    asked = "&".join(f"{name}={SAID}" for name in keys)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(variable, CANARY)
    for url, options in (
        ("s3://bucket/prefix", {**place, **keys}),
        (f"s3://bucket/prefix?{asked}", place),
        (f"s3://ada:{SAID}@bucket/prefix", {**place, **keys}),
        ("s3://bucket/prefix", place),
        ("s3://bucket/prefix", {**place, **keys, "nonsense": CANARY}),
        ("az://container/prefix", {"account_name": "x", "account_key": CANARY}),
        ("gs://bucket/prefix", {"service_account_key": CANARY}),
    ):
        for told in all_that_is_said_of_a_store(url, {**options, **quick}):
            findings.check(not leaks(told), f"{url[:20]}: {told[:300]}")
    findings.check(not leaks(caplog.text), f"the log: {caplog.text[:300]}")


def all_that_is_said_of_a_store(url: str, options: dict[str, object]) -> list[str]:
    """One that cannot be reached, in every text that it has."""
    try:
        store = open_store(url, **options)
    except PenstockError as error:
        return [everything_of(error)]
    told = [repr(store), str(store), repr(store.statistics())]
    for work in (lambda: store.write("a", b"x"), lambda: store.read("a"), store.list):
        try:
            work()
        except PenstockError as error:
            told.append(everything_of(error))
    store.close()
    return told


def test_options_for_spark_keep_secrets_where_spark_hides_them(findings, monkeypatch):
    """What they are under must fit what Spark leaves out of its plans; tests/spark/test_kafka_secrets.py looks there."""
    pytest.importorskip("pyspark", reason="needs penstock[spark]")
    pytest.importorskip("confluent_kafka", reason="needs the client of Kafka")
    from penstock.spark.kafka_connector import PRIVATE
    from penstock.spark.kafka_options import connection

    for variable in VARIABLES:
        if variable != "PENSTOCK_KAFKA_CLIENT_SECRET":  # Spark has no counterpart
            monkeypatch.setenv(variable, CANARY)
    url = f"kafka://ada@127.0.0.1:{PORT}?security.protocol=SASL_SSL&sasl.mechanisms=PLAIN"
    secret = {name for name, value in connection(url).items() if leaks(value)}
    findings.check(len(secret) >= 3, f"only {secret} hold it, so too little was tried")
    for name in secret:
        findings.check(re.search(PRIVATE, name), f"Spark shows {name}")


def test_a_process_that_dies_tells_no_secret(findings, tmp_path):
    """A traceback that nobody caught, as a container's log would have it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys, penstock\n"
        "async def main():\n"
        "    async with penstock.open(sys.argv[1]) as bus: ...\n"
        "asyncio.run(main())\n"
    )
    for url in (URLS["redis"], URLS["nats"], URLS["rabbitmq"]):
        done = subprocess.run(
            [sys.executable, "-X", "dev", program, url],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        findings.check(done.returncode != 0, "it did not die")
        findings.check(not leaks(done.stderr + done.stdout), done.stderr[-400:])


def test_the_rig_finds_a_leak():
    """What looks for the canary sees it in each of its forms, and in the cause of an error."""
    error = PenstockError("it did not work")
    error.__cause__ = ValueError(f"cannot open {CANARY}")
    assert leaks(everything_of(error))
    assert all(leaks(f"x{form}x") for form in FORMS)
    assert not leaks("***")
