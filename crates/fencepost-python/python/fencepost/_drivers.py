"""How each driver of PostgreSQL is told to run a statement, and what it knows about its transaction. Drivers
are told apart by what they have, so none of them has to be installed."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

from ._errors import Invalid, Unsupported


def _of_sqlalchemy(target: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy") for base in type(target).__mro__)


_NAMES = ("resource", "token")


def _statement(sql: str) -> Any:
    """A statement as SQLAlchemy takes it."""
    import sqlalchemy

    return sqlalchemy.text(sql % tuple(f":{name}" for name in _NAMES))


def connection_of(target: Any) -> Any:
    """The connection that knows whether there is a transaction."""
    if _of_sqlalchemy(target):
        if not hasattr(target, "execute"):
            raise _unknown(target)
        connection = target if hasattr(target, "exec_driver_sql") else target.connection()
        return connection.connection.dbapi_connection
    if hasattr(target, "in_atomic_block"):
        return target
    # Behind a cursor: the connection, and in Django what is around it.
    return getattr(target, "db", None) or getattr(target, "connection", None) or target


async def connection_of_async(target: Any) -> Any:
    """As `connection_of`, for asyncio."""
    if not _of_sqlalchemy(target):
        return getattr(target, "connection", None) or target
    if not hasattr(target, "execute"):
        raise _unknown(target)
    connection = target if hasattr(target, "get_raw_connection") else await target.connection()
    return (await connection.get_raw_connection()).dbapi_connection


def answered(connection: Any) -> Any:
    """Where psycopg collects statements in a pipeline, one more around ours waits for all answers at its end,
    so that a refusal does not come later and from somewhere else; and at its beginning, so that it is known
    whether there is a transaction."""
    driver = connection.connection if hasattr(connection, "in_atomic_block") else connection
    collects = getattr(getattr(driver, "info", None), "pipeline_status", 0)
    return driver.pipeline() if collects else nullcontext()


def pipeline_of(target: Any, enters: str) -> Any:
    """A new pipeline, of psycopg only, to be entered as told."""
    connection: Any = None if _of_sqlalchemy(target) else connection_of(target)
    pipeline = connection.pipeline() if hasattr(connection, "pipeline") else None
    if not hasattr(pipeline, enters):
        raise Unsupported(
            f"a {_kind(target)} cannot send two statements at once here; "
            "call activate (or activate_async), and then run the "
            "statement by itself"
        )
    return pipeline


def refuse_outside(connection: Any) -> None:
    """Raises `Invalid` where there is no transaction."""
    if not _in_transaction(connection):
        raise Invalid(
            "there is no transaction here, so the token would keep nobody out; "
            "begin one on this connection, activate, and "
            "write before it is committed"
        )


def _in_transaction(connection: Any) -> bool:
    if hasattr(connection, "in_atomic_block"):  # Django
        return bool(connection.in_atomic_block or not connection.get_autocommit())
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    if hasattr(connection, "fetchval"):
        raise Unsupported(
            "a pool runs each statement on any of its connections; take one, and begin a transaction on it"
        )
    # Elsewhere a transaction begins by itself, unless that was switched off; then one may have been begun.
    begun = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return not getattr(connection, "autocommit", False) or begun != 0


def execute(target: Any, sql: str, values: tuple[Any, ...]) -> None:
    """Runs a statement; several of them if there are no values."""
    if _of_sqlalchemy(target):
        if values:
            target.execute(_statement(sql), dict(zip(_NAMES, values)))
            return
        # Several statements at once are for the driver itself.
        connection = target if hasattr(target, "exec_driver_sql") else target.connection()
        connection.exec_driver_sql("SELECT 1")  # begins the transaction that the caller commits
        execute(connection.connection.driver_connection, sql, ())
    elif hasattr(target, "execute"):
        sent = target.execute(sql, values or None)
        if inspect.iscoroutine(sent):
            sent.close()
            raise Unsupported(
                f"a {_kind(target)} is for asyncio: await the form of this whose name ends in _async"
            )
    elif hasattr(target, "cursor"):
        with target.cursor() as cursor:
            cursor.execute(sql, values or None)
    else:
        raise _unknown(target)


async def execute_async(target: Any, sql: str, values: tuple[Any, ...]) -> None:
    """As `execute`, for asyncio."""
    if _of_sqlalchemy(target):
        if values:
            await target.execute(_statement(sql), dict(zip(_NAMES, values)))
            return
        # Several statements at once are for the driver itself.
        connection = target if hasattr(target, "get_raw_connection") else await target.connection()
        await (await connection.get_raw_connection()).driver_connection.execute(sql)
    elif hasattr(target, "fetchval"):
        # Several statements at once have no values, and what looks like a place for one is text of theirs.
        placed = sql.replace("%s", "$1", 1).replace("%s", "$2", 1) if values else sql
        await target.execute(placed, *values)
    elif hasattr(target, "execute"):
        await target.execute(sql, values or None)
    else:
        raise _unknown(target)


def _unknown(target: Any) -> Unsupported:
    return Unsupported(
        f"a {_kind(target)} is no connection that is known here; run "
        "SELECT fencepost_fence.activate(resource, token) by it yourself, "
        "and pass its errors to stale_token()"
    )


def _kind(target: Any) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"
