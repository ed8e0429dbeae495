"""Real servers, started by the test kit on free ports. They end with this process, however it ends."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fencepost

pytest_plugins = ["pytester"]

LIMIT = 60.0
"""How long a test waits for something that has to happen."""


PROGRAM = os.environ.get(
    "FENCEPOST_SERVERS", str(Path(__file__).parents[3] / "target" / "debug" / "fencepost-servers")
)

STORES = subprocess.run(
    [PROGRAM], input="stores\n", stdout=subprocess.PIPE, text=True, check=True
).stdout.split()
"""The stores that the test kit starts."""


class Servers:
    """The test kit's servers, a command a line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._mutex = threading.Lock()
        self._urls: dict[str, str] = {}

    def url(self, store: str) -> str:
        """The URL of a store that all tests share; each uses names of its own."""
        if store not in self._urls:
            self._urls[store] = self.ask(f"start {store}")
            fencepost.init(self._urls[store])
        return self._urls[store]

    def ask(self, command: str) -> str:
        with self._mutex:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
        assert answer and not answer.startswith("error"), answer or "the test kit ended"
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    kit = Servers()
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    """One Redis for all tests; each uses names of its own."""
    return servers.url("redis")


@pytest.fixture(scope="session")
def nodes_url(servers: Servers) -> str:
    """Five Redis that have been declared to be new."""
    url = servers.ask("nodes 5")
    fencepost.init(url)
    return url


@pytest.fixture(scope="session")
def postgres_url(servers: Servers) -> str:
    return servers.url("postgres")


@pytest.fixture(params=STORES)
def shared_url(request: pytest.FixtureRequest, servers: Servers) -> str:
    """Every store that processes share, in turn."""
    return servers.url(request.param)


@pytest.fixture(params=[*STORES, "memory"])
def store_url(request: pytest.FixtureRequest, servers: Servers) -> str:
    """Every store in turn."""
    return "memory:" if request.param == "memory" else servers.url(request.param)


@pytest.fixture
def locks(redis_url: str) -> Iterator[fencepost.Locks]:
    """Locks on the Redis that all tests share."""
    with fencepost.connect(redis_url) as connected:
        yield connected


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lock name that no other test uses."""
    text: str = request.node.name
    return f"py:{text}"


def eventually(what: str, look: Callable[[], object]) -> None:
    """Waits until `look` finds something."""
    end = time.monotonic() + LIMIT
    while not look():
        assert time.monotonic() < end, f"not within {LIMIT} s: {what}"
        time.sleep(0.005)


def in_child(work: Callable[[], object]) -> str:
    """What `work` says in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said
