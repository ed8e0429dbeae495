"""The double for tests of code that uses locks: a store in memory, on a clock and with faults of the test's
choosing.

    clock = Clock()
    store = Store(clock)
    locks = store.locks()
    with pytest.raises(fencepost.LockLost):
        with locks.lock("job", ttl=30):
            clock.leap(60)                      # the process was frozen for a minute

With pytest, the fixtures `fencepost_store` and `fencepost_clock` are such a store and its clock.
"""

from __future__ import annotations

from typing import Literal

from . import _fencepost as native
from . import aio
from ._locks import Locks
from ._loop import make
from ._options import Duration, seconds
from ._values import Loss

__all__ = ["Call", "Clock", "Store"]

Call = Literal["acquire", "renew", "release"]
"""A kind of call to the store: `acquire` is also attach, `renew` also extend and detach."""


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self._native = native.Clock()

    def advance(self, by: Duration) -> None:
        """Lets time pass as it does for a running process: every renewal that falls due on the way is
        made."""
        self._native.advance(seconds("a step", by)).wait()

    async def advance_async(self, by: Duration) -> None:
        """As `advance`, for tests that run in an event loop."""
        await make(self._native.advance(seconds("a step", by)))

    def leap(self, by: Duration) -> None:
        """Lets time leap, as it does for a process that was stopped: nothing runs in between."""
        self._native.leap(seconds("a leap", by))


class Store:
    """A store in memory, on the system's clock or on one that the test moves."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._native = native.Store(None if clock is None else clock._native)

    def locks(self) -> Locks:
        """The locks of this store, for code that blocks."""
        return Locks(self._native.locks(), None)

    def aio_locks(self) -> aio.Locks:
        """The locks of this store, for asyncio."""
        return aio.Locks(self._native.locks(), None)

    def expire(self, name: str) -> bool:
        """Ends the lease of a name now, without telling the holder. `False` if nobody holds it."""
        return self._native.expire(name)

    def lose(self, name: str, why: Loss = Loss.TAKEN, *, reason: str = "") -> bool:
        """Takes a lock away and tells the holder at once, as a push would. `False` if nobody holds it."""
        return self._native.lose(name, str(why), reason)

    def fail(self, call: Call, times: int = 1) -> None:
        """Lets the next calls of a kind fail without having any effect."""
        self._native.fail(call, times)

    def lose_answers(self, call: Call, times: int = 1) -> None:
        """Lets the next calls of a kind take effect, and loses their answers."""
        self._native.lose_answers(call, times)

    def delay(self, call: Call, by: Duration) -> None:
        """Delays the answers to a kind of call, after they have taken effect. Zero ends it."""
        self._native.delay(call, seconds("a delay", by))

    def freeze(self) -> None:
        """Stops answering. Calls hang, without effect, until `thaw`."""
        self._native.freeze()

    def thaw(self) -> None:
        """Answers again."""
        self._native.thaw()

    @property
    def held(self) -> int:
        """How many locks are held now."""
        return self._native.held()
