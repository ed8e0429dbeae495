"""What a type checker sees. `make lint` runs mypy over this file: an `assert_type` that does not hold is an
error there, and so is an `ignore` that nothing needs."""

from __future__ import annotations

import subprocess
import sys
import typing
from typing import Any, assert_type

import pytest

import fencepost
from fencepost import Distribution, Stats
from fencepost.testing import Store


def test_decorated_functions_keep_their_types() -> None:
    locks = Store().locks()

    @locks.guarded("report:{day}", ttl=10)
    def plain(day: int) -> str:
        return f"report {day}"

    @locks.guarded("report:{day}", inject="guard", wait=0)
    def injected(day: int, *, guard: fencepost.Guard) -> str:
        return guard.name

    class Shop:
        @locks.guarded("shop:{number}")
        def open(self, number: int) -> int:
            return number

        @locks.guarded("shop:{number}", inject="guard")
        def close(self, number: int, guard: fencepost.Guard | None = None) -> str:
            assert guard is not None
            return guard.name

    assert assert_type(plain(1), str) == "report 1"
    assert assert_type(injected(1), str) == "report:1"
    assert assert_type(Shop().open(1), int) == 1
    assert assert_type(Shop().close(1), str) == "shop:1"
    plain("monday")  # type: ignore[arg-type]


async def test_decorated_coroutines_keep_their_types() -> None:
    locks = Store().aio_locks()

    @locks.guarded("report:{day}", ttl=10)
    async def plain(day: int) -> str:
        return f"report {day}"

    @locks.guarded("report:{day}", inject="guard", cancel_on_loss=True)
    async def injected(day: int, *, guard: fencepost.aio.Guard) -> str:
        return guard.name

    assert assert_type(await plain(1), str) == "report 1"
    assert assert_type(await injected(1), str) == "report:1"
    await plain("monday")  # type: ignore[arg-type]
    with pytest.raises(fencepost.Invalid):
        locks.guarded("x")(lambda: None)  # type: ignore[type-var]


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that is announced."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return value.keys() == hints.keys() and all(fits(value[key], hints[key]) for key in hints)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())
    if origin is list:
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    if origin is tuple:
        return isinstance(value, tuple) and all(map(fits, value, inner))
    return type(value) is kind


def test_stats_are_what_their_type_says() -> None:
    locks = Store().locks()
    with locks.lock("a"):
        assert locks.lock("a").try_acquire() is None
    stats = assert_type(locks.stats(), Stats)
    assert fits(stats, Stats), stats
    assert (stats["acquired"], stats["released"], stats["busy"]) == (1, 1, 1)
    waiting = assert_type(stats["waiting"], Distribution)
    assert waiting["count"] == 1 == sum(count for _, count in waiting["buckets"])
    causes = {str(why) for why in fencepost.Loss} - {"forked", "unknown"}
    assert stats["lost"].keys() == causes and stats["lost"][fencepost.Loss.TAKEN] == 0
    if typing.TYPE_CHECKING:
        stats["acquierd"]  # type: ignore[typeddict-item]


def test_modules_are_imported_when_they_are_first_used() -> None:
    text = """
import fencepost, sys
assert "asyncio" not in sys.modules
fencepost.aio.connect, fencepost.fence.activate, fencepost.testing.Store
try:
    fencepost.nothing
except AttributeError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert told == "module 'fencepost' has no attribute 'nothing'\n"
    if typing.TYPE_CHECKING:
        fencepost.nothing  # type: ignore[attr-defined]
