"""The double for tests, the fixtures of the pytest plugin, and the command line in the wheel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from conftest import LIMIT
from fencepost import LockLost, Loss
from fencepost.testing import Clock, Store


def test_time_passes_and_renewals_are_made(fencepost_locks: fencepost.Locks, fencepost_clock: Clock) -> None:
    with fencepost_locks.lock("job", ttl=30) as guard:
        fencepost_clock.advance(600)
        assert guard.state.kind == "held"
    with pytest.raises(LockLost) as lost:
        with fencepost_locks.lock("job", ttl=30):
            fencepost_clock.leap(60)
    assert lost.value.why is Loss.PAUSED


def test_faults_on_demand(fencepost_store: Store) -> None:
    locks = fencepost_store.locks()
    fencepost_store.fail("acquire")
    with pytest.raises(fencepost.Unavailable):
        locks.lock("a").try_acquire()
    guard = locks.lock("a").acquire()
    assert fencepost_store.held == 1
    assert fencepost_store.lose("a", Loss.SESSION_ENDED)
    assert guard.wait_lost(LIMIT) is Loss.SESSION_ENDED
    assert not fencepost_store.expire("a") and fencepost_store.held == 0
    guard = locks.lock("a").acquire()
    assert fencepost_store.expire("a")
    with pytest.raises(LockLost):
        guard.extend()
    with pytest.raises(fencepost.Invalid, match="acquire"):
        fencepost_store.fail("everything")  # type: ignore[arg-type]
    with pytest.raises(fencepost.Invalid):
        fencepost_store.lose("a", Loss.FORKED)
    with pytest.raises(fencepost.Invalid):
        fencepost_store.lose("a", "lightning")  # type: ignore[arg-type]


def test_a_frozen_store_answers_after_the_thaw(fencepost_store: Store) -> None:
    import threading

    locks = fencepost_store.locks()
    fencepost_store.freeze()
    guards: list[fencepost.Guard] = []
    waiting = threading.Thread(target=lambda: guards.append(locks.lock("a").acquire()))
    waiting.start()
    fencepost_store.thaw()
    waiting.join(LIMIT)
    guards[0].release()


def test_max_hold_ends_a_lock(fencepost_locks: fencepost.Locks, fencepost_clock: Clock) -> None:
    guard = fencepost_locks.lock("a", ttl=30, max_hold=100).acquire()
    fencepost_clock.advance(95)
    assert (guard.state.kind, guard.state.why) == ("at_risk", "max_hold")
    fencepost_clock.advance(10)
    assert guard.state.lost and guard.state.why == "max_hold"
    with pytest.raises(LockLost):
        guard.release()


def test_the_fixture_fails_a_test_that_leaves_a_lock_held(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        kept = []

        def test_it(fencepost_locks):
            kept.append(fencepost_locks.lock("mine").acquire())
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the test left locks held: mine*"])


# The command line.


def test_the_command_comes_with_the_package(redis_url: str, name: str) -> None:
    environment = {**os.environ, "FENCEPOST_STORE": redis_url}
    run = ["run", name, "--try", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]
    beside = str(Path(sys.executable).with_name("fencepost"))
    tokens = [
        int(
            subprocess.run(
                [*command, *run], env=environment, check=True, capture_output=True, timeout=LIMIT
            ).stdout
        )
        for command in ([sys.executable, "-m", "fencepost"], [beside])
    ]
    assert 0 < tokens[0] < tokens[1]
    version = subprocess.run([beside, "--version"], check=True, capture_output=True, text=True).stdout
    assert version.split()[:2] == ["fencepost", fencepost.__version__]


def test_the_command_passes_exit_codes_and_signals(redis_url: str, locks: fencepost.Locks, name: str) -> None:
    environment = {**os.environ, "FENCEPOST_STORE": redis_url}
    command = [sys.executable, "-m", "fencepost"]
    assert (
        subprocess.run([*command, "run", name, "--", "sh", "-c", "exit 7"], env=environment).returncode == 7
    )
    with locks.lock(name):
        busy = subprocess.run(
            [*command, "run", name, "--try", "--", "true"], env=environment, capture_output=True
        )
        assert busy.returncode == 75 and f"pid {os.getpid()}".encode() in busy.stderr
    process = subprocess.Popen([*command, "run", name, "--", "cat"], env=environment, stdin=subprocess.PIPE)
    while (shown := locks.show(name)) is None:
        pass
    # It has become the program: the pid that Python had holds the lock.
    assert shown.pid == process.pid
    process.send_signal(signal.SIGTERM)
    process.wait(LIMIT)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and locks.show(name) is None
