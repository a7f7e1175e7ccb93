"""The PostgreSQL store: what a crash of the server leaves, lost sessions, deadlines, secrets."""

import asyncio
import logging
import sys
import traceback
from unittest import mock

import asyncpg
import pytest

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidOption,
    MissingExtra,
    PenstockError,
    Poisoned,
    StoreFailed,
    UnsupportedFormat,
)
from penstock.stores import PostgresStore
from tests.servers import SECRET, postgres_server


@pytest.fixture
def store(postgres_dsn, unique):
    with PostgresStore(postgres_dsn, schema=unique, deadline=10) as store:
        yield store


def ask(dsn: str, query: str, *arguments: object):
    async def run():
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    return asyncio.run(run())


def end_sessions(dsn: str) -> None:
    ask(
        dsn,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE application_name = 'penstock'",
    )


def test_sync_flushes_the_servers_log(store, postgres_dsn):
    for number in range(20):
        store.write_at("a", number * 5, [b"value"])
        written = ask(postgres_dsn, "SELECT pg_current_wal_insert_lsn()::text")
        store.sync("a")
        flushed = "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn"
        assert ask(postgres_dsn, flushed, written)


@pytest.mark.parametrize("name", ["write", "delete"])
def test_whole_values_are_flushed(store, postgres_dsn, name):
    store.write("a", bytes(200_000))
    if name == "delete":
        store.delete("a")
    # All that was inserted before the last commit is flushed; the server may add a little later.
    lag = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn())"
    assert ask(postgres_dsn, lag) < 1000


def test_a_crash_of_the_server():
    """Acknowledged values survive; a handle that may have lost something says so; reopening helps."""
    with postgres_server() as server:
        old = PostgresStore(server.dsn, deadline=10)
        old.write("whole", b"value")
        old.write_at("log", 0, [b"synced"])
        old.sync("log")
        old.write_at("log", 6, [b", not synced"])
        server.crash()
        server.start()
        with PostgresStore(server.dsn, deadline=10) as new:
            assert new.read("whole") == b"value"
            assert new.read("log").startswith(b"synced")
            new.sync("log")
            with pytest.raises(Poisoned, match="crashed or failed over"):
                old.sync("log")
            with pytest.raises(Poisoned):
                old.write_at("log", 0, [b"x"])
            with pytest.raises(Poisoned):
                old.write("whole", b"x")
            assert old.read("whole") == b"value"
        old.close()


def test_a_clean_restart_of_the_server_loses_nothing():
    with postgres_server() as server, PostgresStore(server.dsn, deadline=10) as store:
        store.write_at("log", 0, [b"not synced"])
        server.stop()
        with pytest.raises(StoreFailed):
            store.read("log")
        server.start()
        assert store.read("log") == b"not synced"
        store.sync("log")


def test_a_server_without_fsync_is_not_called_durable():
    with postgres_server() as server:
        ask(server.dsn, "ALTER SYSTEM SET fsync = off")
        ask(server.dsn, "SELECT pg_reload_conf()")
        server.stop()
        server.start()
        with PostgresStore(server.dsn) as store:
            assert not store.capabilities.durable


def test_a_lost_session_is_made_again(store, postgres_dsn):
    store.write_at("a", 0, [b"value"])
    store.sync("a")
    end_sessions(postgres_dsn)
    assert store.read("a") == b"value"
    store.write_at("a", 5, [b"!"])
    store.sync("a")
    with store.lock("a", 5):
        assert store.read("a") == b"value!"


def test_a_lock_that_was_lost_poisons_the_store(store, postgres_dsn):
    with store.lock("a", 5):
        end_sessions(postgres_dsn)
        store.read("a")  # a round trip through the loop, which has seen the end by then
        with pytest.raises(Poisoned, match="lock"):
            store.write_at("a", 0, [b"x"])
        with pytest.raises(Poisoned):
            store.sync("a")


