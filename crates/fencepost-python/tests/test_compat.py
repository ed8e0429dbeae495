"""The call shapes of redis-py's Lock and of redlock-py: what their own tests ask of them, and both at work on
one key."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError, RedisError

import fencepost
from conftest import LIMIT, eventually, in_child
from fencepost.compat import redlock
from fencepost.compat.redis_lock import Lock


FORKED = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    connected = redis.Redis.from_url(redis_url)
    yield connected
    connected.close()


def pttl(client: redis.Redis, name: str) -> int:
    return int(client.pttl(name))


def test_a_lock_is_taken_and_given_back(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name)
    assert lock.acquire(blocking=False)
    assert client.get(name) is not None and lock.local.token is not None and lock.fencing_token
    # Never without an end: renewed instead.
    assert 0 < pttl(client, name) <= 30_000
    lock.release()
    assert client.get(name) is None and lock.local.token is None


def test_it_can_be_had_from_the_client(client: redis.Redis, name: str) -> None:
    lock = client.lock(name, timeout=10, lock_class=Lock)
    assert isinstance(lock, Lock)
    with lock:
        assert lock.owned()


def test_locked_is_anybodys_and_owned_is_ones_own(client: redis.Redis, name: str) -> None:
    first, second = Lock(client, name), Lock(client, name, timeout=10)
    assert not first.locked() and not first.owned()
    assert second.acquire(blocking=False)
    assert first.locked() and second.locked() and second.owned() and not first.owned()
    second.release()
    assert not first.locked() and not second.owned()


def test_competing_locks(client: redis.Redis, name: str) -> None:
    first, second = Lock(client, name), Lock(client, name)
    assert first.acquire(blocking=False) and not second.acquire(blocking=False)
    first.release()
    assert second.acquire(blocking=False) and not first.acquire(blocking=False)
    second.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_a_timeout_is_the_keys(client: redis.Redis, name: str, timeout: float) -> None:
    lock = Lock(client, name, timeout=timeout)
    assert lock.acquire(blocking=False)
    assert timeout * 1000 - 2000 < pttl(client, name) <= timeout * 1000
    lock.release()


def insisting(take: Callable[[], Any]) -> Any:
    """What `take` returns. A lease of 50 ms may end before this process hears of it: then once more."""
    while True:
        try:
            return take()
        except (redis.exceptions.ConnectionError, LockNotOwnedError, redlock.MultipleRedlockException):
            pass


def test_a_short_timeout_is_rounded_up_and_none_is_none(client: redis.Redis, name: str) -> None:
    assert insisting(lambda: Lock(client, name, timeout=0.01).acquire(blocking_timeout=LIMIT))
    lock = Lock(client, name, timeout=0, blocking_timeout=LIMIT)
    assert lock.acquire() and pttl(client, name) > 10_000
    with pytest.raises(LockError, match="no timeout"):
        lock.extend(1)
    lock.release()
    for wrong in (-1, "5"):
        with pytest.raises(LockError):
            Lock(client, name, timeout=wrong).acquire()  # type: ignore[arg-type]
    with pytest.raises(LockError, match="UTF-8"):
        Lock(client, b"\xff")


def test_a_blocking_timeout_ends_a_wait(client: redis.Redis, name: str) -> None:
    first = Lock(client, name)
    assert first.acquire(blocking=False)
    assert not Lock(client, name, blocking_timeout=0.05).acquire()
    assert not Lock(client, name).acquire(blocking_timeout=0.05)
    with pytest.raises(LockError):
        with Lock(client, name, blocking_timeout=0.05):
            pass
    first.release()


def test_a_foreign_value_is_somebody_elses(client: redis.Redis, name: str) -> None:
    client.set(name, "bar")
    with pytest.raises(LockError):
        with Lock(client, name, blocking=False):
            pass
    client.delete(name)


def test_a_block_gives_back(client: redis.Redis, name: str) -> None:
    with Lock(client, name, timeout=10, blocking_timeout=0.2) as lock:
        assert lock.owned()
    assert client.get(name) is None


@pytest.mark.parametrize("timeout", [None, 10])
def test_misuse_of_an_unlocked_lock(client: redis.Redis, name: str, timeout: float | None) -> None:
    lock = Lock(client, name, timeout=timeout)
    for use in (lock.release, lock.reacquire, lambda: lock.extend(10)):
        with pytest.raises(LockError):
            use()
    if timeout is None:
        lock.acquire()
        for use in (lock.reacquire, lambda: lock.extend(10)):
            with pytest.raises(LockError, match="no timeout"):
                use()
        lock.release()


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_lock_that_is_not_owned_any_more(client: redis.Redis, name: str, timeout: float | None) -> None:
    lock = Lock(client, name, timeout=timeout)
    lock.acquire(blocking=False)
    client.set(name, "a")
    if timeout is not None:
        for use in (lock.reacquire, lambda: lock.extend(10)):
            with pytest.raises(LockNotOwnedError):
                use()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert lock.local.token is None
    client.delete(name)


def test_leaving_a_block_that_is_not_owned_any_more(client: redis.Redis, name: str) -> None:
    own = KeyError("the block's own")
    with pytest.raises(LockNotOwnedError) as lost:
        with Lock(client, name, timeout=10):
            client.delete(name)
            raise own
    assert lost.value.__cause__ is not None and lost.value.__cause__.__context__ is own
    with Lock(client, name, timeout=10, raise_on_release_error=False):
        client.delete(name)


def test_extending_adds_or_replaces(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=10.0)
    assert lock.acquire(blocking=False)
    assert lock.extend(10.0)
    assert 16_000 < pttl(client, name) <= 20_000
    assert lock.extend(30, replace_ttl=True)
    assert 26_000 < pttl(client, name) <= 30_000
    client.pexpire(name, 5_000)
    assert lock.reacquire()
    assert 8_000 < pttl(client, name) <= 10_000
    lock.release()


def test_a_thread_sees_its_own_lock_only(client: redis.Redis, name: str) -> None:
    lock, shared = (
        Lock(client, name, timeout=10),
        Lock(client, name + ":shared", timeout=10, thread_local=False),
    )
    assert lock.acquire() and shared.acquire()
    errors: list[Exception] = []

    def release_both() -> None:
        try:
            lock.release()
        except LockError as error:
            errors.append(error)
        shared.release()

    thread = threading.Thread(target=release_both)
    thread.start()
    thread.join(LIMIT)
    assert len(errors) == 1 and lock.owned() and not shared.locked()
    lock.release()


def test_a_token_is_handed_on(client: redis.Redis, name: str) -> None:
    lock, other = Lock(client, name, timeout=10), Lock(client, name, timeout=10)
    lock.acquire()
    other.local.token = lock.local.token
    assert other.owned()
    assert other.extend(10)
    assert 16_000 < pttl(client, name) <= 20_000
    other.release()
    assert not lock.locked()
    with pytest.raises(LockError, match="local.token"):
        lock.acquire(token="mine")


def test_a_token_without_a_timeout_is_handed_on(redis_url: str, client: redis.Redis, name: str) -> None:
    lock, other = Lock(client, name), Lock(client, name)
    lock.acquire()
    other.local.token = lock.local.token
    other.release()
    assert not lock.locked()
    lock.acquire()
    text = (
        "import redis, sys; from fencepost.compat.redis_lock import Lock; "
        "lock = Lock(redis.Redis.from_url(sys.argv[1]), sys.argv[2])\n"
        "lock.local.token = sys.argv[3]\n"
        "lock.release()"
    )
    subprocess.run(
        [sys.executable, "-c", text, redis_url, name, lock.local.token.decode()], check=True, timeout=LIMIT
    )
    assert not lock.locked()
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_a_lock_without_a_timeout_outlives_what_has_acquired_it(client: redis.Redis, name: str) -> None:
    """The object is gone, the thread has ended: it is held until the process ends, as it is with redis-py."""

    def start(part: str) -> bool:
        return Lock(client, name + part).acquire(blocking=False)

    assert start("")
    gc.collect()
    assert not start("")
    shared = Lock(client, name + ":thread")
    thread = threading.Thread(target=shared.acquire)
    thread.start()
    thread.join(LIMIT)
    del thread
    gc.collect()
    assert not start(":thread")
    client.delete(name, name + ":thread")


@FORKED
@pytest.mark.parametrize("timeout", [None, 20])
def test_a_forked_child_leaves_its_parents_lock_alone(
    client: redis.Redis, name: str, timeout: float | None
) -> None:
    with Lock(client, name, timeout=timeout) as lock:

        def child() -> str:
            said = []
            for use in (lock.release, lambda: lock.extend(10)) if timeout else (lock.release,):
                try:
                    use()
                except LockNotOwnedError as error:
                    said.append(str(error))
            assert len(said) == (2 if timeout else 1) and not lock.owned() and lock.locked()
            # One that was handed on is the caller's own.
            other = Lock(client, name, timeout=timeout)
            other.local.token = lock.local.token
            assert other.owned()
            return "fine"

        assert in_child(child) == "fine"
        assert lock.owned()


@FORKED
def test_a_child_that_is_forked_while_a_thread_connects_does_not_hang(
    redis_url: str, servers: Any, client: redis.Redis, name: str
) -> None:
    hung = servers.ask("start redis")
    servers.ask(f"pause {hung}")
    elsewhere = redis.Redis.from_url(hung, socket_timeout=LIMIT)

    def connect() -> None:
        with pytest.raises(redis.exceptions.ConnectionError):
            Lock(elsewhere, name).acquire()

    thread = threading.Thread(target=connect)
    thread.start()

    def inside() -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        while frame is not None and frame.f_code.co_name != "connect":
            frame = frame.f_back
        return frame is not None and "fencepost" in frame.f_code.co_filename

    eventually("the thread connects", inside)

    def child() -> str:
        signal.alarm(30)
        with Lock(client, name, timeout=10):
            return "fine"

    assert in_child(child) == "fine"
    servers.ask(f"kill {hung}")
    thread.join(LIMIT)
    elsewhere.close()


def test_a_server_that_hangs_is_not_busy(servers: Any, name: str) -> None:
    url = servers.ask("start redis")
    with redis.Redis.from_url(url, socket_timeout=3) as client:
        lock, dlm = Lock(client, name, timeout=10), redlock.Redlock([client], retry_count=1, retry_delay=0.01)
        assert lock.acquire()
        # Busy, and no time to ask again: busy it is.
        assert not Lock(client, name, timeout=10).acquire(blocking_timeout=0.000_001)
        lock.release()
        servers.ask(f"pause {url}")
        with pytest.raises(redis.exceptions.ConnectionError):
            lock.acquire(blocking_timeout=0.2)
        with pytest.raises(redlock.MultipleRedlockException):
            dlm.lock(name, 10_000)
        servers.ask(f"kill {url}")


def test_what_is_kept_about_a_lock_is_no_lock(client: redis.Redis, redis_url: str, name: str) -> None:
    with fencepost.connect(f"{redis_url}?keys=plain") as locks, locks.lock(name):
        beside = [key.decode() for key in client.scan_iter(match=f"{{{name}}}*")]
        assert beside and all(key.startswith(f"{{{name}}}:") for key in beside)
        assert [holder.name for holder in locks.list() if name in holder.name] == [name]
        for key in (*beside, f"{{{name}}}:queue", f"{{{name}}}:waiters"):
            with pytest.raises(LockError):
                Lock(client, key).acquire(blocking=False)


def test_a_lock_with_a_timeout_outlives_its_process(redis_url: str, client: redis.Redis, name: str) -> None:
    """What programs build on that run at most once in a while: acquire, and never release."""
    text = (
        "import redis, sys; from fencepost.compat.redis_lock import Lock; "
        "assert Lock(redis.Redis.from_url(sys.argv[1]), sys.argv[2], timeout=60).acquire(blocking=False)"
    )
    subprocess.run([sys.executable, "-c", text, redis_url, name], check=True, timeout=LIMIT)
    assert 50_000 < pttl(client, name) <= 60_000 and not Lock(client, name).acquire(blocking=False)
    client.delete(name)


def test_it_excludes_the_lock_of_redis_py_and_the_other_way_round(client: redis.Redis, name: str) -> None:
    ours, theirs = Lock(client, name, timeout=10), redis.lock.Lock(client, name, timeout=10)
    assert ours.acquire(blocking=False) and not theirs.acquire(blocking=False)
    ours.release()
    assert theirs.acquire(blocking=False) and not ours.acquire(blocking=False)
    got: list[bool] = []
    waiting = threading.Thread(
        target=lambda: got.append(Lock(client, name, timeout=10, thread_local=False).acquire())
    )
    waiting.start()
    theirs.release()
    waiting.join(LIMIT)
    assert got == [True]
    client.delete(name)


def test_where_a_client_looks(client: redis.Redis, redis_url: str) -> None:
    from fencepost.compat._stores import client_url

    assert client_url(client).text == f"{redis_url}/0?keys=plain"
    assert redis_url not in repr(client_url(client))
    tls = redis.Redis(host="h", port=1, db=2, username="u", password="p@s", ssl=True, ssl_ca_certs="/ca.pem")
    assert client_url(tls).text.startswith("rediss://u:p%40s@h:1/2?keys=plain")
    assert "ca=%2Fca.pem" in client_url(tls).text
    local = redis.Redis(unix_socket_path="/run/r s.sock")
    assert client_url(local).text.startswith("redis+unix:///run/r%20s.sock?")
    with pytest.raises(fencepost.Unsupported):
        client_url(object())

    class Elsewhere(redis.Connection):
        pass

    Elsewhere.__module__ = "fake"
    with pytest.raises(fencepost.Unsupported, match="fake"):
        client_url(redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Elsewhere)))


def test_a_server_out_of_reach_is_an_error_of_redis_py() -> None:
    with pytest.raises(redis.exceptions.ConnectionError):
        Lock(redis.Redis(port=1), "a").acquire()
    assert issubclass(LockNotOwnedError, LockError) and issubclass(LockError, RedisError)


# Redlock.


def dictionaries(nodes_url: str) -> list[dict[str, Any]]:
    places = nodes_url.removeprefix("redlock://").split(",")
    return [{"host": place.split(":")[0], "port": int(place.split(":")[1]), "db": 0} for place in places]


@pytest.fixture(params=["nodes", "single"])
def dlm(request: pytest.FixtureRequest) -> redlock.Redlock:
    if request.param == "single":
        return redlock.Redlock([request.getfixturevalue("redis_url")], retry_count=2, retry_delay=0.05)
    return redlock.Redlock(
        dictionaries(request.getfixturevalue("nodes_url")), retry_count=2, retry_delay=0.05
    )


def test_redlock_locks_and_unlocks(dlm: redlock.Redlock, name: str) -> None:
    lock = dlm.lock(name, 10_000)
    assert lock and lock.resource == name and 0 < lock.validity < 10_000 and lock.token > 0
    assert dlm.lock(name, 10_000) is False
    dlm.unlock(redlock.Lock(1, name, b"1.018bcfe5-6800-7000-8000-000000000000." + name.encode()))
    assert dlm.lock(name, 10_000) is False
    dlm.unlock(lock)
    dlm.unlock(lock)
    again = dlm.lock(name, 10_000)
    assert again and again.token > lock.token
    dlm.unlock(again)
    with pytest.raises(ValueError):
        dlm.lock(name, 1.0)  # type: ignore[arg-type]


def test_redlock_ends_with_its_ttl(dlm: redlock.Redlock, name: str) -> None:
    assert dlm.lock(name, 2000)
    eventually("it is free again", lambda: dlm.lock(name, 10_000))


def test_redlock_excludes_redlock_py_and_the_other_way_round(nodes_url: str, name: str) -> None:
    package = pytest.importorskip("redlock")
    ours = redlock.Redlock(dictionaries(nodes_url), retry_count=1, retry_delay=0.01)
    theirs = package.Redlock(dictionaries(nodes_url), retry_count=1)
    held = ours.lock(name, 60_000)
    assert held and not theirs.lock(name, 60_000)
    ours.unlock(held)
    held = theirs.lock(name, 60_000)
    assert held and ours.lock(name, 60_000) is False
    theirs.unlock(held)


def test_redlock_refuses_what_has_no_majority(redis_url: str) -> None:
    for servers in ([], [redis_url, redis_url], [redis_url + "/1", redis_url + "/2", redis_url + "/3"]):
        with pytest.raises(redlock.CannotObtainLock):
            redlock.Redlock(servers)
    with pytest.raises(redlock.CannotObtainLock):
        redlock.Redlock([{"host": "127.0.0.1", "port": 1}])


def test_settings_reach_the_store(nodes_url: str) -> None:
    dlm = redlock.Redlock(dictionaries(nodes_url))
    assert urlsplit(dlm._url.text).scheme == "redlock" and "keys=plain" in dlm._url.text


@pytest.mark.parametrize(
    "wrong",
    [{"hots": "10.9.9.9"}, {"db_": 1}, {"host": None}, {"host": "a,b"}, {"port": "x"}, {"db": "x"}],
)
def test_redlock_refuses_settings_that_it_does_not_know(redis_url: str, wrong: dict[str, Any]) -> None:
    """The rest is that of a server that is there: a misspelt host must not leave the lock on that one."""
    place = {"host": urlsplit(redis_url).hostname, "port": urlsplit(redis_url).port}
    with pytest.raises(redlock.CannotObtainLock, match=next(iter(wrong))):
        redlock.Redlock([{**place, **wrong}])
    redlock.Redlock([{**place, "socket_timeout": 5, "decode_responses": True}])


def test_redlock_rounds_a_short_ttl_up(dlm: redlock.Redlock, name: str) -> None:
    lock = insisting(lambda: dlm.lock(name, 10))
    assert lock and lock.validity <= 10
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            dlm.lock(name, wrong)
