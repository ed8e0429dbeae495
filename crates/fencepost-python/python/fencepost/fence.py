"""The resource's side of a fencing token: refuses what a stale holder writes.

A token protects only where it is checked, in the same atomic step as the write. **Activate first**: a new holder records its
token at the resource before it reads, or a stale writer can slip in between its read and its write.

    with locks.lock("account:7") as guard, connection.transaction():      # psycopg
        fence.activate(connection, "account:7", guard.token)
        ...

`activate_with` sends the token and the first statement behind it in one round trip.

PostgreSQL needs `SQL` once, by a migration or by `install`. Redis needs nothing. `Fenced` is for what lives in this process.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from ._errors import Invalid, StaleToken, Unsupported
from ._fencepost import FENCE_LUA as LUA
from ._fencepost import FENCE_SQL as SQL

__all__ = [
    "LUA",
    "SQL",
    "AsyncRedis",
    "Fenced",
    "Redis",
    "StaleToken",
    "activate",
    "activate_async",
    "activate_with",
    "activate_with_async",
    "install",
    "install_async",
    "stale_token",
    "translated",
]

T = TypeVar("T")
R = TypeVar("R")

STALE = "FP010"
"""The SQLSTATE of a refusal."""


# PostgreSQL: psycopg, asyncpg, SQLAlchemy.


def activate(transaction: Any, resource: str, token: int, *, once: bool = False) -> None:
    """Records a token in the caller's own transaction, before it reads; raises `StaleToken` if a larger one was seen. All
    others are kept out until the transaction ends, and a rollback takes the token back. Raises `Invalid` where there is no
    transaction: then nobody would be kept out.

    transaction: a connection or cursor of psycopg or Django, or a Connection or Session of SQLAlchemy.
    once: for an effect that must happen once a token: refuses also one that was seen before.
    """
    connection = _connection(transaction)
    with translated(), _answered(connection):
        _refuse_outside(connection)
        _execute(transaction, _function(once), (resource, token))


async def activate_async(transaction: Any, resource: str, token: int, *, once: bool = False) -> None:
    """As `activate`, for a connection of asyncpg, an async one of psycopg, or an AsyncConnection or AsyncSession."""
    connection = await _connection_async(transaction)
    with translated():
        async with _answered(connection):
            _refuse_outside(connection)
            await _execute_async(transaction, _function(once), (resource, token))


def activate_with(
    transaction: Any, resource: str, token: int, query: Any, params: Any = None, *, once: bool = False
) -> Any:
    """`activate` together with the first statement of a transaction, in one round trip: the token is sent first, and if it is refused,
    the server does not run the statement. Returns the cursor of the statement, as psycopg's `execute(query, params)` does.

    transaction: a connection or cursor of psycopg. Other drivers cannot send two statements at once: there, call `activate`.
    """
    with translated(), _pipeline(transaction, "__enter__"):
        connection = _connection(transaction)
        _refuse_outside(connection)
        connection.execute(_function(once), (resource, token))
        return transaction.execute(query, params)


async def activate_with_async(
    transaction: Any, resource: str, token: int, query: Any, params: Any = None, *, once: bool = False
) -> Any:
    """As `activate_with`, for an async connection or cursor of psycopg."""
    with translated():
        async with _pipeline(transaction, "__aenter__"):
            connection = _connection(transaction)
            _refuse_outside(connection)
            await connection.execute(_function(once), (resource, token))
            return await transaction.execute(query, params)


def install(connection: Any) -> None:
    """Makes the functions of `SQL` in a database. Again, it changes nothing."""
    _execute(connection, SQL, ())


async def install_async(connection: Any) -> None:
    """As `install`, for the connections that `activate_async` takes."""
    await _execute_async(connection, SQL, ())


def stale_token(error: BaseException | None) -> StaleToken | None:
    """The refusal behind a driver's error, such as one by the trigger on a table; `None` if it is another error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if getattr(error, "sqlstate", None) == STALE or getattr(error, "pgcode", None) == STALE:
            detail = getattr(error, "detail", None) or getattr(getattr(error, "diag", None), "message_detail", None)
            if detail:
                said = json.loads(detail)
                return StaleToken.of(said["resource"], said["presented"], said["highest"])
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Raises `StaleToken` where a driver reports a refusal."""
    try:
        yield
    except Exception as error:
        refusal = stale_token(error)
        if refusal is None:
            raise
        raise refusal from error


def _function(once: bool) -> str:
    return f"SELECT fencepost_fence.activate{'_once' if once else ''}(%s, %s)"


def _of_sqlalchemy(target: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy") for base in type(target).__mro__)


_NAMES = ("resource", "token")


def _statement(sql: str) -> Any:
    """A statement as SQLAlchemy takes it."""
    import sqlalchemy

    return sqlalchemy.text(sql % tuple(f":{name}" for name in _NAMES))


def _connection(target: Any) -> Any:
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


async def _connection_async(target: Any) -> Any:
    if not _of_sqlalchemy(target):
        return getattr(target, "connection", None) or target
    if not hasattr(target, "execute"):
        raise _unknown(target)
    connection = target if hasattr(target, "get_raw_connection") else await target.connection()
    return (await connection.get_raw_connection()).dbapi_connection


def _answered(connection: Any) -> Any:
    """Where psycopg collects statements in a pipeline, one more around ours waits for all answers at its end, so that a refusal does not come
    later and from somewhere else; and at its beginning, so that it is known whether there is a transaction."""
    driver = connection.connection if hasattr(connection, "in_atomic_block") else connection
    collects = getattr(getattr(driver, "info", None), "pipeline_status", 0)
    return driver.pipeline() if collects else nullcontext()


def _pipeline(target: Any, enters: str) -> Any:
    connection = None if _of_sqlalchemy(target) else _connection(target)
    pipeline = connection.pipeline() if hasattr(connection, "pipeline") else None
    if not hasattr(pipeline, enters):
        raise Unsupported(
            f"a {type(target).__module__}.{type(target).__qualname__} cannot send two statements at once here; call activate (or "
            "activate_async), and then run the statement by itself"
        )
    return pipeline


def _refuse_outside(connection: Any) -> None:
    if not _in_transaction(connection):
        raise Invalid(
            "there is no transaction here, so the token would keep nobody out; begin one on this connection, activate, and "
            "write before it is committed"
        )


def _in_transaction(connection: Any) -> bool:
    if hasattr(connection, "in_atomic_block"):  # Django
        return bool(connection.in_atomic_block or not connection.get_autocommit())
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    if hasattr(connection, "fetchval"):
        raise Unsupported("a pool runs each statement on any of its connections; take one, and begin a transaction on it")
    # Elsewhere a transaction begins by itself, unless that was switched off; then one may have been begun.
    begun = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return not getattr(connection, "autocommit", False) or begun != 0


def _execute(target: Any, sql: str, values: tuple[Any, ...]) -> None:
    if _of_sqlalchemy(target):
        if values:
            target.execute(_statement(sql), dict(zip(_NAMES, values)))
            return
        # Several statements at once are for the driver itself.
        connection = target if hasattr(target, "exec_driver_sql") else target.connection()
        connection.exec_driver_sql("SELECT 1")  # begins the transaction that the caller commits
        _execute(connection.connection.driver_connection, sql, ())
    elif hasattr(target, "execute"):
        sent = target.execute(sql, values or None)
        if inspect.iscoroutine(sent):
            sent.close()
            raise Unsupported(f"a {type(target).__module__}.{type(target).__qualname__} is for asyncio: await the async form of this")
    elif hasattr(target, "cursor"):
        with target.cursor() as cursor:
            cursor.execute(sql, values or None)
    else:
        raise _unknown(target)


async def _execute_async(target: Any, sql: str, values: tuple[Any, ...]) -> None:
    if _of_sqlalchemy(target):
        if values:
            await target.execute(_statement(sql), dict(zip(_NAMES, values)))
            return
        # Several statements at once are for the driver itself.
        connection = target if hasattr(target, "get_raw_connection") else await target.connection()
        await (await connection.get_raw_connection()).driver_connection.execute(sql)
    elif hasattr(target, "fetchval"):
        await target.execute(sql.replace("%s", "$1", 1).replace("%s", "$2", 1), *values)
    elif hasattr(target, "execute"):
        await target.execute(sql, values or None)
    else:
        raise _unknown(target)


def _unknown(target: Any) -> Unsupported:
    return Unsupported(
        f"a {type(target).__module__}.{type(target).__qualname__} is no connection that is known here; run "
        "SELECT fencepost_fence.activate(resource, token) by it yourself, and pass its errors to stale_token()"
    )


# Redis: the script runs check and command in one step.


def _guard_key(prefix: str, resource: str) -> str:
    if not resource:
        raise Invalid("a resource has a name")
    tag = f"{prefix}fence:{resource}"
    for character in "%{}":
        tag = tag.replace(character, f"%{ord(character):02X}")
    return f"{{{tag}}}:token"


def _refusal(resource: str, token: int, error: Exception) -> StaleToken | None:
    said = re.search(r"STALE (\d+)", str(error))
    return None if said is None else StaleToken.of(resource, token, int(said[1]))


class Redis:
    """Fenced writes through a client of redis-py.

    The guard key must never expire and never be evicted; in a cluster, the command's keys need the tag of the guard key.
    """

    def __init__(self, client: Any, *, prefix: str = "") -> None:
        self._script = client.register_script(LUA)
        self._prefix = prefix

    def guard_key(self, resource: str) -> str:
        """The key that holds the largest token of a resource."""
        return _guard_key(self._prefix, resource)

    def activate(self, resource: str, token: int) -> None:
        """Records a token; raises `StaleToken` if a larger one was seen."""
        self._call(resource, token, ">=", ())

    def run(self, resource: str, token: int, *command: Any) -> Any:
        """Runs one command, as in `run("cart:7", guard.token, "SET", "cart:7", data)`, unless the token is stale."""
        return self._call(resource, token, ">=", command)

    def run_once(self, resource: str, token: int, *command: Any) -> Any:
        """The same if this token or a larger one was never seen."""
        return self._call(resource, token, ">", command)

    def _call(self, resource: str, token: int, rule: str, command: tuple[Any, ...]) -> Any:
        try:
            return self._script(keys=[self.guard_key(resource)], args=[token, rule, *command])
        except Exception as error:
            refusal = _refusal(resource, token, error)
            if refusal is None:
                raise
            raise refusal from error


class AsyncRedis:
    """Fenced writes through a client of `redis.asyncio`. See `Redis`."""

    def __init__(self, client: Any, *, prefix: str = "") -> None:
        self._script = client.register_script(LUA)
        self._prefix = prefix

    def guard_key(self, resource: str) -> str:
        """The key that holds the largest token of a resource."""
        return _guard_key(self._prefix, resource)

    async def activate(self, resource: str, token: int) -> None:
        """Records a token; raises `StaleToken` if a larger one was seen."""
        await self._call(resource, token, ">=", ())

    async def run(self, resource: str, token: int, *command: Any) -> Any:
        """Runs one command unless the token is stale."""
        return await self._call(resource, token, ">=", command)

    async def run_once(self, resource: str, token: int, *command: Any) -> Any:
        """The same if this token or a larger one was never seen."""
        return await self._call(resource, token, ">", command)

    async def _call(self, resource: str, token: int, rule: str, command: tuple[Any, ...]) -> Any:
        try:
            return await self._script(keys=[self.guard_key(resource)], args=[token, rule, *command])
        except Exception as error:
            refusal = _refusal(resource, token, error)
            if refusal is None:
                raise
            raise refusal from error


# This process.


class Fenced(Generic[T]):
    """A value in this process that refuses stale holders."""

    def __init__(self, name: str, value: T) -> None:
        self._name = name
        self._value = value
        self._highest = 0
        self._mutex = threading.Lock()

    def activate(self, token: int) -> Entry[T]:
        """Records a token; through what it returns its holder reads and writes."""
        with self._mutex:
            self._admit(token, once=False)
        return Entry(self, token)

    def write_once(self, token: int, change: Callable[[T], T]) -> T:
        """Replaces the value if this token or a larger one was never seen."""
        with self._mutex:
            self._admit(token, once=True)
            self._value = change(self._value)
            return self._value

    def _admit(self, token: int, once: bool) -> None:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 < token < 2**53:
            raise Invalid(f"a fencing token lies between 1 and 2^53 - 1, not {token!r}")
        if token < self._highest or (once and token == self._highest):
            raise StaleToken.of(self._name, token, self._highest)
        self._highest = token


class Entry(Generic[T]):
    """A value whose resource has seen the holder's token."""

    def __init__(self, fenced: Fenced[T], token: int) -> None:
        self._fenced = fenced
        self._token = token

    def read(self) -> T:
        """The value; raises `StaleToken` if a later holder has been here."""
        with self._fenced._mutex:
            self._fenced._admit(self._token, once=False)
            return self._fenced._value

    def write(self, value: T) -> None:
        """Replaces the value; raises `StaleToken` if a later holder has been here."""
        self.update(lambda _: value)

    def update(self, change: Callable[[T], R]) -> R:
        """Replaces the value by what `change` makes of it, in one step."""
        with self._fenced._mutex:
            self._fenced._admit(self._token, once=False)
            value = change(self._fenced._value)
            self._fenced._value = value  # type: ignore[assignment]
            return value
