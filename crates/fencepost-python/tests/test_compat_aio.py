"""The call shape of redis.asyncio's Lock. What is meant to be the same is asked of both, the lock of redis-py
and ours, each by itself and against the other."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio
import redis.asyncio.lock
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import LockError, LockNotOwnedError

import fencepost
from conftest import LIMIT, Servers
from fencepost.compat import redlock
from fencepost.compat.redis_lock import AsyncLock, Lock

KINDS = {"redis-py": redis.asyncio.lock.Lock, "fencepost": AsyncLock}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """The lock of redis-py, and ours."""
    return KINDS[request.param]


@pytest.fixture(params=KINDS)
def other_kind(request: pytest.FixtureRequest) -> Any:
    """The same, for somebody else."""
    return KINDS[request.param]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connected:
        yield connected


@pytest_asyncio.fixture
async def aclient(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as connected:
        yield connected


def pttl(client: redis.Redis, name: str) -> int:
    return int(client.pttl(name))


METHODS = ["acquire", "locked", "owned", "release", "extend", "reacquire"]


@pytest.mark.parametrize("method", ["__init__", *METHODS])
def test_the_parameters_are_those_of_redis_py(method: str) -> None:
    theirs = inspect.signature(getattr(redis.asyncio.lock.Lock, method)).parameters.values()
    ours = inspect.signature(getattr(AsyncLock, method)).parameters.values()
    assert [(one.name, one.kind, one.default) for one in ours] == [
        (one.name, one.kind, one.default) for one in theirs
    ]


@pytest.mark.parametrize("timeout", [None, 10, 9.5])
async def test_taken_and_given_back(
    kind: Any, aclient: redis.asyncio.Redis, client: redis.Redis, name: str, timeout: float | None
) -> None:
    lock, other = kind(aclient, name, timeout=timeout), kind(aclient, name)
    assert not await lock.locked() and not await lock.owned()
    assert await lock.acquire() is True
    assert isinstance(lock.local.token, bytes) and client.get(name) is not None
    if timeout is not None:
        assert timeout * 1000 - 2000 < pttl(client, name) <= timeout * 1000
    assert await lock.locked() and await lock.owned() and await other.locked() and not await other.owned()
    assert await lock.release() is None
    assert lock.local.token is None and client.get(name) is None
    assert not await lock.locked() and not await lock.owned()
    assert await other.acquire(blocking=False)
    await other.release()


async def test_from_the_client_in_a_block(kind: Any, redis_url: str, name: str) -> None:
    for decode in (False, True):
        async with redis.asyncio.Redis.from_url(redis_url, decode_responses=decode) as aclient:
            lock = aclient.lock(name, timeout=10, lock_class=kind)
            async with lock as entered:
                assert entered is lock and await lock.owned()
            assert not await lock.locked()


async def test_whoever_has_it_keeps_everybody_out(
    kind: Any, other_kind: Any, aclient: redis.asyncio.Redis, name: str
) -> None:
    async with kind(aclient, name, timeout=30, sleep=0.01) as held:
        assert not await held.acquire(blocking=False)
        other = other_kind(aclient, name, timeout=30, sleep=0.01)
        assert await other.acquire(blocking=False) is False
        assert await other.acquire(blocking_timeout=0) is False
        assert await other.acquire(blocking_timeout=0.05) is False
        for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
            impatient = other_kind(aclient, name, **options)
            assert await impatient.acquire() is False
            with pytest.raises(LockError, match="Unable to acquire lock within the time specified"):
                async with impatient:
                    pass
        assert await held.owned() and other.local.token is None
        waiting = asyncio.create_task(other.acquire(blocking_timeout=LIMIT))
        await asyncio.sleep(0)
    assert await waiting is True and await other.owned()
    waiting = asyncio.create_task(held.acquire())
    await asyncio.sleep(0)
    await other.release()
    assert await asyncio.wait_for(waiting, LIMIT) is True
    await held.release()


@pytest.mark.parametrize("timeout", [None, 10])
async def test_misuse(kind: Any, aclient: redis.asyncio.Redis, name: str, timeout: float | None) -> None:
    async def refused(use: str, *arguments: float) -> None:
        with pytest.raises(LockError) as error:
            await getattr(lock, use)(*arguments)
        assert not isinstance(error.value, LockNotOwnedError)

    lock = kind(aclient, name, timeout=timeout)
    for use in ("release", "reacquire"):
        await refused(use)
    await refused("extend", 10)
    await lock.acquire()
    if timeout is None:
        await refused("reacquire")
        await refused("extend", 10)
    await lock.release()
    await refused("release")


async def test_a_lock_that_somebody_else_has_by_now(
    kind: Any, aclient: redis.asyncio.Redis, client: redis.Redis, name: str
) -> None:
    lock = kind(aclient, name, timeout=10)
    assert await lock.acquire()
    client.set(name, "somebody else")
    assert await lock.locked() and not await lock.owned()
    for use in (lock.reacquire, lambda: lock.extend(10), lambda: lock.extend(10, replace_ttl=True)):
        with pytest.raises(LockNotOwnedError):
            await use()
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    assert lock.local.token is None and client.get(name) == b"somebody else"
    client.delete(name)


async def test_leaving_a_block_without_the_lock(
    kind: Any,
    aclient: redis.asyncio.Redis,
    client: redis.Redis,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for own in (None, KeyError("the block's own")):
        with pytest.raises(LockNotOwnedError) as lost:
            async with kind(aclient, name, timeout=10):
                client.delete(name)
                if own is not None:
                    raise own
        seen: BaseException | None = lost.value
        while seen is not None and seen is not own:
            seen = seen.__context__
        assert seen is own
    async with kind(aclient, name, timeout=10, raise_on_release_error=False):
        client.delete(name)
    told = [record for record in caplog.records if "exiting context manager" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    with pytest.raises(KeyError):
        async with kind(aclient, name, timeout=10, raise_on_release_error=False):
            client.delete(name)
            raise KeyError


async def test_extending_adds_or_replaces(
    kind: Any, aclient: redis.asyncio.Redis, client: redis.Redis, name: str
) -> None:
    async with kind(aclient, name, timeout=10) as lock:
        assert await lock.extend(10) is True
        assert 16_000 < pttl(client, name) <= 20_000
        assert await lock.extend(30, replace_ttl=True) is True
        assert 26_000 < pttl(client, name) <= 30_000
        client.pexpire(name, 5_000)
        assert await lock.reacquire() is True
        assert 8_000 < pttl(client, name) <= 10_000


async def test_a_token_is_handed_on(kind: Any, aclient: redis.asyncio.Redis, name: str) -> None:
    lock, other = kind(aclient, name, timeout=10), kind(aclient, name, timeout=10)
    assert await lock.acquire()
    other.local.token = lock.local.token
    assert await other.owned() and await other.extend(10)
    await other.release()
    assert not await lock.locked()
    with pytest.raises(LockNotOwnedError):
        await lock.release()


async def test_tasks_share_a_lock(kind: Any, aclient: redis.asyncio.Redis, name: str) -> None:
    lock = kind(aclient, name, timeout=10)
    assert await asyncio.create_task(lock.acquire())
    assert await asyncio.create_task(lock.owned())
    await asyncio.create_task(lock.release())
    assert not await lock.locked()


async def test_a_server_that_is_gone(kind: Any, servers: Servers, name: str) -> None:
    url = servers.ask("start redis")
    once = Retry(NoBackoff(), 0)
    async with redis.asyncio.Redis.from_url(url, socket_timeout=3, retry=once) as aclient:
        lock = kind(aclient, name, timeout=10)
        assert await lock.acquire()
        servers.ask(f"kill {url}")
        for use in (lock.release, lambda: lock.extend(10), lambda: kind(aclient, name).acquire()):
            with pytest.raises(redis.exceptions.ConnectionError):
                await use()
        assert lock.local.token is not None


# Ours alone.


def test_a_client_of_the_other_kind_is_refused(redis_url: str, client: redis.Redis, name: str) -> None:
    asyncio_client = redis.asyncio.Redis.from_url(redis_url)
    with pytest.raises(fencepost.Unsupported, match="AsyncLock"):
        Lock(asyncio_client, name)
    with pytest.raises(fencepost.Unsupported, match="AsyncLock"):
        asyncio_client.lock(name, lock_class=Lock)  # type: ignore[arg-type]
    with pytest.raises(redlock.CannotObtainLock, match="redis.asyncio"):
        redlock.Redlock([asyncio_client])
    with pytest.raises(fencepost.Unsupported, match="redis.asyncio"):
        AsyncLock(client, name)
    assert not client.exists(name)


async def test_a_fencing_token_comes_with_it(aclient: redis.asyncio.Redis, name: str) -> None:
    lock, other = AsyncLock(aclient, name, timeout=10), AsyncLock(aclient, memoryview(name.encode()))
    assert lock.fencing_token is None
    async with lock:
        first = lock.fencing_token
    async with other:
        assert first and other.fencing_token and other.fencing_token > first
    assert other.fencing_token is None
    with pytest.raises(LockError, match="local.token"):
        await lock.acquire(token="mine")


async def test_a_lock_without_a_timeout_is_renewed(
    aclient: redis.asyncio.Redis, client: redis.Redis, name: str
) -> None:
    async with AsyncLock(aclient, name) as lock:
        assert 0 < pttl(client, name) <= 30_000
        with pytest.raises(LockError, match="no timeout"):
            await lock.extend(1)


async def test_a_short_timeout_is_rounded_up(aclient: redis.asyncio.Redis, name: str) -> None:
    lock = AsyncLock(aclient, name, timeout=0.01)
    # A lease of 50 ms may end before this process hears of it: then once more.
    while not lock.fencing_token:
        with contextlib.suppress(redis.exceptions.ConnectionError, LockNotOwnedError):
            assert await lock.acquire()


async def test_one_that_blocks_may_go_on_with_it(
    aclient: redis.asyncio.Redis, client: redis.Redis, name: str
) -> None:
    async with AsyncLock(aclient, name, timeout=10) as lock:
        other = Lock(client, name, timeout=10)
        other.local.token = lock.local.token
        assert other.owned() and other.extend(20)


async def test_a_cancelled_async_lock_leaves_nothing(
    aclient: redis.asyncio.Redis, client: redis.Redis, name: str
) -> None:
    for timeout in (None, 60):
        async with AsyncLock(aclient, name, timeout=timeout):
            waiting = asyncio.create_task(AsyncLock(aclient, name, timeout=timeout).acquire())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        # At every step of an acquisition of its own.
        for steps in range(12):
            taking = asyncio.create_task(AsyncLock(aclient, name, timeout=timeout).acquire())
            for _ in range(steps):
                await asyncio.sleep(0)
            taking.cancel()
            try:
                await taking
            except asyncio.CancelledError:
                pass
            else:
                client.delete(name)
            assert await AsyncLock(aclient, name, timeout=10).acquire(blocking_timeout=LIMIT)
            client.delete(name)
