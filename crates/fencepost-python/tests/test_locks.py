"""What every store promises through the blocking interface, and how blocks end."""

from __future__ import annotations

import contextlib
import datetime
import gc
import pickle
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import fencepost
from conftest import LIMIT, eventually
from fencepost import Busy, Invalid, LockLost, LockTimeout, Loss, Retry

TTL = 8.0
"""Within what every store grants: a ZooKeeper session lasts no less than twice its server's tick."""


def test_one_at_a_time_with_growing_tokens(store_url: str, name: str) -> None:
    with fencepost.connect(store_url) as locks:
        with locks.lock(name, ttl=TTL, wait=5, note="at work") as first:
            assert first.name == name and first.token > 0 and first.owner
            assert first.state.kind == "held" and not first.state.lost
            assert first.valid_for is None or 0 < first.valid_for <= TTL
            first.check()
            assert locks.lock(name, ttl=TTL).try_acquire() is None
            with pytest.raises(Busy) as busy:
                locks.lock(name, ttl=TTL, wait=0).acquire()
            assert busy.value.name == name and busy.value.transient
            shown = locks.show(name)
            assert shown is not None and shown.token == first.token
            assert name in [holder.name for holder in locks.list(name)]
        assert not first.state.held
        second = locks.lock(name, ttl=TTL).try_acquire()
        assert second is not None and second.token > first.token
        second.release()
        assert locks.show(name) is None


def test_a_timeout_names_the_holder(locks: fencepost.Locks, name: str) -> None:
    with locks.lock(name, note="nightly"):
        with pytest.raises(LockTimeout) as timeout:
            locks.lock(name, wait=2).acquire()
    error = timeout.value
    assert isinstance(error, TimeoutError) and error.waited >= 2
    assert error.holder is not None and error.holder.note == "nightly" and error.holder.pid
    assert isinstance(error.holder.since, datetime.datetime)
    again = pickle.loads(pickle.dumps(error))
    assert again.holder == error.holder and str(again) == str(error) and "nightly" in str(error)


def test_durations_are_seconds_or_timedeltas(locks: fencepost.Locks, name: str) -> None:
    with locks.lock(name, ttl=datetime.timedelta(minutes=2)) as guard:
        assert guard.valid_for is not None and 60 < guard.valid_for <= 120
        left = guard.extend(datetime.timedelta(minutes=5))
        assert left is not None and left > 200


@pytest.mark.parametrize(
    ("option", "value"),
    [("ttl", -1), ("ttl", float("nan")), ("ttl", 1e300), ("ttl", "10s"), ("wait", True), ("retry", 3)]
    + [("max_hold", -1), ("note", None), ("note", 5), ("note", "\ud800")],
)
def test_bad_options_are_refused_when_given(
    locks: fencepost.Locks, name: str, option: str, value: object
) -> None:
    chosen: Any = {option: value}
    uses: list[Any] = [locks.lock, locks.guarded, lambda name, **chosen: locks.all([name], **chosen)]
    for use in uses:
        with pytest.raises(Invalid, match=option):
            use(name, **chosen)


@pytest.mark.parametrize("bad", ["", "a\0b", "x" * 513, "\ud800", 5, None, b"x"])
def test_bad_names_are_refused_when_given(locks: fencepost.Locks, bad: Any) -> None:
    for use in (lambda: locks.lock(bad), lambda: locks.all(["a", bad]), lambda: locks.guarded(bad)):
        with pytest.raises(Invalid, match="name"):
            use()


def test_a_decorator_refuses_what_lock_would_refuse(locks: fencepost.Locks) -> None:
    with pytest.raises(TypeError, match="tll"):
        locks.guarded("report:{day}", tll=5)
    for attempts in (0, 2.5, True, "3"):
        with pytest.raises(Invalid, match="attempts"):
            Retry.fixed(1, attempts=attempts)  # type: ignore[arg-type]


