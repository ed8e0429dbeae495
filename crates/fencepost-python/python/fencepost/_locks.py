"""Locks for code that blocks. `fencepost.aio` has the same for asyncio."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, overload

from . import _fencepost as native
from . import _log, _losses
from ._base import (
    BaseGuard,
    BaseGuardSet,
    BaseLock,
    BaseLocks,
    BaseLockSet,
    Entered,
    Template,
    cause,
    chain,
    listed,
)
from ._errors import Error, Invalid, LockLost, Uncertain
from ._options import Duration, Options, Retry, fencing_token, name_of, optional_seconds, options, seconds
from ._values import Holder, Loss, Revoked

logger = logging.getLogger("fencepost")

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def connect(url: str) -> Locks:
    """Connects to the store that `url` names and checks that it is fit for locks.

    `file:` · `redis://host` · `redis+sentinel://a,b,c/service` · `redlock://a,b,c` · `postgres://host/db` ·
    `etcd://a,b,c` · `zookeeper://a,b,c` · `memory:`, as the command line takes them.

    Share one per process: it is safe for threads, and a forked child that uses it connects anew by itself."""
    _log.follow()
    return Locks(native.connect(url).wait(), url)


def init(url: str, *, reconfigure: bool = False) -> list[str]:
    """Declares a new deployment to a store that needs that (Redlock nodes, a PostgreSQL schema), or with
    `reconfigure` a change of one, and says what was done. For operators: do not call this when a program
    starts."""
    _log.follow()
    return native.init(url, reconfigure).wait()


class Locks(BaseLocks):
    """The locks of one store. Made by `connect`; as a context manager it closes the connections."""

    def _native(self) -> native.Locks:
        self._usable()
        return self._adopt(self._reconnection().wait()) if self._inherited() else self._connected

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
    ) -> Lock:
        """A lock by name. Holds nothing yet: use it as a context manager, or call `acquire` or `try_acquire`.

        ttl: how long the lease lasts without renewal (default: the URL's `ttl`, else 30 s).
        wait: how long to wait while somebody else has it; 0 is not at all, `None` for ever.
        retry: polls by a schedule instead of queueing at the store.
        note: free text that others see while the lock is held.
        renew: whether the lock is renewed while the guard lives.
        renew_every: how often (default: a third of the ttl).
        max_hold: the longest it may be held; after that it is lost. Catches a holder that hangs.
        ignore_loss: leaving the block after a loss does not raise `LockLost`.
        """
        return Lock(self, name, options(ttl, wait, retry, note, renew, renew_every, max_hold), ignore_loss)

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
    ) -> Callable[[Callable[..., R]], Callable[..., R]]: ...

    def guarded(self, name: str, *, inject: str | None = None, **chosen: Any) -> Any:
        """A decorator: each call of the function runs under the lock. The function's arguments fill in the
        name, as in `"report:{day}"`; other options are those of `lock`. `inject` names a keyword argument
        that gets the guard."""

        self.lock(name, **chosen)  # refuses wrong options here already

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.iscoroutinefunction(function):
                raise Invalid("a coroutine needs the decorator of fencepost.aio.connect")
            template = Template(name, function, inject)

            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                with self.lock(template.fill(args, kwargs), **chosen) as guard:
                    if inject is not None:
                        kwargs[inject] = guard
                    return finished(function(*args, **kwargs))

            return guarded

        return decorate

    def attach(self, handle: str, **chosen: Any) -> Guard:
        """Goes on with a lock that was detached, maybe by another process. Options are those of `lock`.

        The lock has a new identity from then on. Of two that attach one handle, one gets the lock and the
        other one `LockLost`, and the handle is good for nothing any more. `detach` gives the next one."""
        lock = self.lock(name_of(handle), **chosen)
        return Guard(lock._on(self._native()).attach(handle).wait(), lock._ignore_loss)

    def extend(self, handle: str, ttl: Duration) -> None:
        """Makes a detached lock end `ttl` from now, unless it ends later already. The handle stays good."""
        name_of(handle)
        self._native().extend(handle, seconds("ttl", ttl)).wait()

    def release(self, handle: str) -> None:
        """Gives a detached lock back."""
        name_of(handle)
        self._native().release(handle).wait()

    def list(self, prefix: str = "") -> list[Holder]:
        """All holders whose name starts with `prefix`, by name.

        A lock that cannot be read hides no other: the logger `fencepost` warns why it could not."""
        return listed(*self._native().list(prefix).wait())

    def show(self, name: str) -> Holder | None:
        """Who holds a lock; `None` if nobody does."""
        return self._native().show(name).wait()

    def force_release(
        self, name: str, reason: str, *, now: bool = False, token: int | None = None
    ) -> Revoked | None:
        """Takes a lock away from its holder, which learns the reason. It is free when the holder lets go or
        its lease ends; with `now` at once, while the victim may still work. `None` if nobody holds it.

        token: only from the holder that has this token, as `show` told it. Whoever has come after it keeps
        the lock, and `Changed` is raised.
        """
        token = None if token is None else fencing_token(token)
        revoked = self._native().force_release(name, reason, now, token).wait()
        return None if revoked is None else Revoked(*revoked)

    def check(self) -> None:
        """Raises what is in the way if the store cannot grant locks now."""
        self._native().check().wait()

    def close(self) -> None:
        """Waits for releases that are still under way, a few seconds at most, and ends the connections."""
        self._end()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lock(BaseLock[Locks]):
    """A name and options; holds nothing until it is acquired. As a context manager it acquires, and releases
    at the end of the block; threads may share it."""

    def __init__(self, locks: Locks, name: str, chosen: Options, ignore_loss: bool) -> None:
        super().__init__(locks, name, chosen, ignore_loss)
        self._entered = Entered(threading.get_ident)

    def acquire(self) -> Guard:
        """Acquires the lock, waiting as long as `wait` says. Raises `Busy` or `LockTimeout`, both with the
        holder."""
        return Guard(self._on(self._locks._native()).acquire().wait(), self._ignore_loss)

    def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now; `None` if somebody else has it."""
        held = self._on(self._locks._native()).try_acquire().wait()
        return None if held is None else Guard(held, self._ignore_loss)

    def __enter__(self) -> Guard:
        guard = self.acquire()
        try:
            self._entered.push(guard)
            return guard
        except BaseException:
            # Ctrl-C before the block has begun: nobody will leave it.
            self._entered.forget(guard)
            guard._let_go()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


class Guard(BaseGuard):
    """A held lock. As a context manager it is released at the end of the block; one that is let go is
    released in the background."""

    def wait_lost(self, timeout: Duration | None = None) -> Loss | None:
        """Waits until the lock is lost and says why; `None` if the guard is released or the timeout passes
        first."""
        limit = optional_seconds("timeout", timeout)
        return cause(self._native.lost(limit).wait())

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """Calls `callback` with the cause once if the lock is lost. It runs on a thread of the package's own;
        let it be short, and raise nothing."""
        _losses.tell(self, callback)

    def extend(self, ttl: Duration | None = None) -> float | None:
        """Makes the lease end one ttl (or `ttl`) from now, unless it ends later already; the time left."""
        return self._native.extend(optional_seconds("ttl", ttl)).wait()

    def release(self) -> None:
        """Gives the lock back. Raises `LockLost` if it was not ours any more."""
        self._settled = True
        try:
            self._native.release().wait()
        finally:
            # Does nothing, unless Ctrl-C came before the call was made.
            self._native.let_go()

    def detach(self) -> str:
        """Turns the lock into a lease of one ttl that nobody renews and that survives this process; the
        handle by which `Locks.attach` goes on with it."""
        self._settled = True
        try:
            return self._native.detach().wait()
        finally:
            self._native.let_go()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        try:
            self.release()
        except LockLost as lost:
            leave(error, lost, self._ignore_loss)
        except Uncertain as uncertain:
            # The work ended while the lock was valid; an unanswered release does not change that.
            logger.warning("%s", uncertain)


def finished(result: Any) -> Any:
    """The result of a function that ran under a lock, which must not be work that is still to be done."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise Invalid(
        "the function returned an awaitable, which would run without the lock; use fencepost.aio.connect"
    )


def leave(error: BaseException | None, lost: LockLost, ignore: bool) -> None:
    """Ends a block whose lock was lost. The block's own error, if any, goes on with the loss noted behind
    it."""
    if ignore:
        logger.warning("%s", lost)
    elif error is None:
        raise lost
    elif error is not lost:
        chain(error, lost)


class LockSet(BaseLockSet[Locks]):
    """Several names that are acquired together. Made by `Locks.all`."""

    def __init__(self, locks: Locks, names: Iterable[str], chosen: Options, ignore_loss: bool) -> None:
        super().__init__(locks, names, chosen, ignore_loss)
        self._entered = Entered(threading.get_ident)

    def _on(self, connected: native.Locks) -> native.LockSet:
        return connected.all(self._names, self._options)

    def acquire(self) -> GuardSet:
        """Acquires all of them within one `wait`; on failure none is kept."""
        held = self._on(self._locks._native()).acquire().wait()
        return GuardSet([Guard(one, self._ignore_loss) for one in held])

    def try_acquire(self) -> GuardSet | None:
        """Acquires all of them if all are free now; `None` if one is not."""
        held = self._on(self._locks._native()).try_acquire().wait()
        return None if held is None else GuardSet([Guard(one, self._ignore_loss) for one in held])

    def __enter__(self) -> GuardSet:
        guards = self.acquire()
        try:
            self._entered.push(guards)
            return guards
        except BaseException:
            # Ctrl-C before the block has begun: nobody will leave it.
            self._entered.forget(guards)
            guards._let_go()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


class GuardSet(BaseGuardSet[Guard]):
    """Several held locks."""

    def release(self) -> None:
        """Gives all of them back, the last one first. Raises the first error; the others are released all the
        same."""
        errors: list[Error] = []
        for guard in reversed(self._guards):
            try:
                guard.release()
            except Error as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> GuardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first: BaseException | None = error
        try:
            for guard in reversed(self._guards):
                try:
                    guard.__exit__(type(first) if first else None, first, None)
                except LockLost as lost:
                    first = lost
        finally:
            # Cut off half-way, by Ctrl-C or a cancellation: the others are given back all the same.
            self._let_go()
        if first is not None and first is not error:
            raise first
