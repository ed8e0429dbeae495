"""The resource's side: a stale writer is refused, by whatever driver it comes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
import redis
import redis.asyncio
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from conftest import eventually

import fencepost
from fencepost import StaleToken, fence


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """A database with the functions, and a table whose rows are guarded by the trigger."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        fence.install(connection)
        fence.install(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, balance int)")
        connection.execute("SELECT fencepost_fence.protect('account', 'fence', 'id')")
    yield postgres_url


@pytest.fixture(params=["psycopg", "cursor", "sqlalchemy", "session"])
def transaction(request: pytest.FixtureRequest, database: str) -> Iterator[Any]:
    if request.param in ("psycopg", "cursor"):
        with psycopg.connect(database) as connection:
            yield connection if request.param == "psycopg" else connection.cursor()
        return
    engine = sqlalchemy.create_engine(database.replace("postgres://", "postgresql+psycopg://"))
    if request.param == "sqlalchemy":
        with engine.connect() as other:
            yield other
    else:
        with sqlalchemy.orm.Session(engine) as session:
            yield session
    engine.dispose()


def test_postgres_refuses_a_stale_holder(transaction: Any, name: str) -> None:
    fence.install(transaction)
    fence.activate(transaction, name, 41)
    fence.activate(transaction, name, 42)
    fence.activate(transaction, name, 42)
    with pytest.raises(StaleToken) as stale:
        fence.activate(transaction, name, 41)
    error = stale.value
    assert (error.resource, error.presented, error.highest) == (name, 41, 42) and "41" in str(error)


def test_postgres_once_a_token(transaction: Any, name: str) -> None:
    fence.activate(transaction, name, 42, once=True)
    with pytest.raises(StaleToken):
        fence.activate(transaction, name, 42, once=True)


@pytest_asyncio.fixture(params=["asyncpg", "psycopg", "sqlalchemy", "session"])
async def async_transaction(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Any]:
    if request.param == "asyncpg":
        connection = await asyncpg.connect(database)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    elif request.param == "psycopg":
        async with await psycopg.AsyncConnection.connect(database) as other:
            yield other
    else:
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            database.replace("postgres://", "postgresql+asyncpg://")
        )
        try:
            if request.param == "sqlalchemy":
                async with engine.connect() as third:
                    yield third
            else:
                async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
                    yield session
        finally:
            await engine.dispose()


async def test_postgres_refuses_a_stale_holder_in_a_loop(async_transaction: Any, name: str) -> None:
    await fence.install_async(async_transaction)
    await fence.activate_async(async_transaction, name, 42)
    with pytest.raises(StaleToken) as stale:
        await fence.activate_async(async_transaction, name, 41)
    assert (stale.value.presented, stale.value.highest) == (41, 42)