def test_bad_urls_names_and_ttls_change_nothing(locks: fencepost.Locks) -> None:
    for url in ("nonsense", "redis://x?ttl=soon", "gopher://x"):
        with pytest.raises(Invalid):
            fencepost.connect(url)
    with pytest.raises(ValueError):
        locks.lock("a", ttl=0.001).acquire()


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:{}@127.0.0.1:1?timeout=200ms",
        "rediss://me:{}@127.0.0.1:1?timeout=200ms",
        "redlock://me:{}@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?timeout=200ms",
        "redlock:redis://me:{}@127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3?timeout=200ms",
        "postgres://me:{}@127.0.0.1:1/shop?timeout=200ms",
        "etcd://me:{}@127.0.0.1:1?timeout=200ms",
        "zookeeper://me:{}@127.0.0.1:1?timeout=200ms",
    ],
)
def test_a_password_is_never_shown_by_an_error(url: str) -> None:
    password = "-".join(["hunter", "2"])
    with pytest.raises(fencepost.Unavailable) as error:
        fencepost.connect(url.format(password))
    raised = error.value
    assert "127.0.0.1:1" in str(raised)
    for shown in (str(raised), repr(raised), repr(vars(raised)), "".join(traceback.format_exception(raised))):
        assert password not in shown
    for wrong in ("{}", "{}x", "{}?colour=blue", "{}#"):
        with pytest.raises(fencepost.Error) as refused:
            fencepost.connect(wrong.format(url.format(password)).replace(":1", ":port", 1))
        assert password not in repr(refused.value)


def test_a_password_is_never_shown_by_what_is_connected(servers: Any, name: str) -> None:
    url: str = servers.ask("start redis")
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", "hunter2")
    with fencepost.connect(url.replace("://", "://:hunter2@")) as locks:
        with locks.lock(name) as guard:
            objects = [locks, locks.lock(name), locks.all([name]), guard, guard.state, locks.show(name)]
            for shown in [*objects, locks.capabilities]:
                assert "hunter2" not in repr(shown) + str(shown) + repr(getattr(shown, "__dict__", ""))


def test_a_loss_is_raised_at_the_end_of_the_block(locks: fencepost.Locks, name: str) -> None:
    with pytest.raises(LockLost) as lost:
        with locks.lock(name) as guard:
            locks.force_release(name, "for a test")
            assert guard.wait_lost(LIMIT) is Loss.FORCE_RELEASED
            with pytest.raises(LockLost):
                guard.check()
    assert lost.value.why is Loss.FORCE_RELEASED and lost.value.reason == "for a test"
    assert pickle.loads(pickle.dumps(lost.value)).reason == "for a test"


def test_a_loss_does_not_mask_the_blocks_own_error(locks: fencepost.Locks, name: str) -> None:
    with pytest.raises(KeyError) as raised:
        with locks.lock(name) as guard:
            locks.force_release(name, "for a test")
            guard.wait_lost(LIMIT)
            raise KeyError("mine")
    assert isinstance(raised.value.__context__, LockLost)


def test_a_loss_can_be_ignored(locks: fencepost.Locks, name: str) -> None:
    with locks.lock(name, ignore_loss=True) as guard:
        locks.force_release(name, "for a test")
        guard.wait_lost(LIMIT)
    assert guard.state.lost


def test_on_lost_is_told_once_and_only_of_a_loss(locks: fencepost.Locks, name: str) -> None:
    told: list[Loss] = []
    with locks.lock(name + ":kept") as kept:
        kept.on_lost(told.append)
    guard = locks.lock(name).acquire()
    guard.on_lost(told.append)
    locks.force_release(name, "for a test")
    eventually("the callback was called", lambda: told)
    assert told == [Loss.FORCE_RELEASED]
    with pytest.raises(LockLost):
        guard.release()


def test_a_callback_that_ends_its_thread_ends_no_others(locks: fencepost.Locks, name: str) -> None:
    told: list[Loss] = []
    first, second = locks.lock(name + ":a").acquire(), locks.lock(name + ":b").acquire()
    left = threading.Event()

    def leave(why: Loss) -> None:
        left.set()
        sys.exit()

    first.on_lost(leave)
    second.on_lost(told.append)
    locks.force_release(first.name, "for a test")
    assert left.wait(LIMIT)
    locks.force_release(second.name, "for a test")
    eventually("the other is told", lambda: told == [Loss.FORCE_RELEASED])
    for guard in (first, second):
        with pytest.raises(LockLost):
            guard.release()


def test_a_block_may_be_left_by_another_thread(locks: fencepost.Locks, name: str) -> None:
    """As FastAPI does with a dependency that yields: it is entered in one thread of a pool and left in
    another."""
    lock = locks.lock(name)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        guard = one.submit(lock.__enter__).result(LIMIT)
        assert guard.state.held
        other.submit(lock.__exit__, None, None, None).result(LIMIT)
        assert locks.show(name) is None
        with pytest.raises(Invalid, match="not entered"):
            lock.__exit__(None, None, None)