def test_every_call_has_a_deadline(postgres_dsn, unique):
    async def hold(connection):
        await connection.execute(f"LOCK TABLE {unique}.keys IN ACCESS EXCLUSIVE MODE")

    async def run(work):
        connection = await asyncpg.connect(postgres_dsn)
        async with connection.transaction():
            await hold(connection)
            await asyncio.to_thread(work)
        await connection.close()

    with PostgresStore(postgres_dsn, schema=unique, deadline=0.3) as store:
        store.write("a", b"value")

        def work():
            for call in (
                lambda: store.read("a"),
                lambda: store.write("a", b"x"),
                lambda: store.sync("a"),
            ):
                with pytest.raises(DeadlineExceeded):
                    call()

        asyncio.run(run(work))
        assert store.read("a") == b"value"
        store.write("a", b"after")
        assert store.read("a") == b"after"


def test_closing_ends_a_call_that_waits(postgres_dsn, unique):
    import threading

    store = PostgresStore(postgres_dsn, schema=unique, deadline=30)
    outcome: list[BaseException] = []
    with store.lock("a", 5), PostgresStore(postgres_dsn, schema=unique) as other:

        def wait():
            try:
                with other.lock("a", 30):
                    pass
            except BaseException as failure:
                outcome.append(failure)

        thread = threading.Thread(target=wait)
        thread.start()
        while not other._locks._entries:
            pass
        other.close()
        thread.join(120)
        assert not thread.is_alive()
    store.close()
    assert [type(one) for one in outcome] == [Closed]


def test_handles_that_open_at_once_make_the_tables_once(postgres_dsn, unique):
    from penstock.testing.store_values import in_threads

    def work(number):
        with PostgresStore(postgres_dsn, schema=unique) as store:
            store.write(f"key-{number}", b"value")

    in_threads(4, work)
    with PostgresStore(postgres_dsn, schema=unique) as store:
        assert len(store.list()) == 4


def test_deleting_leaves_no_pieces_behind(store, postgres_dsn, unique):
    store.write("a", bytes(200_000))
    store.write_at("a", 200_000, [b"more"])
    store.truncate("a", 5)
    assert ask(postgres_dsn, f"SELECT count(*) FROM {unique}.pieces") == 1
    store.delete("a")
    assert ask(postgres_dsn, f"SELECT count(*) FROM {unique}.pieces") == 0


def test_a_newer_schema_is_refused(store, postgres_dsn, unique):
    ask(postgres_dsn, f"UPDATE {unique}.about SET version = 99")
    with pytest.raises(UnsupportedFormat, match="99"):
        PostgresStore(postgres_dsn, schema=unique)


@pytest.mark.parametrize("schema", ["", "a;b", 'a"b', "UPPER", "x" * 60, "1a"])
def test_a_schema_name_is_checked(schema):
    with pytest.raises(InvalidOption):
        PostgresStore("postgresql:///x", schema=schema)


@pytest.mark.parametrize("options", [{"deadline": 0}, {"connections": 0}])
def test_options_are_checked(options):
    with pytest.raises(InvalidOption):
        PostgresStore("postgresql:///x", **options)


# Secrets

BAD_DSNS = [
    f"postgresql://u:{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@/db?host=/nowhere",
    f"postgresql://u:12/{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:12#{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}/x@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?password={SECRET}",
    f"postgresql://127.0.0.1:port-{SECRET}/db",
    f"mysql://u:{SECRET}@host/db",
    f"host=127.0.0.1 password={SECRET}",
]


@pytest.mark.parametrize("dsn", BAD_DSNS)
def test_the_password_is_not_in_an_error(dsn, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PenstockError) as caught:
        PostgresStore(dsn, deadline=2)
    text = "".join(traceback.format_exception(caught.value, chain=True))
    lines = [line for line in text.splitlines() if "BAD_DSNS" not in line]
    assert SECRET not in "\n".join(lines)
    assert SECRET not in repr(caught.value)
    assert SECRET not in caplog.text


def test_the_password_is_not_shown(postgres_dsn, store, caplog):
    assert SECRET in postgres_dsn
    assert SECRET not in repr(store)
    assert SECRET not in str(store.statistics())
    store.close()
    with pytest.raises(Closed) as caught:
        store.read("a")
    assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


def test_without_asyncpg_the_extra_is_named(postgres_dsn):
    with mock.patch.dict(sys.modules, {"asyncpg": None}):
        with pytest.raises(MissingExtra, match=r"pip install penstock\[postgres\]"):
            PostgresStore(postgres_dsn)