@pytest.mark.parametrize("kind", ["psycopg", "cursor", "sqlalchemy", "engine", "session"])
def test_postgres_refuses_a_token_outside_a_transaction(database: str, name: str, kind: str) -> None:
    if kind in ("psycopg", "cursor"):
        with psycopg.connect(database, autocommit=True) as connection:
            target: Any = connection if kind == "psycopg" else connection.cursor()
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                fence.activate(target, name, 42)
            with connection.transaction():
                fence.activate(target, name, 41)
        return
    engine = sqlalchemy.create_engine(
        database.replace("postgres://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    if kind == "engine":
        with pytest.raises(fencepost.Unsupported):
            fence.activate(engine, name, 42)
    else:
        with engine.connect() if kind == "sqlalchemy" else sqlalchemy.orm.Session(engine) as target:
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                fence.activate(target, name, 42)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as begun:
        fence.activate(begun, name, 41)
    engine.dispose()


async def test_postgres_refuses_a_token_outside_a_transaction_in_a_loop(database: str, name: str) -> None:
    async with asyncpg.create_pool(database, min_size=1) as pool:
        with pytest.raises(fencepost.Unsupported, match="pool"):
            await fence.activate_async(pool, name, 42)
        async with pool.acquire() as connection:
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                await fence.activate_async(connection, name, 42)
            async with connection.transaction():
                await fence.activate_async(connection, name, 41)
    target: Any
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        for target in (other, other.cursor()):
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                await fence.activate_async(target, name, 42)
            async with other.transaction():
                await fence.activate_async(target, name, 41)
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        database.replace("postgres://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT"
    )
    async with engine.connect() as third, sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
        for target in (third, session):
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                await fence.activate_async(target, name, 42)
    await engine.dispose()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", ["connection", "cursor"])
def test_a_token_goes_together_with_the_first_statement(
    database: str, name: str, kind: str, once: bool
) -> None:
    with psycopg.connect(database) as connection:
        target: Any = connection if kind == "connection" else connection.cursor()
        cursor = fence.activate_with(target, name, 42, "SELECT %s::text", ("read",), once=once)
        assert (
            cursor.fetchone() == ("read",)
            and connection.info.pipeline_status == psycopg.pq.PipelineStatus.OFF
        )
        with pytest.raises(psycopg.errors.DivisionByZero):
            fence.activate_with(target, name, 43, "SELECT 1 / 0")
    for token in (41, 42) if once else (41,):
        with psycopg.connect(database) as connection:
            fence.activate(connection, name, 42)
        with psycopg.connect(database) as connection, pytest.raises(StaleToken) as stale:
            fence.activate_with(connection, name, token, "INSERT INTO account VALUES (99, 1)", once=once)
        assert (stale.value.presented, stale.value.highest) == (token, 42)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM account WHERE id = 99").fetchone() == (0,)


async def test_a_token_goes_together_with_the_first_statement_in_a_loop(database: str, name: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        for target in (connection, connection.cursor()):
            cursor = await fence.activate_with_async(target, name, 42, "SELECT %s::text", ("read",))
            assert await cursor.fetchone() == ("read",)
        await connection.commit()
        with pytest.raises(StaleToken) as stale:
            await fence.activate_with_async(connection, name, 41, "SELECT 1")
        assert (stale.value.presented, stale.value.highest) == (41, 42)
        await connection.rollback()
        with pytest.raises(StaleToken):
            await fence.activate_with_async(connection, name, 42, "SELECT 1", once=True)


def test_a_read_that_goes_together_with_a_token_is_behind_it(database: str, name: str) -> None:
    """It waits for the older holder, and sees what that one wrote."""
    seen: list[Any] = []

    def newer() -> None:
        with psycopg.connect(database, application_name=name) as connection:
            read = fence.activate_with(connection, name, 42, "SELECT balance FROM account WHERE id = 8")
            seen.append(read.fetchone())

    with psycopg.connect(database, autocommit=True) as watcher, psycopg.connect(database) as older:
        watcher.execute("INSERT INTO account VALUES (8, 100)")
        fence.activate_with(older, name, 41, "UPDATE account SET balance = 105, fence = 41 WHERE id = 8")
        thread = threading.Thread(target=newer)
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        eventually("the newer one waits", lambda: watcher.execute(waiting, (name,)).fetchone() is not None)
        older.commit()
        thread.join()
    assert seen == [(105,)]


def test_a_token_in_a_pipeline_is_refused_where_it_is_shown(database: str, name: str) -> None:
    with psycopg.connect(database) as connection:
        fence.activate(connection, name, 42)
    for begun in (False, True):
        with psycopg.connect(database) as connection, connection.pipeline():
            if begun:
                connection.execute("SELECT 1")
            with pytest.raises(StaleToken):
                fence.activate(connection, name, 41)
        with psycopg.connect(database) as connection, connection.pipeline():
            if begun:
                connection.execute("SELECT 1")
            fence.activate(connection, name, 42)
            assert fence.activate_with(connection, name, 42, "SELECT 5").fetchone() == (5,)
    # Statements in a pipeline look like a transaction to the client, and are none for the next ones.
    with psycopg.connect(database, autocommit=True) as connection, connection.pipeline():
        connection.execute("SELECT 1")
        with pytest.raises(fencepost.Invalid, match="no transaction"):
            fence.activate(connection, name, 43)
        connection.execute("SELECT 1")
        with pytest.raises(fencepost.Invalid, match="no transaction"):
            fence.activate_with(connection, name, 43, "SELECT 1")
        with connection.transaction():
            fence.activate(connection, name, 42)
            assert fence.activate_with(connection, name, 42, "SELECT 5").fetchone() == (5,)


async def test_a_token_in_a_pipeline_is_refused_where_it_is_shown_in_a_loop(database: str, name: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await fence.activate_async(connection, name, 42)
        await connection.commit()
        async with connection.pipeline():
            with pytest.raises(StaleToken):
                await fence.activate_async(connection, name, 41)


async def test_who_cannot_send_two_statements_at_once_is_told_what_to_do(database: str, name: str) -> None:
    engine = sqlalchemy.create_engine(database.replace("postgres://", "postgresql+psycopg://"))
    with engine.connect() as connection, pytest.raises(fencepost.Unsupported, match="call activate"):
        fence.activate_with(connection, name, 42, "SELECT 1")
    engine.dispose()
    other = await asyncpg.connect(database)
    async with other.transaction():
        with pytest.raises(fencepost.Unsupported, match="activate_async"):
            await fence.activate_with_async(other, name, 42, "SELECT 1")
    await other.close()
    async with await psycopg.AsyncConnection.connect(database) as third:
        with pytest.raises(fencepost.Unsupported, match="two statements"):
            fence.activate_with(third, name, 42, "SELECT 1")
        with pytest.raises(fencepost.Unsupported, match="asyncio"):
            fence.activate(third, name, 42)
    with psycopg.connect(database) as fourth:
        fence.activate(fourth, name, 1)


def test_the_triggers_refusal_is_translated(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO account VALUES (1, 0) ON CONFLICT DO NOTHING")
        connection.execute("UPDATE account SET balance = 5, fence = 42 WHERE id = 1")
        with pytest.raises(StaleToken) as stale, fence.translated():
            connection.execute("UPDATE account SET balance = 4, fence = 41 WHERE id = 1")
        assert stale.value.resource == "account:1" and isinstance(stale.value.__cause__, psycopg.Error)
        with pytest.raises(psycopg.errors.SyntaxError), fence.translated():
            connection.execute("NONSENSE")


def test_an_unknown_connection_is_told_what_to_do() -> None:
    with pytest.raises(fencepost.Unsupported, match="stale_token"):
        fence.activate(object(), "a", 1)


def test_a_paused_holder_cannot_write(database: str, locks: fencepost.Locks, name: str) -> None:
    """The story: one holder is paused past its lease, another works, the first wakes up."""
    first = locks.lock(name, ttl=2, renew=False).acquire()
    second = locks.lock(name, wait=30).acquire()
    with psycopg.connect(database) as connection:
        fence.activate(connection, name, second.token)
        connection.execute("INSERT INTO account VALUES (7, 100) ON CONFLICT (id) DO NOTHING")
    with psycopg.connect(database) as connection, pytest.raises(StaleToken):
        fence.activate(connection, name, first.token)
    second.release()


def test_redis_checks_and_writes_in_one_step(redis_url: str, name: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        guarded = fence.Redis(client)
        guarded.activate(name, 42)
        assert guarded.run(name, 42, "SET", name + ":data", "new") == "OK"
        with pytest.raises(StaleToken) as stale:
            guarded.run(name, 41, "SET", name + ":data", "old")
        assert (stale.value.presented, stale.value.highest) == (41, 42)
        assert client.get(name + ":data") == "new" and client.get(guarded.guard_key(name)) == "42"
        with pytest.raises(StaleToken):
            guarded.run_once(name, 42, "INCR", name + ":n")
        assert guarded.run_once(name, 43, "INCR", name + ":n") == 1
        with pytest.raises(redis.ResponseError):
            guarded.run(name, 0, "SET", "a", "b")
        assert guarded.guard_key("a{b}%") == "{fence:a%7Bb%7D%25}:token"


async def test_redis_checks_and_writes_in_one_step_in_a_loop(redis_url: str, name: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, decode_responses=True) as client:
        guarded = fence.AsyncRedis(client, prefix="app:")
        await guarded.activate(name, 42)
        assert await guarded.run(name, 42, "SET", name + ":data", "new") == "OK"
        with pytest.raises(StaleToken):
            await guarded.run(name, 41, "SET", name + ":data", "old")
        with pytest.raises(StaleToken):
            await guarded.run_once(name, 42, "INCR", name + ":n")
        assert guarded.guard_key("a") == "{app:fence:a}:token"


def test_a_value_in_this_process_refuses_stale_holders() -> None:
    balance = fence.Fenced("balance", 100)
    old = balance.activate(41)
    assert old.read() == 100
    new = balance.activate(42)
    new.write(50)
    for use in (old.read, lambda: old.write(99), lambda: balance.activate(41)):
        with pytest.raises(StaleToken):
            use()
    assert new.update(lambda value: value + 1) == 51 and new.read() == 51
    with pytest.raises(StaleToken):
        balance.write_once(42, lambda value: 0)
    assert balance.write_once(43, lambda value: value * 2) == 102
    with pytest.raises(fencepost.Invalid):
        balance.activate(0)


def test_a_value_is_changed_by_one_thread_at_a_time() -> None:
    count = fence.Fenced("count", 0)

    def work(token: int) -> None:
        for _ in range(2000):
            try:
                count.activate(token).update(lambda value: value + 1)
            except StaleToken:
                return

    threads = [threading.Thread(target=work, args=(7,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.activate(7).read() == 8000


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "sqlalchemy"])
async def test_what_asyncio_installs_protects_a_table(servers: Any, driver: str) -> None:
    url: str = servers.ask("start postgres")
    if driver == "asyncpg":
        other = await asyncpg.connect(url)
        await fence.install_async(other)
        await other.close()
    elif driver == "psycopg":
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await fence.install_async(connection)
    else:
        there = url.replace("postgres://", "postgresql+asyncpg://")
        engine = sqlalchemy.ext.asyncio.create_async_engine(there)
        async with engine.begin() as begun:
            await fence.install_async(begun)
        await engine.dispose()
    with psycopg.connect(url, autocommit=True) as plain:
        plain.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
        plain.execute("SELECT fencepost_fence.protect('account', 'fence', 'id')")
        plain.execute("INSERT INTO account VALUES (7, 1, 42)")
        with pytest.raises(StaleToken), fence.translated():
            plain.execute("UPDATE account SET balance = 2, fence = 41 WHERE id = 7")


PLANTED = {
    "starts_with(name, text)": ("boolean", "pg_catalog.starts_with($1::text, $2)"),
    "format(text, regclass, name)": ("text", "pg_catalog.format($1, $2, $3)"),
    "format(text, integer, numeric)": ("text", "$2::text || ' ' || $3::text"),
    "hashtextextended(text, integer)": ("bigint", "pg_catalog.hashtextextended($1, $2::bigint)"),
}
"""Functions that fit the calls of a migration better than PostgreSQL's own do."""


Hostile = tuple[str, Callable[[], bool]]


@pytest.fixture
def hostile(servers: Any) -> Iterator[Hostile]:
    """A database in which everybody may create in `public`, and somebody has; and whether that has run as the
    superuser."""
    url: str = servers.ask("start postgres")
    attempt = "EXECUTE 'ALTER ROLE mallory SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL;"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE mallory; GRANT CREATE ON SCHEMA public TO PUBLIC")
        admin.execute("SET SESSION AUTHORIZATION mallory")
        for head, (returns, value) in PLANTED.items():
            body = f"$$ BEGIN BEGIN {attempt} END; RETURN {value}; END $$"
            admin.execute(f"CREATE FUNCTION public.{head} RETURNS {returns} LANGUAGE plpgsql AS {body}")
        admin.execute("RESET SESSION AUTHORIZATION")
        admin.execute("SET search_path = pg_catalog")

        def ran() -> bool:
            row = admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'").fetchone()
            assert row is not None
            return bool(row[0])

        yield url, ran
        admin.execute("DROP OWNED BY mallory; DROP ROLE mallory")


@pytest.mark.parametrize("driver", ["psycopg", "sqlalchemy", "asyncpg"])
async def test_installing_runs_nothing_that_somebody_has_planted(hostile: Hostile, driver: str) -> None:
    url, ran = hostile
    if driver == "asyncpg":
        other = await asyncpg.connect(url)
        await fence.install_async(other)
        await other.close()
    elif driver == "sqlalchemy":
        engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg://"))
        with engine.begin() as connected:
            fence.install(connected)
        engine.dispose()
    else:
        with psycopg.connect(url) as connection:
            fence.install(connection)
    assert not ran()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
        connection.execute("SELECT fencepost_fence.protect('account', 'fence', 'id')")
        fence.activate(connection, "account:7", 42)
        connection.execute("INSERT INTO account VALUES (7, 1, 42)")
    assert not ran()


def test_locks_run_nothing_that_somebody_has_planted(hostile: Hostile, name: str) -> None:
    url, ran = hostile
    fencepost.init(url)
    assert not ran()
    with fencepost.connect(url) as locks, locks.lock(name, ttl=10) as guard:
        guard.extend()
        assert [holder.name for holder in locks.list()] == [name]
    assert not ran()