def test_ctrl_c_on_the_way_into_a_block_leaves_nothing_behind(locks: fencepost.Locks, name: str) -> None:
    for lock in (locks.lock(name), locks.all([name, name + ":b"])):
        push = lock._entered.push

        def interrupted(guard: Any) -> None:
            push(guard)
            raise KeyboardInterrupt

        lock._entered.push = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            lock.__enter__()
        eventually("it is given back", lambda: locks.list(name) == [])
        with pytest.raises(Invalid):
            lock.__exit__(None, None, None)


@pytest.mark.parametrize("end", ["release", "detach"])
def test_ctrl_c_on_the_way_into_a_release_still_releases(locks: fencepost.Locks, name: str, end: str) -> None:
    guard = locks.lock(name).acquire()

    class Interrupted:
        let_go = guard._native.let_go

        def release(self) -> None:
            raise KeyboardInterrupt

        detach = release

    guard._native = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        getattr(guard, end)()
    eventually("it is given back", lambda: locks.show(name) is None)


def test_wait_lost_ends_with_the_guard_and_with_its_timeout(locks: fencepost.Locks, name: str) -> None:
    guard = locks.lock(name).acquire()
    assert guard.wait_lost(0.01) is None
    answers: list[Loss | None] = []
    waiting = threading.Thread(target=lambda: answers.append(guard.wait_lost()))
    waiting.start()
    guard.release()
    waiting.join(LIMIT)
    assert answers == [None]


def test_a_guard_is_released_once(locks: fencepost.Locks, name: str) -> None:
    guard = locks.lock(name).acquire()
    guard.release()
    for again in (guard.release, guard.extend, guard.detach, guard.check):
        with pytest.raises(Invalid, match="released"):
            again()
    with locks.lock(name) as guard:
        guard.release()
    assert locks.show(name) is None


def test_a_guard_that_is_let_go_is_released_with_a_warning(locks: fencepost.Locks, name: str) -> None:
    with pytest.warns(ResourceWarning, match="without release"):
        guard = locks.lock(name).acquire()
        guard.on_lost(print)
        del guard
        gc.collect()
    eventually("the lock is free", lambda: locks.show(name) is None)


def test_a_forgotten_guard_is_released_while_its_warning_is_kept(locks: fencepost.Locks, name: str) -> None:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        guard = locks.lock(name).acquire()
        del guard
        gc.collect()
        assert [warning.category for warning in recorded] == [ResourceWarning]
        eventually("the lock is free", lambda: locks.show(name) is None)
    assert recorded


def test_a_forgotten_guard_is_released_if_its_warning_is_an_error(locks: fencepost.Locks, name: str) -> None:
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(sys, "unraisablehook", kept.append)
        guard = locks.lock(name).acquire()
        del guard
        gc.collect()
    assert kept and kept[0].exc_type is ResourceWarning
    eventually("the lock is free", lambda: locks.show(name) is None)


@pytest.mark.filterwarnings("ignore:guard of lock:ResourceWarning")
def test_close_waits_for_what_was_let_go(locks: fencepost.Locks, redis_url: str, name: str) -> None:
    for _ in range(200):
        with fencepost.connect(redis_url) as own:
            own.lock(name, ttl=60).acquire()
        assert locks.show(name) is None


def test_a_detached_lock_goes_on_elsewhere(locks: fencepost.Locks, name: str) -> None:
    handle = locks.lock(name, ttl=60).acquire().detach()
    locks.extend(handle, 120)
    guard = locks.attach(handle, ttl=60)
    assert guard.name == name
    handle = guard.detach()
    locks.release(handle)
    with pytest.raises(LockLost):
        locks.release(handle)
    with pytest.raises(Invalid):
        locks.attach("no handle")


def test_several_locks_at_once(locks: fencepost.Locks, name: str) -> None:
    names = [f"{name}:{part}" for part in "cab"]
    with locks.all(names, wait=5) as guards:
        assert list(guards.tokens) == sorted(names) and len(guards) == 3
        assert guards.state.kind == "held" and guards.valid_for
        guards.check()
        assert locks.all(names).try_acquire() is None
        with pytest.raises(Busy):
            locks.all([*names, "another"], wait=0).acquire()
    assert locks.list(name) == []
    with pytest.raises(LockLost):
        with locks.all(names) as guards:
            locks.force_release(names[0], "for a test")
            eventually("a part is lost", lambda: guards.state.lost)
    eventually("all are free", lambda: locks.list(name) == [])
    with pytest.raises(Invalid):
        locks.all("abc")


