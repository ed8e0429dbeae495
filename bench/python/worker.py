"""One peer in a process of its own. Reads a command a line, answers with a line of JSON.

cycle WORKERS SECONDS · wake PATH SECONDS · hold COUNT SECONDS · busy SECONDS
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import sys
import threading
import time
from typing import Any

import peers

now = time.monotonic


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")


def process() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {"rss_kb": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"])}


class Turns:
    """A number that two processes share: how often the lock was had."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def get(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def next(self) -> int:
        """Called by the holder alone."""
        number = self.get() + 1
        self._shared[:8] = number.to_bytes(8, "little")
        return number


class Blocking:
    def __init__(self, peer: str, redis_url: str, fleet: str) -> None:
        self.peer, self.redis_url = peer, redis_url
        self.make = peers.blocking(peer, redis_url, fleet)
        self.pairs = [self.make() for _ in range(16)]
        for number, (acquire, release) in enumerate(self.pairs):
            if not peer.endswith(" token"):
                release(acquire(f"warm:{os.getpid()}:{number}"))

    def cycle(self, workers: int, seconds: float) -> dict[str, Any]:
        took: list[list[float]] = [[] for _ in range(workers)]
        end = now() + seconds

        def work(number: int) -> None:
            (acquire, release), name, mine = self.pairs[number], f"k:{os.getpid()}:{number}", took[number]
            while (start := now()) < end:
                release(acquire(name))
                mine.append(now() - start)

        if workers == 1:
            work(0)
        else:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        every = [one for mine in took for one in mine]
        return {"p50_us": middle(every) * 1e6, "per_s": len(every) / seconds}

    def wake(self, path: str, seconds: float) -> dict[str, Any]:
        """Takes turns with another process: when the lock was had, and when it was given back. Comes back as soon as the other
        has it, so that somebody waits whenever it is given back."""
        acquire, release = self.pairs[0]
        turns, events, end = Turns(path), [], now() + seconds
        while now() < end:
            held = acquire(path)
            mine = turns.next()
            events.append(("had", now()))
            time.sleep(random.uniform(0.02, 0.12))
            events.append(("gave", now()))
            release(held)
            while turns.get() == mine and now() < end:
                time.sleep(0.0005)
        return {"events": events}

    def hold(self, count: int, seconds: float) -> dict[str, Any]:
        """Holds many locks with a ttl of 5 s by the library's own renewal."""
        threading.excepthook = lambda _: None
        error, kept = "", []
        start = now()
        try:
            if self.peer == "fencepost":
                import fencepost

                locks = fencepost.connect(self.redis_url)
                kept = [locks.lock(f"hold:{number}", ttl=5).acquire() for number in range(count)]
            else:
                import redis
                import redis_lock

                client = redis.Redis.from_url(self.redis_url)
                for number in range(count):
                    lock = redis_lock.Lock(client, f"hold:{number}", expire=5, auto_renewal=True)
                    assert lock.acquire()
                    kept.append(lock)
                    if now() - start > 60:
                        error = "stopped after 60 s"
                        break
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"[:120]
        took, before = now() - start, sum(os.times()[:2])
        time.sleep(seconds)
        cpu = (sum(os.times()[:2]) - before) / seconds * 100
        import redis as plain

        left = len(plain.Redis.from_url(self.redis_url).keys("lock:hold:*"))
        return {"held": len(kept), "still": left, "acquire_s": took, "cpu_pct": cpu, "error": error, **process()}

    def busy(self, seconds: float) -> dict[str, Any]:
        """Holds a lock of 2 s under eight threads of pure Python, and looks after it from outside, ten times a second."""
        import subprocess

        name = f"busy:{os.getpid()}"
        if self.peer == "fencepost":
            import fencepost

            lock = fencepost.connect(self.redis_url).lock(name, ttl=2).acquire()
        else:
            import redis
            import redis_lock

            lock = redis_lock.Lock(redis.Redis.from_url(self.redis_url), name, expire=2, auto_renewal=True)
            assert lock.acquire()
        watch = (
            "import redis, sys, time\n"
            "client, end, gone, least = redis.Redis.from_url(sys.argv[1]), time.monotonic() + float(sys.argv[3]), 0, 2000\n"
            "while time.monotonic() < end:\n"
            "    left = client.pttl('lock:' + sys.argv[2]); gone += left < 0; least = min(least, left); time.sleep(.1)\n"
            "print(gone, least)"
        )
        watcher = subprocess.Popen(
            [sys.executable, "-c", watch, self.redis_url, name, str(seconds)], stdout=subprocess.PIPE, text=True
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
    def __init__(self, peer: str, redis_url: str, fleet: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.acquire, self.release = self.loop.run_until_complete(peers.asynchronous(peer, redis_url, fleet))
        self.loop.run_until_complete(self._once("warm"))

    async def _once(self, name: str) -> None:
        await self.release(await self.acquire(f"{name}:{os.getpid()}"))

    def cycle(self, workers: int, seconds: float) -> dict[str, Any]:
        took: list[float] = []
        end = now() + seconds

        async def work(number: int) -> None:
            while (start := now()) < end:
                await self._once(f"k{number}")
                took.append(now() - start)

        async def all_of_them() -> None:
            await asyncio.gather(*(work(number) for number in range(workers)))

        self.loop.run_until_complete(all_of_them())
        return {"p50_us": middle(took) * 1e6, "per_s": len(took) / seconds}

    def wake(self, path: str, seconds: float) -> dict[str, Any]:
        async def take_turns() -> list[tuple[str, float]]:
            turns, events, end = Turns(path), [], now() + seconds
            while now() < end:
                held = await self.acquire(path)
                mine = turns.next()
                events.append(("had", now()))
                await asyncio.sleep(random.uniform(0.02, 0.12))
                events.append(("gave", now()))
                await self.release(held)
                while turns.get() == mine and now() < end:
                    await asyncio.sleep(0.0005)
            return events

        return {"events": self.loop.run_until_complete(take_turns())}


def main() -> None:
    peer, redis_url, fleet = sys.argv[1:4]
    me: Any = (Asynchronous if peer in peers.ASYNC else Blocking)(peer, redis_url, fleet)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        arguments = [word if what == "wake" and not at else float(word) for at, word in enumerate(words)]
        if what in ("cycle", "hold"):
            arguments[0] = int(arguments[0])
        print(json.dumps(getattr(me, what)(*arguments)), flush=True)
    os._exit(0)


main()
