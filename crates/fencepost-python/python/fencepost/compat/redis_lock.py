"""`Lock` with the call shape of `redis.lock.Lock`, and `AsyncLock` with that of `redis.asyncio.lock.Lock`:

    - from redis.lock import Lock
    + from fencepost.compat.redis_lock import Lock

or `client.lock(name, lock_class=Lock)`. The same key, so both exclude each other. What is different:

- Waiters queue at the server and are woken; `sleep` is not used.
- A lock without `timeout` is a lease that is renewed for as long as this process lives, instead of one that
  never ends.
- `local.token` is a handle, and no value of the caller's own: whoever has it can extend and release the lock.
- A forked child does not own what its parent has acquired, unless `local.token` is handed on to a lock of its
  own.
- `extend` never shortens, and a `timeout` below 50 ms is 50 ms.
- A `release` of `AsyncLock` that is cancelled releases all the same.
- `fencing_token` is the number to pass with every write.
"""

from __future__ import annotations

import logging
import os
import threading
from types import SimpleNamespace, TracebackType
from typing import Any, Literal

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, RedisError

from .. import _errors, _process, aio
from .. import _fencepost as native
from .._locks import Guard, Locks
from . import _stores

__all__ = ["AsyncLock", "Lock", "LockError", "LockNotOwnedError"]

logger = logging.getLogger(__name__)

_held: dict[str, Guard] = {}
_held_aio: dict[str, aio.Guard] = {}
"""The guards of locks without a timeout, by handle. They are held until they are released, whatever becomes
of the object and the thread that have acquired them."""

os.register_at_fork(after_in_child=_held.clear)
os.register_at_fork(after_in_child=_held_aio.clear)


class _Base:
    """What both have in common: everything that does not wait."""

    _asyncio: bool

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        with _translated(name):
            self.name = _stores.key(name)
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        self._url = _stores.client_url(redis, self._asyncio)

    @property
    def _ttl(self) -> float | None:
        """The lease, if the lock has a timeout. 0 is none, as in redis-py."""
        return _stores.rounded(self.timeout) if self.timeout else None

    @property
    def _handle(self) -> str | None:
        token = getattr(self.local, "token", None)
        return token.decode() if isinstance(token, bytes) else token

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the lock that is held."""
        if self._handle is None:
            return None
        with _translated(self.name):
            return native.parse_handle(self._handle)[2]

    def _limit(
        self, blocking: bool | None, blocking_timeout: float | None, token: str | bytes | None
    ) -> float | None:
        """How long to wait for the lock; `None` for ever."""
        if token is not None:
            raise LockError(
                "every acquisition has an identity of its own; hand on `local.token` instead",
                lock_name=self.name,
            )
        if not (self.blocking if blocking is None else blocking):
            return 0
        return self.blocking_timeout if blocking_timeout is None else blocking_timeout

    def _own(self, handle: str) -> None:
        self.local.acquired = (handle, _process.generation)
        self.local.token = handle.encode()

    def _inherited(self) -> bool:
        """Whether it was a parent process that has acquired the lock. A handle that was handed on is the
        caller's own."""
        handle, generation = getattr(self.local, "acquired", (None, 0))
        return handle == self._handle and generation != _process.generation

    def _own_handle(self, unlocked: str) -> str:
        """The handle of the lock that is held here."""
        handle = self._handle
        if handle is None:
            raise LockError(unlocked, lock_name=self.name)
        if self._inherited():
            raise LockNotOwnedError(
                "The lock is that of the process that this one was forked from; "
                "hand on `local.token` to use it here.",
                lock_name=self.name,
            )
        return handle

    def _extendable(self, what: str) -> str:
        if self._handle is not None and self._ttl is None:
            raise LockError(f"Cannot {what} a lock with no timeout", lock_name=self.name)
        return self._own_handle(f"Cannot {what} an unlocked lock")

    def _leave(self, failed: LockError, error: BaseException | None) -> None:
        if self.raise_on_release_error:
            if failed.__cause__ is not None:
                # The block's own error, which what comes from the native half does not refer to.
                failed.__cause__.__context__ = error
            raise failed
        logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


_UNLOCKED = "Cannot release a lock that's not owned or is already unlocked."
_UNAVAILABLE = "Unable to acquire lock within the time specified"