def test_a_decorated_function_runs_under_its_lock(locks: fencepost.Locks, name: str) -> None:
    @locks.guarded(name + ":{day}", inject="guard", ttl=10, wait=0)
    def report(day: str, *, guard: fencepost.Guard) -> str:
        """Documented."""
        with pytest.raises(Busy):
            report(day)
        return guard.name

    assert report("monday") == f"{name}:monday" and report.__doc__ == "Documented."
    assert report(day="tuesday") == f"{name}:tuesday"

    with pytest.raises(Invalid, match="wrong"):
        locks.guarded("{wrong}")(lambda day: day)
    with pytest.raises(Invalid, match="generator"):

        @locks.guarded("x")
        def numbers():  # type: ignore[no-untyped-def]
            yield 1

    with pytest.raises(Invalid, match="aio"):

        @locks.guarded("x")
        async def later() -> None: ...


def test_a_decorated_function_that_returns_unfinished_work_is_refused(
    locks: fencepost.Locks, name: str
) -> None:
    async def work() -> None:
        raise AssertionError("it ran without its lock")

    def begin() -> object:
        return work()

    with pytest.raises(Invalid, match="awaitable"):
        locks.guarded(name)(begin)()
    assert locks.show(name) is None


def test_polling_by_a_schedule(locks: fencepost.Locks, name: str) -> None:
    with locks.lock(name):
        for retry in (
            Retry.fixed(0.001, attempts=3),
            Retry.exponential(0.001, 0.002, attempts=3, jitter=True),
            Retry.after([0.001, datetime.timedelta(milliseconds=1)]),
        ):
            with pytest.raises(LockTimeout):
                locks.lock(name, retry=retry).acquire()
    with pytest.raises(Invalid):
        Retry.fixed(0.1, attempts=0)


def test_threads_share_a_lock(locks: fencepost.Locks, name: str) -> None:
    lock, inside, most = locks.lock(name), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert most == 1 and locks.stats()["acquired"] == 80 and locks.stats()["held_now"] == 0


def test_renewal_keeps_a_short_lease(locks: fencepost.Locks, name: str) -> None:
    with locks.lock(name, ttl=3) as guard:
        eventually("it was renewed", lambda: locks.stats()["renewed"] >= 4)
        guard.check()


def test_a_lost_answer_to_the_release_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    from fencepost.testing import Store

    store = Store()
    locks = store.locks()
    with locks.lock("a"):
        store.lose_answers("release")
    assert "unknown" in caplog.text
    with pytest.raises(fencepost.Uncertain):
        guard = locks.lock("a").acquire()
        store.lose_answers("release")
        guard.release()


def test_what_a_store_says_of_itself(locks: fencepost.Locks, redis_url: str) -> None:
    assert locks.capabilities.store == redis_url and locks.capabilities.leases
    assert locks.default_ttl == 30.0
    assert repr(locks) == f"<fencepost._locks.Locks {redis_url}>"
    locks.check()
    stats = locks.stats()
    assert stats["acquired"] == 0 and stats["waiting"]["total"] == 0.0
    with pytest.raises(TypeError):
        pickle.dumps(locks)


def test_closed_locks_say_so_and_keep_no_connection(redis_url: str) -> None:
    import os

    def sockets() -> int:
        found = 0
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        return found

    before = sockets()
    locks = fencepost.connect(redis_url)
    with locks.lock("a"):
        assert sockets() > before
    locks.close()
    eventually("the connections are closed", lambda: sockets() <= before)
    locks.close()
    with pytest.raises(Invalid, match="closed"):
        locks.lock("a").acquire()


def test_an_error_says_what_each_node_said(servers, name: str) -> None:  # type: ignore[no-untyped-def]
    url = servers.ask("nodes 3")
    with fencepost.connect(url) as locks:

        def said() -> dict[str, str]:
            with pytest.raises(fencepost.Unavailable) as unavailable:
                locks.lock(name, wait=1).acquire()
            assert len(unavailable.value.nodes) == 3
            return unavailable.value.nodes

        eventually(
            "every node answers in time", lambda: all("does not vote" in word for word in said().values())
        )
