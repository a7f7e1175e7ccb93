"""The command as it is run: in processes of its own, in pipes, beside others that write."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.cli.terminal import Terminal, command

WRITER = """
import asyncio, sys
from penstock import WalMessageQueue

async def main():
    async with WalMessageQueue(sys.argv[1]) as queue:
        number = 0
        while True:
            await queue.publish("orders", b"%d" % number, key=b"%d" % (number % 7))
            if number == 200:
                print("ready", flush=True)
            number += 1

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Terminal:
    """A log with a topic, made by processes."""
    folder = tmp_path_factory.mktemp("processes")
    terminal = Terminal(folder, f"log:{folder / 'data'}")
    terminal.process("topic", "create", "orders", "-p", 2)
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(2_000))
    terminal.process("produce", "orders", "-K", ":", "-q", stdin=lines)
    return terminal


def test_each_verb_runs_in_a_process(shop):
    assert shop.process("topic", "list", "-o", "json").json[0]["records"] == 2_000
    assert shop.process("topic", "describe", "orders").code == 0
    assert len(shop.process("consume", "orders", "-f", "json").json_lines) == 2_000
    shop.process("consume", "orders", "-g", "billing", "-n", 10)
    assert shop.process("group", "list", "-o", "json").json[0]["lag_records"] == 1_990
    assert "sound" in shop.process("log", "verify").text
    shop.process("export", "orders", "out.jsonl")
    assert len((shop.folder / "out.jsonl").read_text().splitlines()) == 2_000
    assert shop.process("dlq", "list", "-o", "json").json == []
    assert shop.process("config", "show").text.startswith("setting")
    assert shop.process("bench", "-n", 100, "-o", "json").json["consume"]["records"] == 100
    assert shop.process("doctor", code=None).code in (0, 4)


def test_what_is_wrong_is_a_line_and_a_code(shop):
    done = shop.process("consume", "gone", code=2)
    assert "gone" in done.errors
    assert done.errors.count("\n") == 1
    traced = subprocess.run(
        command("consume", "gone"),
        cwd=shop.folder,
        env=shop.environment({"PENSTOCK_DEBUG": "1"}),
        capture_output=True,
        check=False,
    )
    assert b"Traceback" in traced.stderr
    assert traced.returncode == 2


def test_a_log_that_another_process_writes_to(tmp_path):
    terminal = Terminal(tmp_path, "log:./data")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "data")], stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        first = terminal("topic", "list", "-o", "json").json[0]["records"]
        values = [int(line) for line in terminal("consume", "orders").lines]
        assert values == list(range(len(values)))
        assert len(values) >= first
        assert terminal("log", "verify", "-o", "json").json["sound"]
        assert terminal("log", "stats", "-o", "json").json[0]["end"] >= first
        terminal("consume", "orders", "-g", "billing", "-n", 50)
        assert terminal("group", "list", "-o", "json").json[0]["lag_records"] > 0
        terminal("export", "orders", tmp_path / "x.parquet")
        terminal("produce", "orders", "-q", "from the command line")
        terminal.process("topic", "describe", "orders")
        assert writer.poll() is None, "and nobody disturbed it"
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    assert "from the command line" in terminal("consume", "orders").lines


def test_follow_goes_on_until_ctrl_c(tmp_path):
    terminal = Terminal(tmp_path, "log:./data")
    terminal("produce", "orders", "--create", "-q", "first")
    reader = terminal.start(
        "consume", "orders", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"first\n"
        terminal("produce", "orders", "-q", "second")
        assert reader.stdout.readline() == b"second\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(120) == 130
        assert reader.stderr.read() == b"penstock: interrupted\n"
    finally:
        reader.kill()
        reader.communicate()


def test_what_comes_slowly_is_sent_at_once(tmp_path):
    terminal = Terminal(tmp_path, "log:./data")
    terminal("topic", "create", "orders")
    reader = terminal.start("consume", "orders", "--follow", stdout=subprocess.PIPE)
    writer = terminal.start("produce", "orders", "-q", stdin=subprocess.PIPE)
    try:
        assert writer.stdin is not None
        assert reader.stdout is not None
        for line in (b"one\n", b"two\n"):
            writer.stdin.write(line)
            writer.stdin.flush()
            assert reader.stdout.readline() == line, "though the pipe is still open"
        writer.stdin.close()
        assert writer.wait(120) == 0
    finally:
        for one in (reader, writer):
            one.kill()
            one.wait()
        assert reader.stdout is not None
        reader.stdout.close()


def test_ctrl_c_ends_a_command_that_waits_for_input(tmp_path):
    terminal = Terminal(tmp_path, "log:./data")
    terminal("topic", "create", "orders")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    writer = terminal.start("produce", "orders", **pipes)
    try:
        assert writer.stdin is not None
        writer.stdin.write(b"sent\nnot whole")
        writer.stdin.flush()
        reader = terminal.start("consume", "orders", "--follow", stdout=subprocess.PIPE)
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"sent\n"
        reader.kill()
        reader.communicate()
        writer.send_signal(signal.SIGINT)
        assert writer.wait(120) == 130
        assert writer.stderr is not None
        assert writer.stderr.read() == b"penstock: interrupted\n"
    finally:
        writer.kill()
        writer.communicate()


def test_a_pipe_that_ends_is_no_error(shop):
    words = " ".join(command("consume", "orders"))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -n 2; echo ${{PIPESTATUS[0]}}"],
        cwd=shop.folder,
        env=shop.environment(),
        capture_output=True,
        check=True,
    )
    *lines, code = done.stdout.decode().split()
    assert len(lines) == 2
    assert code in ("0", "141")
    assert done.stderr == b""


