"""The same locks for asyncio: same names, same options, same errors.

    locks = await fencepost.aio.connect("redis://127.0.0.1:6379")
    async with locks.lock("order:42", ttl=10, wait=5) as guard:
        await save(order, fence=guard.token)

Any task may be cancelled at any await: what the store was asked for is undone in the background.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar, overload

from . import _fencepost as native
from . import _log
from ._base import BaseGuard, BaseGuardSet, BaseLock, BaseLocks, BaseLockSet, Entered, Template, cause, listed
from ._errors import Error, Invalid, LockLost, Uncertain
from ._locks import leave
from ._loop import make
from ._losses import call as call_back
from ._options import Duration, Options, Retry, fencing_token, name_of, optional_seconds, options, seconds
from ._values import Holder, Loss, Revoked

__all__ = ["Guard", "GuardSet", "Lock", "LockSet", "Locks", "connect", "init"]

logger = logging.getLogger("fencepost")

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
R = TypeVar("R")


async def connect(url: str) -> Locks:
    """Connects to the store that `url` names and checks that it is fit for locks. See `fencepost.connect`.

    What it returns may be used from any event loop.
    """
    _log.follow()
    return Locks(await make(native.connect(url)), url)


async def init(url: str, *, reconfigure: bool = False) -> list[str]:
    """Declares a new deployment to a store that needs that. See `fencepost.init`."""
    _log.follow()
    return await make(native.init(url, reconfigure))


class Locks(BaseLocks):
    """The locks of one store. Made by `connect`; as an async context manager it closes the connections."""

    async def _native(self) -> native.Locks:
        self._usable()
        return self._adopt(await make(self._reconnection())) if self._inherited() else self._connected

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        retry: Retry | None = None,
        note: str = "",
        renew: bool = True,
        renew_every: Duration | None = None,
        max_hold: Duration | None = None,
        ignore_loss: bool = False,
        cancel_on_loss: bool = False,
    ) -> Lock:
        """A lock by name, with the options of `fencepost.Locks.lock` and one more:

        cancel_on_loss: if the lock is lost, the task inside `async with` is cancelled where it stands, and
        the block ends with `LockLost`."""
        chosen = options(ttl, wait, retry, note, renew, renew_every, max_hold)
        return Lock(self, name, chosen, ignore_loss, cancel_on_loss)

    def all(
        self,
        names: Iterable[str],
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        retry: Retry | None = None,
        note: str = "",
        renew: bool = True,
        renew_every: Duration | None = None,
        max_hold: Duration | None = None,
        ignore_loss: bool = False,
    ) -> LockSet:
        """Several locks that are acquired together: in the order of their names, all or none, with a token
        each."""
        chosen = options(ttl, wait, retry, note, renew, renew_every, max_hold)
        return LockSet(self, names, chosen, ignore_loss)

    @overload
    def guarded(self, name: str, *, inject: None = None, **chosen: Any) -> Callable[[F], F]: ...

    @overload
    def guarded(
        self, name: str, *, inject: str, **chosen: Any
    ) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[..., Coroutine[Any, Any, R]]]: ...

    def guarded(self, name: str, *, inject: str | None = None, **chosen: Any) -> Any:
        """A decorator for coroutine functions. See `fencepost.Locks.guarded`."""

        self.lock(name, **chosen)  # refuses wrong options here already

        def decorate(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            template = Template(name, function, inject)
            if not inspect.iscoroutinefunction(function):
                raise Invalid("a plain function needs the decorator of fencepost.connect")

            @functools.wraps(function)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                async with self.lock(template.fill(args, kwargs), **chosen) as guard:
                    if inject is not None:
                        kwargs[inject] = guard
                    return await function(*args, **kwargs)

            return guarded

        return decorate

    async def attach(self, handle: str, **chosen: Any) -> Guard:
        """Goes on with a lock that was detached, maybe by another process. Options are those of `lock`.

        The lock has a new identity from then on. Of two that attach one handle, one gets the lock and the
        other one `LockLost`, and the handle is good for nothing any more. `detach` gives the next one.

        If this is cancelled, the handle stays good. If the store had answered by then, the handle is used up
        and the lock is released."""
        lock = self.lock(name_of(handle), **chosen)
        return lock._guard(await make(lock._on(await self._native()).attach(handle)))

    async def extend(self, handle: str, ttl: Duration) -> None:
        """Makes a detached lock end `ttl` from now, unless it ends later already. The handle stays good."""
        name_of(handle)
        await make((await self._native()).extend(handle, seconds("ttl", ttl)))

    async def release(self, handle: str) -> None:
        """Gives a detached lock back. If this is cancelled, the lock is released all the same."""
        name_of(handle)
        await make((await self._native()).release(handle))

    async def list(self, prefix: str = "") -> list[Holder]:
        """All holders whose name starts with `prefix`, by name.

        A lock that cannot be read hides no other: the logger `fencepost` warns why it could not."""
        return listed(*await make((await self._native()).list(prefix)))

    async def show(self, name: str) -> Holder | None:
        """Who holds a lock; `None` if nobody does."""
        return await make((await self._native()).show(name))

    async def force_release(
        self, name: str, reason: str, *, now: bool = False, token: int | None = None
    ) -> Revoked | None:
        """Takes a lock away from its holder, which learns the reason. See `fencepost.Locks.force_release`."""
        token = None if token is None else fencing_token(token)
        revoked = await make((await self._native()).force_release(name, reason, now, token))
        return None if revoked is None else Revoked(*revoked)

    async def check(self) -> None:
        """Raises what is in the way if the store cannot grant locks now."""
        await make((await self._native()).check())

    async def close(self) -> None:
        """Waits for releases that are still under way, a few seconds at most, and ends the connections."""
        if not self._closed and not self._inherited():
            self._closed = True
            await make(self._connected.close())

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Lock(BaseLock[Locks]):
    """A name and options; holds nothing until it is acquired. As an async context manager it acquires, and
    releases at the end of the block; tasks may share it."""

    def __init__(
        self, locks: Locks, name: str, chosen: Options, ignore_loss: bool, cancel_on_loss: bool = False
    ) -> None:
        super().__init__(locks, name, chosen, ignore_loss)
        self._cancel_on_loss = cancel_on_loss
        self._entered = Entered(asyncio.current_task)

    def _guard(self, held: native.Guard) -> Guard:
        return Guard(held, self._ignore_loss, self._cancel_on_loss)

    async def acquire(self) -> Guard:
        """Acquires the lock, waiting as long as `wait` says. Raises `Busy` or `LockTimeout`, both with the
        holder."""
        return self._guard(await make(self._on(await self._locks._native()).acquire()))

    async def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now; `None` if somebody else has it."""
        held = await make(self._on(await self._locks._native()).try_acquire())
        return None if held is None else self._guard(held)

    async def __aenter__(self) -> Guard:
        guard = await self.acquire()
        self._entered.push(guard)
        return guard._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class Cancellation:
    """Cancels a task when a lock is lost. Not through the guard, which would be held for as long as it is
    watched."""

    def __init__(self, lost: native.Call[tuple[str, str] | None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled = False
        # Python 3.10 does not count.
        self._before = task.cancelling() if hasattr(task, "cancelling") else 0
        self._watch = asyncio.get_running_loop().create_task(self._run(lost))

    async def _run(self, lost: native.Call[tuple[str, str] | None]) -> None:
        if await make(lost) is not None:
            self._cancelled = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """Whether a block ends with `error` because of this. Somebody else may have cancelled the task since;
        theirs goes on."""
        self._watch.cancel()
        if not self._cancelled:
            return False
        uncancel = getattr(self._task, "uncancel", None)
        alone = uncancel is None or uncancel() <= self._before
        return alone and isinstance(error, asyncio.CancelledError)


class Guard(BaseGuard):
    """A held lock. As an async context manager it is released at the end of the block; one that is let go is
    released in the background."""

    def __init__(self, held: native.Guard, ignore_loss: bool, cancel_on_loss: bool = False) -> None:
        super().__init__(held, ignore_loss)
        self._cancel_on_loss = cancel_on_loss
        self._cancellation: Cancellation | None = None

    async def wait_lost(self) -> Loss | None:
        """Waits until the lock is lost and says why; `None` if the guard is released first."""
        return cause(await make(self._native.lost()))

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """Calls `callback` with the cause once if the lock is lost, in this event loop."""

        # Not the guard itself, which would be held for as long as it is watched.
        lost = self._native.lost()

        async def watch() -> None:
            why = cause(await make(lost))
            if why is not None:
                call_back(callback, why)

        task = asyncio.get_running_loop().create_task(watch(), name=f"fencepost on_lost {self.name}")
        _watching.add(task)
        task.add_done_callback(_watching.discard)

    async def extend(self, ttl: Duration | None = None) -> float | None:
        """Makes the lease end one ttl (or `ttl`) from now, unless it ends later already; the time left."""
        return await make(self._native.extend(optional_seconds("ttl", ttl)))

    async def release(self) -> None:
        """Gives the lock back. Raises `LockLost` if it was not ours any more. If this is cancelled, the lock
        is released all the same."""
        self._settled = True
        try:
            await make(self._native.release())
        finally:
            # Does nothing, unless the call was never made.
            self._native.let_go()

    async def detach(self) -> str:
        """Turns the lock into a lease of one ttl that nobody renews and that survives this process; the
        handle by which `Locks.attach` goes on with it. If this is cancelled, the lock is released: nobody has
        the handle."""
        self._settled = True
        try:
            return await make(self._native.detach())
        finally:
            self._native.let_go()

    async def __aenter__(self) -> Guard:
        return self._enter()

    def _enter(self) -> Guard:
        if self._cancel_on_loss:
            self._cancellation = Cancellation(self._native.lost())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = False
        if self._cancellation is not None:
            ours = self._cancellation.end(error)
            self._cancellation = None
        if self._settled:
            return
        try:
            await self.release()
        except LockLost as lost:
            if ours:
                raise lost from error
            leave(error, lost, self._ignore_loss)
        except Uncertain as uncertain:
            # The work ended while the lock was valid; an unanswered release does not change that.
            logger.warning("%s", uncertain)


_watching: set[asyncio.Task[None]] = set()


class LockSet(BaseLockSet[Locks]):
    """Several names that are acquired together. Made by `Locks.all`."""

    def __init__(self, locks: Locks, names: Iterable[str], chosen: Options, ignore_loss: bool) -> None:
        super().__init__(locks, names, chosen, ignore_loss)
        self._entered = Entered(asyncio.current_task)

    async def _on(self) -> native.LockSet:
        return (await self._locks._native()).all(self._names, self._options)

    async def acquire(self) -> GuardSet:
        """Acquires all of them within one `wait`; on failure none is kept."""
        held = await make((await self._on()).acquire())
        return GuardSet([Guard(one, self._ignore_loss) for one in held])

    async def try_acquire(self) -> GuardSet | None:
        """Acquires all of them if all are free now; `None` if one is not."""
        held = await make((await self._on()).try_acquire())
        return None if held is None else GuardSet([Guard(one, self._ignore_loss) for one in held])

    async def __aenter__(self) -> GuardSet:
        guards = await self.acquire()
        self._entered.push(guards)
        return guards

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class GuardSet(BaseGuardSet[Guard]):
    """Several held locks."""

    async def release(self) -> None:
        """Gives all of them back, the last one first. Raises the first error; the others are released all the
        same."""
        errors: list[Error] = []
        for guard in reversed(self._guards):
            try:
                await guard.release()
            except Error as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def __aenter__(self) -> GuardSet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first: BaseException | None = error
        try:
            for guard in reversed(self._guards):
                try:
                    await guard.__aexit__(type(first) if first else None, first, None)
                except LockLost as lost:
                    first = lost
        finally:
            # Cut off half-way, by Ctrl-C or a cancellation: the others are given back all the same.
            self._let_go()
        if first is not None and first is not error:
            raise first
