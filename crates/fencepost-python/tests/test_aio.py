"""The asyncio interface: the same promises, and cancellation at every await."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio

import fencepost.aio
from conftest import LIMIT, eventually
from fencepost import Busy, Invalid, LockLost, LockTimeout, Loss
from fencepost.testing import Clock, Store

TTL = 8.0


@pytest_asyncio.fixture
async def alocks(redis_url: str) -> AsyncIterator[fencepost.aio.Locks]:
    async with await fencepost.aio.connect(redis_url) as connected:
        yield connected


async def until(look: Any) -> None:
    async with asyncio.timeout(LIMIT):
        while not await look():
            await asyncio.sleep(0.002)


async def test_one_at_a_time_with_growing_tokens(store_url: str, name: str) -> None:
    async with await fencepost.aio.connect(store_url) as locks:
        async with locks.lock(name, ttl=TTL, wait=5) as first:
            assert first.state.kind == "held" and first.name == name
            assert await locks.lock(name, ttl=TTL).try_acquire() is None
            with pytest.raises(Busy):
                await locks.lock(name, ttl=TTL, wait=0).acquire()
            shown = await locks.show(name)
            assert shown is not None and shown.token == first.token
            assert name in [holder.name for holder in await locks.list(name)]
        second = await locks.lock(name, ttl=TTL).try_acquire()
        assert second is not None and second.token > first.token
        await second.release()
        assert await locks.show(name) is None


async def test_many_tasks_take_turns(alocks: fencepost.aio.Locks, name: str) -> None:
    lock, inside, tokens = alocks.lock(name), 0, []

    async def work() -> None:
        nonlocal inside
        for _ in range(5):
            async with lock as guard:
                inside += 1
                assert inside == 1
                tokens.append(guard.token)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert tokens == sorted(set(tokens)) and len(tokens) == 100


async def test_a_timeout_names_the_holder(alocks: fencepost.aio.Locks, name: str) -> None:
    async with alocks.lock(name, note="nightly"):
        with pytest.raises(LockTimeout) as timeout:
            await alocks.lock(name, wait=2).acquire()
    assert timeout.value.holder is not None and timeout.value.holder.note == "nightly"


async def test_a_loss_is_raised_at_the_end_of_the_block(alocks: fencepost.aio.Locks, name: str) -> None:
    with pytest.raises(LockLost) as lost:
        async with alocks.lock(name) as guard:
            await alocks.force_release(name, "for a test")
            assert await asyncio.wait_for(guard.wait_lost(), LIMIT) is Loss.FORCE_RELEASED
    assert lost.value.reason == "for a test"
    with pytest.raises(KeyError) as raised:
        async with alocks.lock(name) as guard:
            await alocks.force_release(name, "for a test")
            await guard.wait_lost()
            raise KeyError("mine")
    assert isinstance(raised.value.__context__, LockLost)


async def test_a_task_is_cancelled_when_its_lock_is_lost(alocks: fencepost.aio.Locks, name: str) -> None:
    with pytest.raises(LockLost) as lost:
        async with alocks.lock(name, cancel_on_loss=True):
            await alocks.force_release(name, "for a test")
            await asyncio.sleep(LIMIT)
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    # Cancelled by somebody else: theirs goes on.
    entered = asyncio.Event()

    async def work() -> None:
        async with alocks.lock(name, cancel_on_loss=True):
            entered.set()
            await asyncio.sleep(LIMIT)

    other = asyncio.create_task(work())
    await entered.wait()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert await alocks.show(name) is None


async def test_a_task_that_was_cancelled_before_still_ends_with_the_loss(
    alocks: fencepost.aio.Locks, name: str
) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(LIMIT)
    except asyncio.CancelledError:
        pass
    with pytest.raises(LockLost):
        async with alocks.lock(name, cancel_on_loss=True):
            await alocks.force_release(name, "for a test")
            await asyncio.sleep(LIMIT)
    assert task.cancelling() == 1
    task.uncancel()


async def test_a_watched_guard_that_is_let_go_is_released(alocks: fencepost.aio.Locks, name: str) -> None:
    with pytest.warns(ResourceWarning, match="without release"):
        guard = await alocks.lock(name, cancel_on_loss=True).acquire()
        await guard.__aenter__()
        await asyncio.sleep(0)
        del guard
        gc.collect()

    async def free() -> bool:
        return await alocks.show(name) is None

    await until(free)


async def test_a_block_may_be_left_by_another_task(alocks: fencepost.aio.Locks, name: str) -> None:
    lock = alocks.lock(name)
    guard = await asyncio.create_task(lock.__aenter__())
    assert guard.state.held
    await asyncio.create_task(lock.__aexit__(None, None, None))
    assert await alocks.show(name) is None
    with pytest.raises(Invalid, match="not entered"):
        await lock.__aexit__(None, None, None)


async def test_on_lost_is_told_in_the_loop(alocks: fencepost.aio.Locks, name: str) -> None:
    told: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
    guard = await alocks.lock(name).acquire()
    guard.on_lost(told.set_result)
    await alocks.force_release(name, "for a test")
    assert await asyncio.wait_for(told, LIMIT) is Loss.FORCE_RELEASED
    with pytest.raises(LockLost):
        await guard.release()


async def test_a_guard_that_is_let_go_is_released_with_a_warning(
    alocks: fencepost.aio.Locks, name: str
) -> None:
    with pytest.warns(ResourceWarning, match="without release"):
        guard = await alocks.lock(name).acquire()
        guard.on_lost(print)
        await asyncio.sleep(0)
        del guard
        gc.collect()

    async def free() -> bool:
        return await alocks.show(name) is None

    await until(free)


async def test_several_locks_and_handles(alocks: fencepost.aio.Locks, name: str) -> None:
    names = [f"{name}:{part}" for part in "ba"]
    async with alocks.all(names, wait=5) as guards:
        assert list(guards.tokens) == sorted(names)
        assert await alocks.all(names).try_acquire() is None
    handle = await (await alocks.lock(name, ttl=60).acquire()).detach()
    await alocks.extend(handle, 90)
    await (await alocks.attach(handle)).release()
    assert await alocks.list(name) == []


async def test_a_decorated_coroutine_runs_under_its_lock(alocks: fencepost.aio.Locks, name: str) -> None:
    @alocks.guarded(name + ":{day}", inject="guard", wait=0)
    async def report(day: str, guard: fencepost.aio.Guard) -> str:
        with pytest.raises(Busy):
            await report(day)
        return guard.name

    assert await report("monday") == f"{name}:monday"
    with pytest.raises(Invalid):
        alocks.guarded("x")(lambda: None)  # type: ignore[type-var]


# Cancellation. Each step of a call is cut off once, by letting the loop turn so many times before it is
# cancelled.


LONG = 60.0
"""A ttl that is longer than anybody here waits: what a cancelled call leaves behind is found."""


@pytest_asyncio.fixture
async def slocks(shared_url: str) -> AsyncIterator[fencepost.aio.Locks]:
    """Locks on every store in turn."""
    async with await fencepost.aio.connect(shared_url) as connected:
        yield connected


async def cancelled_after(turns: int, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Whether the coroutine was cancelled before it ended."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
        return False
    except asyncio.CancelledError:
        return True


async def nothing_left(locks: fencepost.aio.Locks, name: str) -> None:
    """Waits until nobody holds a lock whose name starts like this, less long than one lasts that was left
    behind."""
    async with asyncio.timeout(LONG / 2):
        while await locks.list(name):
            await asyncio.sleep(0.002)
        # A request that is still on its way comes before this one, or gets the lock when this one gives it
        # back.
        async with locks.lock(name, ttl=LONG):
            pass
        while await locks.list(name):
            await asyncio.sleep(0.002)


async def test_cancelling_acquire_at_any_point_leaves_nothing_behind(
    slocks: fencepost.aio.Locks, name: str
) -> None:
    """Sweeps over the moments of a real acquire, from before it is sent to after its answer has come."""
    cut = done = turns = 0
    while done < 5:
        guards: list[fencepost.aio.Guard] = []

        async def acquire() -> None:
            guards.append(await slocks.lock(name, ttl=LONG).acquire())

        if await cancelled_after(turns, acquire()):
            cut += 1
            assert not guards
        else:
            done += 1
            await guards[0].release()
        turns += 1
        await nothing_left(slocks, name)
    assert cut >= 3 and slocks.stats()["held_now"] == 0


async def test_cancelling_a_waiter_leaves_its_place(slocks: fencepost.aio.Locks, name: str) -> None:
    async with slocks.lock(name, ttl=LONG) as first:
        for turns in (*range(1, 60, 7), 300, 1000):
            assert await cancelled_after(turns, slocks.lock(name, ttl=LONG).acquire())
        shown = await slocks.show(name)
        assert shown is not None and shown.token == first.token
    await nothing_left(slocks, name)


async def test_a_cancelled_waiter_leaves_the_queue(
    alocks: fencepost.aio.Locks, redis_url: str, name: str
) -> None:
    """On Redis, where a queue with somebody in it is a key beside the lock and its fence."""
    async with redis.asyncio.Redis.from_url(redis_url) as client, alocks.lock(name, ttl=LONG):
        for turns in range(1, 60, 7):
            assert await cancelled_after(turns, alocks.lock(name, ttl=LONG).acquire())

        async def alone() -> bool:
            return len(await client.keys(f"*{name}*")) == 2

        await until(alone)
    async with alocks.lock(name, ttl=LONG, wait=5):
        pass


async def test_cancelling_release_at_any_point_still_releases(slocks: fencepost.aio.Locks, name: str) -> None:
    cut = 0
    for turns in range(1, 20):
        guard = await slocks.lock(name, ttl=LONG).acquire()
        cut += await cancelled_after(turns, guard.release())
        await nothing_left(slocks, name)
    assert cut >= 3


async def test_cancelling_a_block_at_any_point_leaves_nothing_behind(
    slocks: fencepost.aio.Locks, name: str
) -> None:
    async def block() -> None:
        async with slocks.lock(name, ttl=LONG) as guard:
            await guard.extend()
            await asyncio.sleep(0)
        async with slocks.all([name, name + ":b"], ttl=LONG):
            await asyncio.sleep(0)

    finished = cut = turns = 0
    while finished < 3:
        if await cancelled_after(turns, block()):
            cut += 1
        else:
            finished += 1
        # Slower stores have more turns, and no more places to be cut off.
        turns += 1 + turns // 50
        await nothing_left(slocks, name)
    assert cut > 10


async def test_a_coroutine_that_is_thrown_away_leaves_nothing_behind(
    slocks: fencepost.aio.Locks, name: str
) -> None:
    coroutine = slocks.lock(name, ttl=LONG).acquire()
    future = coroutine.send(None)
    assert isinstance(future, asyncio.Future)
    coroutine.close()
    await nothing_left(slocks, name)


async def test_a_result_that_comes_with_the_cancellation_is_given_back(name: str) -> None:
    """The answer is there and the task is cancelled in the same turn of the loop: asyncio throws the answer
    away."""
    store = Store()
    locks = store.aio_locks()
    task = asyncio.ensure_future(locks.lock(name).acquire())
    await asyncio.sleep(0)
    # No turn of the loop in between: the answer is not delivered yet.
    eventually("the lock is granted", lambda: store.held)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(LIMIT):
        while store.held:
            await asyncio.sleep(0.001)


def test_a_loop_that_is_closed_early_is_quiet(
    redis_url: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A call is still under way when its loop is closed; nobody complains, and nothing is left behind."""
    loop = asyncio.new_event_loop()
    blocking = fencepost.connect(redis_url)
    with blocking.lock(name):
        locks = loop.run_until_complete(fencepost.aio.connect(redis_url))
        waiting = locks.lock(name, ttl=600).acquire()

        async def begin() -> None:
            waiting.send(None)

        loop.run_until_complete(begin())
        loop.close()
        waiting.close()
        del waiting, loop
        gc.collect()
    with blocking.lock(name, wait=LIMIT):
        pass
    locks._end()
    blocking.close()
    assert capfd.readouterr().err == ""


def test_each_loop_may_use_the_same_locks(redis_url: str, name: str) -> None:
    async def use(locks: fencepost.aio.Locks) -> int:
        async with locks.lock(name) as guard:
            return guard.token

    locks = asyncio.run(fencepost.aio.connect(redis_url))
    first, second = asyncio.run(use(locks)), asyncio.run(use(locks))
    assert second > first
    asyncio.run(locks.close())


def test_uvloop(redis_url: str, name: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        async with await fencepost.aio.connect(redis_url) as locks:
            async with locks.lock(name):
                assert await cancelled_after(3, locks.lock(name).acquire())
            async with locks.lock(name, wait=5):
                pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())


async def test_a_clock_moves_in_a_loop() -> None:
    clock = Clock()
    locks = Store(clock).aio_locks()
    async with locks.lock("a", ttl=30) as guard:
        await clock.advance_async(600)
        guard.check()
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=30):
            clock.leap(60)
