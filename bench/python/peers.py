"""One small adapter a library: `acquire(name)` returns what `release` takes. Defaults are kept, but waiting
has no end."""

from __future__ import annotations

import socket
from typing import Any, Awaitable, Callable
from urllib.parse import urlsplit

TTL = 30
ASYNC = {"fencepost.aio", "fencepost.aio x5", "redis-py asyncio", "aioredlock x5"}


class Raw:
    """The two commands of a lock without a token, hand-encoded over one socket: what any client has to
    pay."""

    RELEASE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port or 6379))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sha = self.ask(b"SCRIPT", b"LOAD", self.RELEASE).split(b"\r\n")[1]

    def send(self, *words: bytes) -> None:
        self._socket.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        )

    def reply(self) -> bytes:
        return self._socket.recv(4096)

    def ask(self, *words: bytes) -> bytes:
        self.send(*words)
        return self.reply()

    def send_acquire(self, name: str) -> None:
        self.send(b"SET", name.encode(), b"0123456789abcdef", b"NX", b"PX", b"30000")

    def send_release(self, name: str) -> None:
        self.send(b"EVALSHA", self._sha, b"1", name.encode(), b"0123456789abcdef")

    def acquire(self, name: str) -> str:
        self.send_acquire(name)
        assert self.reply() == b"+OK\r\n"
        return name

    def release(self, name: str) -> None:
        self.send_release(name)
        assert self.reply() == b":1\r\n"


class RawNodes:
    """The same on every server at once, waiting for all."""

    def __init__(self, url: str) -> None:
        self._nodes = [Raw(f"redis://{place['host']}:{place['port']}") for place in dictionaries(url)]

    def acquire(self, name: str) -> str:
        for node in self._nodes:
            node.send_acquire(name)
        assert all(node.reply() == b"+OK\r\n" for node in self._nodes)
        return name

    def release(self, name: str) -> None:
        for node in self._nodes:
            node.send_release(name)
        assert all(node.reply() == b":1\r\n" for node in self._nodes)


class Token:
    """A token passed by a blocking pop, hand-encoded over one socket: what any client has to pay that wakes
    another."""

    def __init__(self, url: str) -> None:
        self._raw = Raw(url)

    def acquire(self, name: str) -> str:
        assert self._raw.ask(b"BLPOP", name.encode(), b"0").startswith(b"*2\r\n")
        return name

    def release(self, name: str) -> None:
        assert self._raw.ask(b"LPUSH", name.encode(), b"token").startswith(b":")


def dictionaries(url: str) -> list[dict[str, Any]]:
    places = url.removeprefix("redlock://").partition("?")[0].split(",")
    return [{"host": place.split(":")[0], "port": int(place.split(":")[1])} for place in places]


def blocking(peer: str, url: str) -> Callable[[], tuple[Callable[[str], Any], Callable[[Any], Any]]]:
    """Makes what one thread uses; clients are shared, as the libraries' documentation does it."""
    if peer.startswith("raw"):

        def make_raw() -> Any:
            raw = {"raw": Raw, "raw x5": RawNodes, "raw token": Token}[peer](url)
            return raw.acquire, raw.release

        return make_raw
    if peer == "redis-py token":
        import redis

        tokens = redis.Redis.from_url(url)
        return lambda: (lambda name: tokens.blpop([name]) and name, lambda name: tokens.lpush(name, "token"))
    if peer in ("fencepost", "fencepost x5"):
        import fencepost

        locks = fencepost.connect(url)
        return lambda: (lambda name: locks.lock(name, ttl=TTL).acquire(), lambda guard: guard.release())
    if peer in ("redis-py", "python-redis-lock"):
        import redis

        client = redis.Redis.from_url(url)
        if peer == "redis-py":

            def take(name: str) -> Any:
                lock = client.lock(name, timeout=TTL)
                assert lock.acquire()
                return lock
        else:
            import redis_lock

            def take(name: str) -> Any:
                lock = redis_lock.Lock(client, name, expire=TTL)
                assert lock.acquire()
                return lock

        return lambda: (take, lambda lock: lock.release())
    if peer == "redlock-py x5":
        import redlock

        manager = redlock.Redlock(dictionaries(url), retry_count=10**9)

        def take_redlock(name: str) -> Any:
            lock = manager.lock(name, TTL * 1000)
            assert lock
            return lock

        return lambda: (take_redlock, manager.unlock)
    if peer == "pottery x5":
        import pottery
        import redis

        masters = {redis.Redis(**place) for place in dictionaries(url)}

        def take_pottery(name: str) -> Any:
            lock = pottery.Redlock(key=name, masters=masters, auto_release_time=TTL)
            assert lock.acquire()
            return lock

        return lambda: (take_pottery, lambda lock: lock.release())
    if peer == "kazoo":
        import kazoo.client

        session = kazoo.client.KazooClient(hosts=url.removeprefix("zookeeper://"))
        session.start()

        def make_kazoo() -> Any:
            locks: dict[str, Any] = {}

            def take_kazoo(name: str) -> Any:
                lock = locks.setdefault(name, session.Lock(f"/kazoo/{name}"))
                assert lock.acquire()
                return lock

            return take_kazoo, lambda lock: lock.release()

        return make_kazoo
    raise SystemExit(f"no peer `{peer}`")


async def asynchronous(
    peer: str, url: str
) -> tuple[Callable[[str], Awaitable[Any]], Callable[[Any], Awaitable[Any]]]:
    if peer.startswith("fencepost.aio"):
        import fencepost.aio

        locks = await fencepost.aio.connect(url)
        return (lambda name: locks.lock(name, ttl=TTL).acquire()), (lambda guard: guard.release())
    if peer == "redis-py asyncio":
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(url)

        async def take(name: str) -> Any:
            lock = client.lock(name, timeout=TTL)
            assert await lock.acquire()
            return lock

        return take, (lambda lock: lock.release())
    if peer == "aioredlock x5":
        import aioredlock

        manager = aioredlock.Aioredlock(dictionaries(url), retry_count=10**6)
        return (lambda name: manager.lock(name, lock_timeout=TTL)), manager.unlock
    raise SystemExit(f"no peer `{peer}`")