class Lock(_Base):
    """A lock on one Redis."""

    _asyncio = False

    @property
    def _locks(self) -> Locks:
        return _stores.locks(self._url)

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock; whether that worked."""
        limit = self._limit(blocking, blocking_timeout, token)
        with _translated(self.name):
            guard = _stores.acquire(self._locks, self.name, self._ttl, limit, renew=self._ttl is None)
            if guard is None:
                return False
            if self._ttl is None:
                # Renewed for as long as it is held here; the process's end releases it.
                handle = guard._native.handle()
                _held[handle] = guard
            else:
                # A lease that lasts as long as it was asked to, whatever becomes of this process.
                handle = guard.detach()
            self._own(handle)
        return True

    def locked(self) -> bool:
        """Whether anybody has the lock."""
        with _translated(self.name):
            return self._locks.show(self.name) is not None

    def owned(self) -> bool:
        """Whether this lock has it."""
        handle = self._handle
        if handle is None or self._inherited():
            return False
        with _translated(self.name):
            shown = self._locks.show(self.name)
            return shown is not None and shown.owner == native.parse_handle(handle)[1]

    def release(self) -> None:
        """Gives the lock back."""
        handle = self._own_handle(_UNLOCKED)
        self.local.token = None
        with _translated(self.name):
            guard = _held.pop(handle, None)
            if guard is not None:
                guard.release()
            else:
                self._locks.release(handle)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Makes the lock last longer: by `additional_time`, or with `replace_ttl` until then from now."""
        handle = self._extendable("extend")
        with _translated(self.name):
            # The store's word, not this object's: others that have the handle may have extended it as well.
            shown = None if replace_ttl else self._locks.show(self.name)
            left = 0.0 if shown is None else shown.expires_in or 0.0
            self._locks.extend(handle, _stores.rounded(additional_time + left))
        return True

    def reacquire(self) -> Literal[True]:
        """Makes the lock last for its `timeout` from now."""
        handle = self._extendable("reacquire")
        with _translated(self.name):
            self._locks.extend(handle, self._ttl or 0.0)
        return True

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise LockError(_UNAVAILABLE, lock_name=self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockError as failed:
            self._leave(failed, error)


class AsyncLock(_Base):
    """A lock on one Redis, for a client of `redis.asyncio`. Any task may be cancelled at any await: what
    the server was asked for is undone."""

    _asyncio = True

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock; whether that worked."""
        limit = self._limit(blocking, blocking_timeout, token)
        with _translated(self.name):
            locks = await _stores.aio_locks(self._url)
            guard = await _stores.aio_acquire(locks, self.name, self._ttl, limit, renew=self._ttl is None)
            if guard is None:
                return False
            if self._ttl is None:
                handle = guard._native.handle()
                _held_aio[handle] = guard
            else:
                handle = await guard.detach()
            self._own(handle)
        return True

    async def locked(self) -> bool:
        """Whether anybody has the lock."""
        with _translated(self.name):
            return await (await _stores.aio_locks(self._url)).show(self.name) is not None

    async def owned(self) -> bool:
        """Whether this lock has it."""
        handle = self._handle
        if handle is None or self._inherited():
            return False
        with _translated(self.name):
            shown = await (await _stores.aio_locks(self._url)).show(self.name)
            return shown is not None and shown.owner == native.parse_handle(handle)[1]

    async def release(self) -> None:
        """Gives the lock back. If the server does not answer, it can be called again. If this is cancelled,
        the lock is released all the same."""
        handle = self._own_handle(_UNLOCKED)
        try:
            with _translated(self.name):
                guard = _held_aio.pop(handle, None)
                if guard is not None:
                    await guard.release()
                else:
                    await (await _stores.aio_locks(self._url)).release(handle)
        except ConnectionError:
            raise
        except BaseException:
            self.local.token = None
            raise
        self.local.token = None

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Makes the lock last longer: by `additional_time`, or with `replace_ttl` until then from now."""
        handle = self._extendable("extend")
        with _translated(self.name):
            locks = await _stores.aio_locks(self._url)
            shown = None if replace_ttl else await locks.show(self.name)
            left = 0.0 if shown is None else shown.expires_in or 0.0
            await locks.extend(handle, _stores.rounded(additional_time + left))
        return True

    async def reacquire(self) -> Literal[True]:
        """Makes the lock last for its `timeout` from now."""
        handle = self._extendable("reacquire")
        with _translated(self.name):
            await (await _stores.aio_locks(self._url)).extend(handle, self._ttl or 0.0)
        return True

    async def __aenter__(self) -> AsyncLock:
        if await self.acquire():
            return self
        raise LockError(_UNAVAILABLE, lock_name=self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError as failed:
            self._leave(failed, error)


class _translated:
    """Raises the errors that redis-py's lock raises."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _errors.LockLost):
            raise LockNotOwnedError(str(error), lock_name=self._name) from error
        if isinstance(error, (_errors.Unavailable, _errors.Uncertain)):
            raise ConnectionError(str(error)) from error
        if isinstance(error, _errors.Invalid):
            raise LockError(str(error), lock_name=self._name) from error
        if isinstance(error, _errors.Error):
            raise RedisError(str(error)) from error
