"""Connections of any driver: PEP 249, its asyncio forms, asyncpg. Statements go in, answers come out."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from penstock.errors import NotSupported, UsageError

_T = TypeVar("_T")
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}"}
_CONFLICTS = {"IntegrityError", "IntegrityConstraintViolationError"}


class Answer(NamedTuple):
    """What came of a statement."""

    changed: int
    """Rows that it changed."""
    rows: list[tuple[Any, ...]]


async def run(connection: Any, text: str, *values: object) -> Answer:
    """Run a statement with ``?`` for each value, in whatever transaction the connection is."""
    if _is_asyncpg(connection):
        return await _run_asyncpg(connection, _written(text, "${}"), values)
    if not hasattr(connection, "cursor"):
        raise NotSupported(
            f"{type(connection).__name__} is no connection of a database driver: give the driver's "
            "own, as connection.connection.driver_connection of SQLAlchemy",
            connection=type(connection).__name__,
        )
    written = _written(text, _placeholder(connection))
    cursor = await _given(connection.cursor())
    try:
        await _given(cursor.execute(written, values))
        rows = await _given(cursor.fetchall()) if cursor.description else []
        return Answer(cursor.rowcount, [_plain(row) for row in rows])
    finally:
        await _given(cursor.close())


def is_idle(connection: Any) -> bool | None:
    """Whether no transaction is open; None when the driver does not tell."""
    if _is_asyncpg(connection):
        return not connection.is_in_transaction()
    if getattr(connection, "autocommit", None) is False and hasattr(connection, "in_transaction"):
        return None  # sqlite3 that opens the next transaction with each commit
    if isinstance(within := getattr(connection, "in_transaction", None), bool):
        return not within
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return None if status is None else int(status) == 0


async def commit(connection: Any) -> None:
    """End the transaction, if there is one."""
    if not _is_asyncpg(connection) and is_idle(connection) is not True:
        await _given(connection.commit())


async def roll_back(connection: Any) -> None:
    """Give up the transaction, if there is one."""
    if not _is_asyncpg(connection) and is_idle(connection) is not True:
        await _given(connection.rollback())


def is_conflict(error: Exception) -> bool:
    """Whether a driver says that a row of this key is there already."""
    return any(kind.__name__ in _CONFLICTS for kind in type(error).__mro__)


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of work on a connection that blocks; UsageError when it would have to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise UsageError("this connection is an asyncio one: await save(), not save_blocking()")


# Inside


def _root(connection: Any) -> str:
    """The package of the driver, also of a subclass of its connection."""
    for kind in type(connection).__mro__:
        root = kind.__module__.partition(".")[0]
        if hasattr(sys.modules.get(root), "paramstyle") or root == "asyncpg":
            return root
    return ""


def _is_asyncpg(connection: Any) -> bool:
    return _root(connection) == "asyncpg"


def _placeholder(connection: Any) -> str:
    root = _root(connection)
    style = getattr(sys.modules.get(root), "paramstyle", "")
    if style not in _PLACEHOLDERS:
        raise NotSupported(
            f"the driver {root or type(connection).__name__!r} marks values by {style!r}: use one "
            f"that knows {', '.join(_PLACEHOLDERS)}",
            driver=root,
        )
    return _PLACEHOLDERS[style]


def _written(text: str, placeholder: str) -> str:
    """The statement as the driver wants it."""
    first, *others = text.split("?")
    return first + "".join(
        placeholder.format(number) + other for number, other in enumerate(others, 1)
    )


async def _run_asyncpg(connection: Any, text: str, values: Sequence[object]) -> Answer:
    if text.startswith("SELECT"):
        return Answer(0, [tuple(row) for row in await connection.fetch(text, *values)])
    status = await connection.execute(text, *values)
    changed = status.rpartition(" ")[2]
    return Answer(int(changed) if changed.isdecimal() else 0, [])


async def _given(result: Any) -> Any:
    return await result if isawaitable(result) else result


def _plain(row: Any) -> tuple[Any, ...]:
    """A row as a tuple, whatever row factory the connection has."""
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
