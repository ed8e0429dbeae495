"""What the library has to say goes to `logging`, and no lock ever waits for who reads it."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from conftest import LIMIT, eventually, in_child
from fencepost.__main__ import command
from fencepost.testing import Store
from test_process import FORKED, script

LOGGER = logging.getLogger("fencepost")


class Seen(logging.Handler):
    """Keeps what it is given, and can be told to hang."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.go_on.wait(LIMIT)
        self.records.append(record)

    def texts(self, part: str = "") -> list[str]:
        return [text for record in self.records if part in (text := record.getMessage())]


@pytest.fixture
def seen() -> Iterator[Seen]:
    """What is logged at DEBUG."""
    handler = Seen()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    handler.go_on.set()
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.removeHandler(handler)


def shape(text: str) -> str:
    """A message with the names of its fields, without their values."""
    return re.sub(r"=\S+", "=", text)


def test_the_command_and_the_package_log_the_same(
    redis_url: str, locks: fencepost.Locks, name: str, seen: Seen
) -> None:
    with locks.lock(name, ttl=20) as guard:
        token = guard.token
    eventually("the end is logged", lambda: seen.texts("lock released"))
    ours = {shape(text) for text in seen.texts(f"name={name}")}
    assert any(f"token={token}" in text for text in seen.texts("lock acquired"))
    run = [str(command()), "-v", "--store", redis_url, "run", name, "--", "true"]
    written = subprocess.run(run, stderr=subprocess.PIPE, text=True, check=True, timeout=LIMIT).stderr
    lines = re.findall(r"^\S+ +DEBUG fencepost\S*: (.*)$", written, re.MULTILINE)
    theirs = {shape(line) for line in lines if f"name={name}" in line}
    assert len(ours) == 2 and ours <= theirs, written


def test_a_level_may_change_at_any_time(caplog: pytest.LogCaptureFixture) -> None:
    locks = Store().locks()
    for number, level in enumerate((logging.INFO, logging.DEBUG, logging.INFO, logging.DEBUG)):
        caplog.set_level(level, "fencepost")
        with locks.lock(f"lock {number}"):
            pass
    eventually("the last one is logged", lambda: "name=lock 3" in caplog.text)
    assert "name=lock 1" in caplog.text
    assert "name=lock 0" not in caplog.text and "name=lock 2" not in caplog.text


def test_warnings_are_logged_without_being_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    guard = store.locks().lock("a", ignore_loss=True).acquire()
    store.lose("a")
    eventually("the loss is logged", lambda: "lock lost" in caplog.text)
    [record] = [record for record in caplog.records if "lock lost" in record.getMessage()]
    assert (record.name, record.levelno) == ("fencepost", logging.WARNING)
    assert f"name=a token={guard.token}" in record.getMessage()
    assert record.pathname.endswith(".rs") and record.lineno > 0
    assert not any(record.levelno < logging.WARNING for record in caplog.records)


def test_text_of_others_cannot_forge_a_line(seen: Seen) -> None:
    with Store().locks().lock("a\n\x1b[2J"):
        pass
    eventually("it is logged", lambda: seen.texts("lock released"))
    assert all("\n" not in text and "\x1b" not in text for text in seen.texts())


def test_nothing_waits_for_a_handler_that_hangs(locks: fencepost.Locks, name: str, seen: Seen) -> None:
    memory, turns = Store().locks(), 2000
    seen.go_on.clear()
    with locks.lock(name, ttl=2) as guard:
        renewed = locks.stats()["renewed"]
        for _ in range(turns):
            with memory.lock("a"):
                pass
        eventually("renewals go on", lambda: locks.stats()["renewed"] >= renewed + 2)
        guard.check()
        hung_until = time.time()
        seen.go_on.set()
        eventually("the rest is counted", lambda: seen.texts("events were not logged"))
    [told] = seen.texts("events were not logged")
    dropped, handed_over = int(told.split()[0]), len(seen.texts("name=a "))
    # Two rooms are full: what the handler was given, and what waits for it.
    assert dropped + handed_over >= 2 * turns and handed_over <= 2 * 1000
    # The time is that of the event.
    assert all(record.created < hung_until for record in seen.records if "name=a " in record.getMessage())
    eventually("it goes on", lambda: [text for text in seen.texts("lock released") if name in text])


def test_renewals_do_not_wait_for_the_interpreter(locks: fencepost.Locks, name: str, seen: Seen) -> None:
    """A call that keeps the interpreter to itself for twice the ttl, while renewals are logged."""
    with locks.lock(name, ttl=2) as guard:
        eventually("renewals are logged", lambda: seen.texts("lock renewed"))
        before = locks.stats()["renewed"]
        ctypes.PyDLL(None).usleep(4_000_000)  # unlike CDLL it does not let go of the interpreter
        assert locks.stats()["renewed"] > before
        guard.check()


def test_a_handler_that_fails_ends_nothing(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(record: logging.LogRecord) -> bool:
        LOGGER.removeFilter(fail)
        raise SystemExit("of a filter")

    LOGGER.addFilter(fail)
    with Store().locks().lock("a"):
        pass
    eventually("what comes after is logged", lambda: seen.texts("lock released"))
    assert "of a filter" in capfd.readouterr().err


@FORKED
def test_a_forked_child_logs_what_it_does_itself(locks: fencepost.Locks, name: str, seen: Seen) -> None:
    with locks.lock(name):

        def child() -> str:
            seen.records.clear()
            with locks.lock(name + ":child"):
                pass
            eventually("it is logged", lambda: seen.texts("lock released"))
            return " ".join({str(record.process == os.getpid()) for record in seen.records})

        assert in_child(child) == "True"
        assert not seen.texts(":child")
    eventually("its parent goes on", lambda: seen.texts("lock released"))


@pytest.mark.parametrize("kind", ["main", "child"])
def test_the_end_of_the_interpreter_is_logged_as_well(kind: str, redis_url: str, name: str) -> None:
    program: Any = script(
        """
        import fencepost, logging, multiprocessing, sys, time

        class Slow(logging.StreamHandler):
            def emit(self, record):
                time.sleep(0.2)
                super().emit(record)

        logging.basicConfig(level=logging.DEBUG, format="%(message)s", handlers=[Slow(sys.stdout)])

        def leave_one(locks):
            global left
            left = locks.lock(sys.argv[2], ttl=60).acquire()

        locks = fencepost.connect(sys.argv[1])
        if sys.argv[3] == "main":
            leave_one(locks)
        else:
            child = multiprocessing.get_context("fork").Process(target=leave_one, args=(locks,))
            child.start()
            child.join()
            assert child.exitcode == 0
        """,
        redis_url,
        name,
        kind,
    )
    out, err = program.communicate(timeout=LIMIT)
    assert (err, program.returncode) == ("", 0)
    assert re.search("^lock released held=.* name=" + re.escape(name), out, re.MULTILINE), out
