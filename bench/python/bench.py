"""Measures Fencepost and its peers in turns, in one run on the same servers, and prints tables of ratios.

Each peer has a process of its own. A measure goes round all of them several times, so that whatever else the
machine does meets everybody; the figure of a peer is the median of its rounds. `raw` is the raw limit: the
two commands of a lock without a token, hand-encoded, on five servers at once where there are five. That of a
hand-over is a token that one process pushes to a list and the other one waits to pop."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fencepost

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("SECS", "1"))
CROWD = 8
ROUNDS = int(os.environ.get("ROUNDS", "7"))

SINGLE = ["raw", "fencepost", "redis-py", "python-redis-lock", "fencepost.aio", "redis-py asyncio"]
TOKENS = ["raw token", "redis-py token"]
REDLOCK = ["raw x5", "fencepost x5", "redlock-py x5", "pottery x5", "fencepost.aio x5", "aioredlock x5"]


class Servers:
    def __init__(self) -> None:
        self._kit = subprocess.Popen(
            [os.environ["FENCEPOST_SERVERS"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, what: str) -> str:
        self._kit.stdin.write(what + "\n")
        self._kit.stdin.flush()
        return self._kit.stdout.readline().strip()

    def close(self) -> None:
        self._kit.communicate()


class Worker:
    def __init__(self, peer: str, redis_url: str, redlock_url: str) -> None:
        self.peer = peer
        url = redlock_url if peer.endswith("x5") else redis_url
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), peer, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{peer} does not start")

    def tell(self, command: str) -> None:
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        return json.loads(line) if line.startswith("{") else {"error": line or "it ended"}

    def ask(self, command: str) -> dict[str, Any]:
        self.tell(command)
        return self.answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def rounds(peers: list[str], workers: int, redis_url: str, redlock_url: str) -> dict[str, dict[str, float]]:
    running = [Worker(peer, redis_url, redlock_url) for peer in peers]
    seen: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
    for _ in range(ROUNDS):
        for worker in random.sample(running, len(running)):
            seen[worker.peer].append(worker.ask(f"cycle {workers} {SECONDS}"))
    for worker in running:
        worker.close()
    return {
        peer: {field: statistics.median(one[field] for one in answers) for field in ("p50_us", "per_s")}
        for peer, answers in seen.items()
    }


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def cycles(title: str, found: dict[str, dict[str, float]], base: str) -> None:
    raw = next(iter(found.values()))["p50_us"]
    rows = []
    for peer, figures in found.items():
        p50, per_s = figures["p50_us"], figures["per_s"]
        ratios = [f"{p50 / found[base]['p50_us']:.2f}", f"{p50 / raw:.2f}"]
        rows.append([peer, f"{p50:.0f}", *ratios, f"{per_s:.0f}", f"{per_s / found[base]['per_s']:.2f}"])
    table(title, ["", "p50 us", f"of {base}", "of raw", "per s", f"of {base}"], rows)


def cycle(redis_url: str, redlock_url: str) -> None:
    cycles("acquire + release, one Redis, 1 worker", rounds(SINGLE, 1, redis_url, redlock_url), "redis-py")


def cycle16(redis_url: str, redlock_url: str) -> None:
    cycles("acquire + release, one Redis, 16 workers", rounds(SINGLE, 16, redis_url, redlock_url), "redis-py")
    found = rounds(REDLOCK, 16, redis_url, redlock_url)
    cycles("acquire + release, five Redis, 16 workers", found, "redlock-py x5")


def redlock_cycle(redis_url: str, redlock_url: str) -> None:
    found = rounds(REDLOCK, 1, redis_url, redlock_url)
    cycles("acquire + release, five Redis, 1 worker", found, "redlock-py x5")


def handover(redis_url: str, redlock_url: str) -> None:
    found = passing([*TOKENS, *SINGLE[1:], *REDLOCK[1:]], redis_url, redlock_url)
    gaps = {peer: statistics.median(one) * 1e3 for peer, one in found.items()}
    best = min(
        (peer for peer in gaps if peer not in TOKENS and not peer.startswith("fencepost")),
        key=gaps.__getitem__,
    )
    table(
        "hand-over between two processes: from calling release to the other's acquire having returned",
        ["", "p50 ms", f"of {best}", "of the raw token", "times"],
        [
            [
                peer,
                f"{gap:.3f}",
                f"{gap / gaps[best]:.2f}",
                f"{gap / gaps['raw token']:.2f}",
                str(len(found[peer])),
            ]
            for peer, gap in gaps.items()
        ],
    )


def passing(peers: list[str], redis_url: str, redlock_url: str) -> dict[str, list[float]]:
    """How long a lock took from one process to the other, for each peer in turns."""
    pairs = {peer: [Worker(peer, redis_url, redlock_url) for _ in range(2)] for peer in peers}
    found: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer in random.sample(peers, len(peers)):
            found[peer] += gaps_between(pairs[peer], redis_url)
    for pair in pairs.values():
        for worker in pair:
            worker.close()
    return found


def gaps_between(pair: list[Worker], redis_url: str) -> list[float]:
    with tempfile.NamedTemporaryFile() as turns:
        if pair[0].peer in TOKENS:
            client(redis_url).lpush(turns.name, "token")
        for worker in pair:
            worker.tell(f"contend {turns.name} 1 0.12 {2 * SECONDS} {turns.name}")
        told = [worker.answer()["turns"][0] for worker in pair]
    had = sorted(
        (acquired, released, asked, who)
        for who, mine in enumerate(told)
        for _, asked, acquired, released in mine
    )
    return [
        (acquired - released) / 1e9
        for (_, released, _, before), (acquired, _, asked, after) in zip(had, had[1:])
        if before != after and asked < released
    ]


def crowd(redis_url: str, redlock_url: str) -> None:
    peers = [
        "raw token",
        "fencepost",
        "redis-py",
        "python-redis-lock",
        "fencepost x5",
        "redlock-py x5",
        "pottery x5",
    ]
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer in random.sample(peers, len(peers)):
            rates[peer].append(hand_overs(peer, redis_url, redlock_url))
    found = {peer: statistics.median(mine) for peer, mine in rates.items()}
    best = max(
        (peer for peer in found if peer != "raw token" and not peer.startswith("fencepost")),
        key=found.__getitem__,
    )
    table(
        f"{CROWD} processes want one lock all the time: from one holder to another one",
        ["", "hand-overs a second", "ms each", f"time of {best}", "time of the raw token"],
        [
            [
                peer,
                f"{rate:.0f}",
                f"{1e3 / rate:.3f}",
                f"{found[best] / rate:.2f}",
                f"{found['raw token'] / rate:.2f}",
            ]
            for peer, rate in found.items()
        ],
    )


def hand_overs(peer: str, redis_url: str, redlock_url: str) -> float:
    """How often a second the lock goes to another process. Taking it again at once is none."""
    workers = [Worker(peer, redis_url, redlock_url) for _ in range(CROWD)]
    name = f"crowd:{random.random()}"
    if peer in TOKENS:
        client(redis_url).lpush(name, "token")
    for worker in workers:
        worker.tell(f"contend {name} 1 0 {SECONDS} -")
    told = [worker.answer()["turns"][0] for worker in workers]
    for worker in workers:
        worker.close()
    had = sorted((acquired, who) for who, mine in enumerate(told) for _, _, acquired, _ in mine)
    changes = sum(before != after for (_, before), (_, after) in zip(had, had[1:]))
    return changes * 1e9 / max(1, had[-1][0] - had[0][0])


def hold(redis_url: str, redlock_url: str) -> None:
    rows = []
    for peer in ("fencepost", "python-redis-lock"):
        worker = Worker(peer, redis_url, redlock_url)
        acquired, found = worker.ask("hold 10000 15"), worker.answer()
        worker.close()
        if "held" not in found:
            rows.append([peer, *["-"] * 6, str(found.get("error"))])
            continue
        cells = [found["held"], found["lost"], found["rss_kb"] // 1024, found["threads"]]
        figures = [f"{100 * found['core']:.0f}", f"{acquired['acquired_in_s']:.1f}", found["note"]]
        rows.append([peer, *map(str, cells), *figures])
        client(redis_url).flushall()  # the next one begins with an empty server
    table(
        "10,000 locks held and renewed for 15 s, ttl 5 s",
        ["", "acquired", "lost", "RSS MB", "threads", "CPU %", "acquired in s", ""],
        rows,
    )


def client(redis_url: str) -> Any:
    import redis

    return redis.Redis.from_url(redis_url)


def busy(redis_url: str, redlock_url: str) -> None:
    rows = []
    for peer in ("fencepost", "python-redis-lock"):
        worker = Worker(peer, redis_url, redlock_url)
        found = worker.ask("busy 30")
        worker.close()
        rows.append([peer, str(found.get("gone", found.get("error"))), str(found.get("least_ms", ""))])
    table(
        "a lock of 2 s under eight threads of pure Python for 30 s",
        ["", "looks that found it gone", "least time left, ms"],
        rows,
    )


MEASURES = {
    "cycle": cycle,
    "cycle16": cycle16,
    "redlock": redlock_cycle,
    "handover": handover,
    "crowd": crowd,
    "hold": hold,
    "busy": busy,
}


def main() -> None:
    chosen = sys.argv[1:] or list(MEASURES)
    unknown = [name for name in chosen if name not in MEASURES]
    if unknown:
        raise SystemExit(f"no measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
    servers = Servers()
    redis_url, redlock_url = servers.start("start redis"), servers.start("nodes 5")
    fencepost.init(redlock_url)
    print(f"Python {sys.version.split()[0]}, fencepost {fencepost.__version__}, {os.cpu_count()} cores")
    for name in chosen:
        MEASURES[name](redis_url, redlock_url)
    servers.close()


main()
