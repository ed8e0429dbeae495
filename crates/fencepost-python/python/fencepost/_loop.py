"""Makes calls for event loops. Each loop that makes one gets a bridge: a socket that it reads, and futures
that it wakes.

No other thread ever touches a loop, so a loop that was closed is simply not woken any more.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TypeVar

from . import _fencepost as native

T = TypeVar("T")


class Bridge:
    """The calls of one event loop that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._native = native.Bridge()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        loop.add_reader(self._native.fileno(), self._wake)

    async def make(self, call: native.Call[T], loop: asyncio.AbstractEventLoop) -> T:
        self._next += 1
        number = self._next
        done: asyncio.Future[None] = loop.create_future()
        self._waiting[number] = done
        try:
            call.start(self._native, number)
            await done
            return call.result()
        finally:
            # However this ends: a call that goes on or a result that nobody takes is given up here.
            self._waiting.pop(number, None)
            call.close()

    def _wake(self) -> None:
        for number in self._native.drain():
            done = self._waiting.get(number)
            if done is not None and not done.done():
                done.set_result(None)


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


async def make(call: native.Call[T]) -> T:
    """Makes a call and waits for its result. Cancelling it undoes what the store was asked for."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = Bridge(loop)
    return await bridge.make(call, loop)
