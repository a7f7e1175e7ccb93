"""Secrets: a canary is given as every password and token there is, and nothing that comes out may hold it."""

import io
import logging
import os
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
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
]  # fmt: skip


def leaks(text: object) -> bool:
    return any(form in str(text) for form in FORMS)


@pytest.fixture(autouse=True)
def everything_is_said(caplog, monkeypatch):
    """The lowest level of every logger; no settings of the machine."""
    caplog.set_level(logging.DEBUG)
    for name in [one for one in os.environ if one.startswith("PENSTOCK_")]:
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
            if words[0] in ("bench", "dashboard"):  # they would run for long
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
