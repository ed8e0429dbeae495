"""The resource's side of a fencing token: refuses what a stale holder writes.

A token protects only where it is checked, in the same atomic step as the write. **Activate first**: a new
holder records its token at the resource before it reads, or a stale writer can slip in between its read and
its write.

    with locks.lock("account:7") as guard, connection.transaction():      # psycopg
        fence.activate(connection, "account:7", guard.token)
        ...

`activate_with` sends the token and the first statement behind it in one round trip.

PostgreSQL needs `SQL` once, by a migration or by `install`, which refuse a schema of somebody who is not to
be trusted. `activate` does not look whose it is: install first. Redis needs nothing. `Fenced` is for what
lives in this process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ._drivers import (
    answered,
    connection_of,
    connection_of_async,
    execute,
    execute_async,
    pipeline_of,
    refuse_outside,
)
from ._errors import Invalid, StaleToken
from ._fencepost import FENCE_LUA as LUA
from ._fencepost import FENCE_SQL as SQL
from ._options import fencing_token

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
    """Records a token in the caller's own transaction, before it reads; raises `StaleToken` if a larger one
    was seen. All others are kept out until the transaction ends, and a rollback takes the token back. Raises
    `Invalid` where there is no transaction: then nobody would be kept out.

    transaction: a connection or cursor of psycopg or Django, or a Connection or Session of SQLAlchemy.
    once: for an effect that must happen once a token: refuses also one that was seen before.
    """
    connection = connection_of(transaction)
    with translated(), answered(connection):
        refuse_outside(connection)
        execute(transaction, _function(once), (resource, token))


async def activate_async(transaction: Any, resource: str, token: int, *, once: bool = False) -> None:
    """As `activate`, for a connection of asyncpg, an async one of psycopg, or an AsyncConnection or
    AsyncSession."""
    connection = await connection_of_async(transaction)
    with translated():
        async with answered(connection):
            refuse_outside(connection)
            await execute_async(transaction, _function(once), (resource, token))


def activate_with(
    transaction: Any, resource: str, token: int, query: Any, params: Any = None, *, once: bool = False
) -> Any:
    """`activate` together with the first statement of a transaction, in one round trip: the token is sent
    first, and if it is refused, the server does not run the statement. Returns the cursor of the statement,
    as psycopg's `execute(query, params)` does.

    transaction: a connection or cursor of psycopg. Other drivers cannot send two statements at once: there,
    call `activate`."""
    with translated(), pipeline_of(transaction, "__enter__"):
        connection = connection_of(transaction)
        refuse_outside(connection)
        connection.execute(_function(once), (resource, token))
        return transaction.execute(query, params)


async def activate_with_async(
    transaction: Any, resource: str, token: int, query: Any, params: Any = None, *, once: bool = False
) -> Any:
    """As `activate_with`, for an async connection or cursor of psycopg."""
    with translated():
        async with pipeline_of(transaction, "__aenter__"):
            connection = connection_of(transaction)
            refuse_outside(connection)
            await connection.execute(_function(once), (resource, token))
            return await transaction.execute(query, params)


def install(connection: Any) -> None:
    """Makes the functions of `SQL` in a database. Again, it changes nothing."""
    execute(connection, SQL, ())


async def install_async(connection: Any) -> None:
    """As `install`, for the connections that `activate_async` takes."""
    await execute_async(connection, SQL, ())


def stale_token(error: BaseException | None) -> StaleToken | None:
    """The refusal behind a driver's error, such as one by the trigger on a table; `None` if it is another
    error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if getattr(error, "sqlstate", None) == STALE or getattr(error, "pgcode", None) == STALE:
            detail = getattr(error, "detail", None) or getattr(
                getattr(error, "diag", None), "message_detail", None
            )
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

    The guard key must never expire and never be evicted; in a cluster, the command's keys need the tag of the
    guard key."""

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
        """Runs one command, as in `run("cart:7", guard.token, "SET", "cart:7", data)`, unless the token is
        stale."""
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
        token = fencing_token(token)
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
