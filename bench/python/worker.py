"""One peer in a process of its own: says `ready`, obeys a command a line, answers with a line of JSON, as the
workers in other languages do (crates/fencepost-measure/src/serve.rs).

cycle WORKERS SECONDS · contend NAME CONTENDERS HOLD SECONDS FILE · hold COUNT SECONDS · busy SECONDS
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from typing import Any

import peers

now = time.monotonic


def moment() -> int:
    """The clock that all processes share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def summary(times: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(times)

    def percentile(percent: int) -> float:
        return (
            ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * 1e6 if ordered else float("nan")
        )

    figures = {"p50_us": percentile(50), "p99_us": percentile(99), "max_us": percentile(100)}
    return {**figures, "per_s": len(ordered) / seconds}


def process() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {"rss_kb": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"])}


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Manners:
    """Who has released the lock stays away until another one has had it, if there is a file: each turn leaves
    a byte there. Otherwise a waiter that polls is seldom faster than who has just released it."""

    def __init__(self, path: str, hold: float) -> None:
        self._path, self._hold = path if path != "-" else None, hold

    def mark(self) -> int:
        """Called by the holder alone."""
        if not self._path:
            return 0
        with open(self._path, "ab") as file:
            file.write(b".")
        return os.stat(self._path).st_size

    def hold(self) -> float:
        """By chance where waiters may poll: one length would meet the same point of their period each
        time."""
        return random.uniform(0, self._hold) if self._path else self._hold

    def stays_away(self, mine: int) -> bool:
        return self._path is not None and os.stat(self._path).st_size == mine


class Blocking:
    def __init__(self, peer: str, url: str) -> None:
        self.peer, self.url = peer, url
        self._make = peers.blocking(peer, url)
        self._pairs: list[Any] = []
        if not peer.endswith(" token"):
            acquire, release = self._pair(0)
            release(acquire(f"warm:{os.getpid()}"))

    def _pair(self, number: int) -> Any:
        while len(self._pairs) <= number:
            self._pairs.append(self._make())
        return self._pairs[number]

    def _in_threads(self, count: int, work: Any) -> None:
        pairs = [self._pair(number) for number in range(count)]
        if count == 1:
            return work(0, *pairs[0])
        threads = [threading.Thread(target=work, args=(number, *pair)) for number, pair in enumerate(pairs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def cycle(self, workers: int, seconds: float) -> dict[str, Any]:
        took: list[list[float]] = [[] for _ in range(workers)]

        def warm(number: int, acquire: Any, release: Any) -> None:
            release(acquire(f"k:{os.getpid()}:{number}"))

        def work(number: int, acquire: Any, release: Any) -> None:
            name, mine = f"k:{os.getpid()}:{number}", took[number]
            while (start := now()) < end:
                release(acquire(name))
                mine.append(now() - start)

        self._in_threads(workers, warm)
        began = now()
        end = began + seconds
        self._in_threads(workers, work)
        return summary([one for mine in took for one in mine], now() - began)

    def contend(self, name: str, contenders: int, hold: float, seconds: float, file: str) -> dict[str, Any]:
        turns: list[list[list[int]]] = [[] for _ in range(contenders)]
        manners, end = Manners(file, hold), now() + seconds

        def work(number: int, acquire: Any, release: Any) -> None:
            while now() < end:
                asked = moment()
                held = acquire(name)
                acquired, mine, holds = moment(), manners.mark(), manners.hold()
                if holds:
                    time.sleep(holds)
                released = moment()
                release(held)
                turns[number].append([0, asked, acquired, released])
                while manners.stays_away(mine) and now() < end:
                    time.sleep(0.0005)

        self._in_threads(contenders, work)
        return {"turns": turns}

    def hold(self, count: int, seconds: float) -> dict[str, Any]:
        """Holds many locks with a ttl of 5 s by the library's own renewal."""
        threading.excepthook = lambda _: None
        before, start, kept, note = process()["rss_kb"], now(), [], ""
        try:
            for number in range(count):
                kept.append(self._keep(number))
                if now() - start > 30:
                    note = "stopped after 30 s"
                    break
        except Exception as failure:
            note = f"{type(failure).__name__}: {failure}"[:120]
        took = now() - start
        time.sleep(5)  # all in their stride before it is measured
        tell({"acquired_in_s": took})
        spent = sum(os.times()[:2])
        time.sleep(seconds)
        share = (sum(os.times()[:2]) - spent) / seconds
        import redis

        left = len(redis.Redis.from_url(self.url).keys("lock:hold:*"))
        used = process()
        each = (used["rss_kb"] - before) * 1024 / max(1, len(kept))
        return {
            "held": len(kept),
            "lost": len(kept) - left,
            "bytes_each": each,
            "core": share,
            "note": note,
            **used,
        }

    def _keep(self, number: int) -> Any:
        if self.peer == "fencepost":
            import fencepost

            if not hasattr(self, "_locks"):
                self._locks = fencepost.connect(self.url)
            return self._locks.lock(f"hold:{number}", ttl=5).acquire()
        import redis
        import redis_lock

        if not hasattr(self, "_client"):
            self._client = redis.Redis.from_url(self.url)
        lock = redis_lock.Lock(self._client, f"hold:{number}", expire=5, auto_renewal=True)
        assert lock.acquire()
        return lock

    def busy(self, seconds: float) -> dict[str, Any]:
        """Holds a lock of 2 s under eight threads of pure Python, and looks after it from outside, ten times
        a second."""
        import subprocess

        name = f"busy:{os.getpid()}"
        if self.peer == "fencepost":
            import fencepost

            lock = fencepost.connect(self.url).lock(name, ttl=2).acquire()
        else:
            import redis
            import redis_lock

            lock = redis_lock.Lock(redis.Redis.from_url(self.url), name, expire=2, auto_renewal=True)
            assert lock.acquire()
        watch = (
            "import redis, sys, time\n"
            "client, end = redis.Redis.from_url(sys.argv[1]), time.monotonic() + float(sys.argv[3])\n"
            "gone, least = 0, 2000\n"
            "while time.monotonic() < end:\n"
            "    left = client.pttl('lock:' + sys.argv[2]); gone += left < 0\n"
            "    least = min(least, left); time.sleep(.1)\n"
            "print(gone, least)"
        )
        watcher = subprocess.Popen(
            [sys.executable, "-c", watch, self.url, name, str(seconds)], stdout=subprocess.PIPE, text=True
        )
        end = now() + seconds

        def burn() -> None:
            number = 0
            while now() < end:
                for _ in range(1000):
                    number = (number * 31 + 7) % 1000003

        threads = [threading.Thread(target=burn) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gone, least = watcher.communicate()[0].split()
        return {"gone": int(gone), "least_ms": int(least)}


class Asynchronous:
    def __init__(self, peer: str, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.acquire, self.release = self.loop.run_until_complete(peers.asynchronous(peer, url))
        self.loop.run_until_complete(self._once("warm"))

    async def _once(self, name: str) -> None:
        await self.release(await self.acquire(f"{name}:{os.getpid()}"))

    def _in_tasks(self, count: int, work: Any) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(work(number) for number in range(count)))

        self.loop.run_until_complete(all_of_them())

    def cycle(self, workers: int, seconds: float) -> dict[str, Any]:
        took: list[float] = []
        began = now()
        end = began + seconds

        async def work(number: int) -> None:
            while (start := now()) < end:
                await self._once(f"k{number}")
                took.append(now() - start)

        self._in_tasks(workers, work)
        return summary(took, now() - began)

    def contend(self, name: str, contenders: int, hold: float, seconds: float, file: str) -> dict[str, Any]:
        turns: list[list[list[int]]] = [[] for _ in range(contenders)]
        manners, end = Manners(file, hold), now() + seconds

        async def work(number: int) -> None:
            while now() < end:
                asked = moment()
                held = await self.acquire(name)
                acquired, mine = moment(), manners.mark()
                await asyncio.sleep(manners.hold())
                released = moment()
                await self.release(held)
                turns[number].append([0, asked, acquired, released])
                while manners.stays_away(mine) and now() < end:
                    await asyncio.sleep(0.0005)

        self._in_tasks(contenders, work)
        return {"turns": turns}


COMMANDS: dict[str, list[type]] = {
    "cycle": [int, float],
    "contend": [str, int, float, float, str],
    "hold": [int, float],
    "busy": [float],
}


def main() -> None:
    peer, url = sys.argv[1:3]
    me: Any = (Asynchronous if peer in peers.ASYNC else Blocking)(peer, url)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        try:
            tell(getattr(me, what)(*(kind(word) for kind, word in zip(COMMANDS[what], words, strict=True))))
        except Exception as failure:
            tell({"error": f"{type(failure).__name__}: {failure}"[:200]})
    os._exit(0)


main()