def test_a_refusal_without_a_terminal(shop):
    assert "Say --yes" in shop.process("topic", "delete", "orders", code=2).errors
    assert shop("topic", "list", "-o", "json").json[0]["topic"] == "orders"


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_terminal_is_asked(tmp_path, answer, code):
    terminal = Terminal(tmp_path, "log:./data")
    terminal("topic", "create", "orders")
    ours, theirs = os.openpty()
    try:
        asked = terminal.start(
            "topic",
            "delete",
            "orders",
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.write(ours, answer)
        _, errors = asked.communicate(timeout=200)
    finally:
        os.close(ours)
        os.close(theirs)
    assert asked.returncode == code, errors
    assert b"there is no way back" in errors
    left = terminal("topic", "list", "-o", "json").json
    assert len(left) == (1 if code else 0)
    if code:
        assert errors.endswith(b"penstock: nothing was done\n")


def test_tables_on_a_terminal(tmp_path):
    terminal = Terminal(tmp_path, "log:./data")
    terminal("topic", "create", "orders")
    ours, theirs = os.openpty()
    try:
        shown = terminal.start("topic", "list", stdout=theirs, stderr=subprocess.PIPE)
        _, errors = shown.communicate(timeout=200)
        assert (shown.returncode, errors) == (0, b"")
        assert b"orders" in os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_dashboard_is_served_until_ctrl_c(shop):
    pytest.importorskip("nicegui", reason="needs penstock[dashboard]")
    served = shop.start("dashboard", "--port", 0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert served.stdout is not None
        told = served.stdout.readline().decode()
        address = re.search(r"http://127\.0\.0\.1:\d+", told)
        assert address is not None, told
        with urllib.request.urlopen(f"{address[0]}/healthz", timeout=200) as answer:
            assert answer.status == 200
        served.send_signal(signal.SIGINT)
        assert served.wait(200) == 0
    finally:
        served.kill()
        served.communicate()


# Without the extra


def without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = {['penstock', *words]!r}; "
        "import runpy; runpy.run_module('penstock', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_it_is_named(module):
    done = without(module, "topic", "list")
    assert done.returncode == 2 or module == "rich"
    if module == "typer":
        assert "pip install 'penstock[cli]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_version_needs_no_extra():
    done = without("typer", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("penstock ")


def test_help_is_quick_because_it_loads_little():
    program = (
        "import sys; from penstock.cli import main; main(['--help']); "
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'pydantic_settings', 'nats', 'asyncio'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stderr.replace("'", '"'))) <= {"asyncio"}


# Completion


def completions(terminal: Terminal, line: str) -> list[str]:
    words = line.split(" ")
    done = subprocess.run(
        command(),
        cwd=terminal.folder,
        env=terminal.environment(
            {
                "_PENSTOCK_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            }
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_shell_completes_verbs_topics_and_groups(shop):
    assert completions(shop, "penstock consume ord") == ["orders"]
    shop("consume", "orders", "-g", "shipping", "-n", 1)
    assert completions(shop, "penstock group describe ship") == ["shipping"]


def test_completion_is_silent_when_it_cannot(tmp_path):
    assert completions(Terminal(tmp_path, "gopher:x"), "penstock consume o") == []
