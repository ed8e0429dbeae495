"""A handle is a key: one that attaches it gets the lock, what a store shows makes none, and nothing that it
says is written."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
import fencepost.aio
from conftest import LIMIT, STORES, Servers, eventually
from fencepost import Changed, Invalid, LockLost, Loss, _loop
from fencepost.testing import Store

TTL = 20.0


@pytest.fixture(params=[*STORES, "memory"])
def store(request: pytest.FixtureRequest, servers: Servers) -> Iterator[fencepost.Locks]:
    """Every store whose locks can be detached."""
    if request.param == "memory":
        yield Store().locks()
        return
    with fencepost.connect(servers.url(request.param)) as locks:
        if not locks.capabilities.detach:
            pytest.skip("its locks end with their process")
        yield locks


def detached(locks: fencepost.Locks, name: str) -> tuple[str, int]:
    guard = locks.lock(name, ttl=TTL, wait=LIMIT).acquire()
    return guard.detach(), guard.token


def test_of_two_that_attach_one_handle_one_gets_the_lock(store: fencepost.Locks, name: str) -> None:
    handle, token = detached(store, name)
    with store.attach(handle, ttl=TTL) as guard:
        assert guard.name == name and guard.token == token
        with pytest.raises(LockLost) as lost:
            store.attach(handle, ttl=TTL)
        assert lost.value.why is Loss.TAKEN
        with pytest.raises(LockLost):
            store.extend(handle, TTL)
        with pytest.raises(LockLost):
            store.release(handle)
        guard.check()
        guard.extend()
        again = guard.detach()
    assert again != handle
    store.release(again)
    eventually("the lock is free", lambda: store.show(name) is None)


def test_a_handle_renews_as_often_as_it_likes(store: fencepost.Locks, name: str) -> None:
    handle, token = detached(store, name)
    for _ in range(3):
        store.extend(handle, 2 * TTL)
    shown = store.show(name)
    assert shown is not None and shown.token == token and (shown.expires_in or 0.0) > TTL
    store.release(handle)
    for use in (
        lambda: store.release(handle),
        lambda: store.extend(handle, TTL),
        lambda: store.attach(handle),
    ):
        with pytest.raises(LockLost):
            use()


def test_a_forged_token_is_refused_and_written_nowhere(store: fencepost.Locks, name: str) -> None:
    handle, token = detached(store, name)
    rest = handle.split(".", 1)[1]
    for forged in (2**53 - 2, token + 1):
        text = f"{forged}.{rest}"
        for use in (
            lambda: store.extend(text, TTL),
            lambda: store.release(text),
            lambda: store.attach(text, ttl=TTL),
        ):
            with pytest.raises(LockLost):
                use()
    shown = store.show(name)
    assert shown is not None and shown.token == token
    store.release(handle)
    with store.lock(name, ttl=TTL, wait=LIMIT) as guard:
        assert token < guard.token < 2**53 - 2


def test_what_a_store_shows_makes_no_handle(store: fencepost.Locks, name: str) -> None:
    handle, token = detached(store, name)
    secret = handle.split(".")[1]
    shown = store.show(name)
    assert shown is not None and shown.owner is not None
    assert secret not in repr(shown) and secret not in repr(store.list(name))
    with pytest.raises(Invalid):
        store.release(f"{token}.{shown.owner}.{name}")
    with pytest.raises(LockLost):
        store.release(f"{token}.{shown.owner.replace('-', '')}.{name}")
    store.release(handle)


def test_a_force_release_takes_the_lock_from_the_holder_that_is_meant(
    store: fencepost.Locks, name: str
) -> None:
    handle, earlier = detached(store, name)
    store.release(handle)
    with store.lock(name, ttl=TTL, wait=LIMIT, ignore_loss=True) as guard:
        for now in (False, True):
            with pytest.raises(Changed) as changed:
                store.force_release(name, "for a test", now=now, token=earlier)
            assert changed.value.name == name and not changed.value.transient
            assert changed.value.holder is not None and changed.value.holder.token == guard.token
        guard.extend()
        guard.check()
        revoked = store.force_release(name, "for a test", token=guard.token)
        assert revoked is not None and revoked.holder.token == guard.token < revoked.token
        assert guard.wait_lost(LIMIT) is Loss.FORCE_RELEASED
    eventually("the victim has let go", lambda: store.show(name) is None)
    assert store.force_release(name, "for a test", token=earlier) is None


@pytest.mark.parametrize("wrong", [0, -1, 2**53, True, "7", 1.0])
def test_what_is_no_token_is_refused(locks: fencepost.Locks, name: str, wrong: Any) -> None:
    with locks.lock(name) as guard:
        with pytest.raises(Invalid, match="token"):
            locks.force_release(name, "for a test", token=wrong)
        guard.extend()


def test_an_error_never_has_the_secret(locks: fencepost.Locks, name: str) -> None:
    handle, _ = detached(locks, name)
    secret = handle.split(".")[1]
    for wrong in (
        handle[1:].replace(".", "", 1),
        "x" + handle,
        handle.encode(),
        handle + "\n",
        None,
        [handle],
    ):
        bad: Any = wrong
        for use in (lambda: locks.release(bad), lambda: locks.attach(bad), lambda: locks.extend(bad, TTL)):
            with pytest.raises(fencepost.Error) as error:
                use()
            assert secret not in str(error.value) + repr(error.value) + repr(vars(error.value))
    guard = locks.attach(handle)
    assert secret not in repr(guard) + repr(guard.owner) + repr(guard.state)
    guard.release()
    with pytest.raises(LockLost) as lost:
        locks.release(handle)
    assert secret not in repr(lost.value) + str(lost.value)


def test_a_long_name_that_grows_in_a_handle_is_attached(locks: fencepost.Locks, name: str) -> None:
    """Percent-encoded it has more characters than a name may have."""
    long = f"{name} {'ü' * 200}"
    handle, _ = detached(locks, long)
    with locks.attach(handle) as guard:
        assert guard.name == long


async def cut_off(task: asyncio.Task[Any], answered: bool) -> None:
    """Cancels a task that waits for its call, before or after the answer has come, which it never sees."""
    await asyncio.sleep(0)
    if answered:
        bell = _loop._bridges[asyncio.get_running_loop()]._native.fileno()
        assert select.select([bell], [], [], LIMIT)[0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("answered", [False, True])
async def test_a_cancelled_release_or_detach_leaves_none(redis_url: str, name: str, answered: bool) -> None:
    async with await fencepost.aio.connect(redis_url) as locks:
        lock = locks.lock(name, ttl=600, wait=LIMIT)
        for _ in range(5):
            handle = await (await lock.acquire()).detach()
            await cut_off(asyncio.create_task(locks.release(handle)), answered)
            guard = await lock.acquire()
            await cut_off(asyncio.create_task(guard.detach()), answered)
        await (await lock.acquire()).release()


@pytest.mark.parametrize("answered", [False, True])
async def test_a_cancelled_attach_leaves_its_handle_or_none(
    redis_url: str, name: str, answered: bool
) -> None:
    async with await fencepost.aio.connect(redis_url) as locks:
        for _ in range(5):
            handle = await (await locks.lock(name, ttl=600, wait=LIMIT).acquire()).detach()
            await cut_off(asyncio.create_task(locks.attach(handle, ttl=600)), answered)
            async with asyncio.timeout(LIMIT):
                while await locks.show(name):
                    try:
                        await locks.release(handle)
                        assert not answered, "who attached it has used the handle up"
                    except LockLost:
                        await asyncio.sleep(0.002)


async def test_the_same_for_asyncio(name: str) -> None:
    locks = Store().aio_locks()
    guard = await locks.lock(name, ttl=TTL).acquire()
    with pytest.raises(Changed):
        await locks.force_release(name, "for a test", token=guard.token + 1)
    handle = await guard.detach()
    await locks.extend(handle, TTL)
    async with await locks.attach(handle, ttl=TTL) as guard:
        for use in (locks.attach(handle), locks.extend(handle, TTL), locks.release(handle)):
            with pytest.raises(LockLost):
                await use
        handle = await guard.detach()
    await locks.release(handle)
    wrong: Any = handle.encode()
    with pytest.raises(Invalid):
        await locks.release(wrong)
