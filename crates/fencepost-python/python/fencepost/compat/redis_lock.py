"""`Lock` with the call shape of `redis.lock.Lock`:

    - from redis.lock import Lock
    + from fencepost.compat.redis_lock import Lock

or `client.lock(name, lock_class=Lock)`. The same key, so both exclude each other. What is different:

- Waiters queue at the server and are woken; `sleep` is not used.
- A lock without `timeout` is a lease that is renewed for as long as this process lives, instead of one that never ends.
- `local.token` is a handle, and no value of the caller's own: whoever has it can extend and release the lock.
- A forked child does not own what its parent has acquired, unless `local.token` is handed on to a lock of its own.
- `extend` never shortens, and a `timeout` is at least 50 ms.
- `fencing_token` is the number to pass with every write.
"""

from __future__ import annotations

import logging
import os
import threading
from types import SimpleNamespace, TracebackType
from typing import Any, Literal

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, RedisError

from .. import _errors, _process
from .._locks import Guard, Locks
from . import _stores

__all__ = ["Lock", "LockError", "LockNotOwnedError"]

logger = logging.getLogger(__name__)

_held: dict[str, Guard] = {}
"""The guards of locks without a timeout, by handle. They are held until they are released, whatever becomes of the object
and the thread that have acquired them."""

os.register_at_fork(after_in_child=_held.clear)


class Lock:
    """A lock on one Redis."""

    def __init__(
        self,
        redis: Any,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = name.decode() if isinstance(name, bytes) else name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        self._url = _stores.client_url(redis)

    @property
    def _locks(self) -> Locks:
        return _stores.locks(self._url)

    @property
    def _handle(self) -> str | None:
        token = getattr(self.local, "token", None)
        return token.decode() if isinstance(token, bytes) else token

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the lock that is held."""
        return None if self._handle is None else int(self._handle.split(".", 1)[0])

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock; whether that worked."""
        if token is not None:
            raise LockError(
                "every acquisition has an identity of its own; hand on `local.token` instead", lock_name=self.name
            )
        if not (self.blocking if blocking is None else blocking):
            limit: float | None = 0
        else:
            limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        with _translated(self.name):
            guard = _stores.acquire(self._locks, self.name, self.timeout, limit, renew=self.timeout is None)
            if guard is not None:
                self._take(guard)
        return guard is not None

    def _take(self, guard: Guard) -> None:
        if self.timeout is None:
            # Renewed for as long as it is held here; the process's end releases it.
            handle = f"{guard.token}.{guard.owner}.{guard.name}"
            _held[handle] = guard
        else:
            # A lease that lasts as long as it was asked to, whatever becomes of this process.
            handle = guard.detach()
        self.local.acquired = (handle, _process.generation)
        self.local.token = handle.encode()

    def _inherited(self) -> bool:
        """Whether it was a parent process that has acquired the lock. A handle that was handed on is the caller's own."""
        handle, generation = getattr(self.local, "acquired", (None, 0))
        return handle == self._handle and generation != _process.generation

    def _refuse_inherited(self) -> None:
        if self._inherited():
            raise LockNotOwnedError(
                "The lock is that of the process that this one was forked from; hand on `local.token` to use it here.",
                lock_name=self.name,
            )

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
        return shown is not None and shown.owner == handle.split(".")[1]

    def release(self) -> None:
        """Gives the lock back."""
        handle = self._handle
        if handle is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", lock_name=self.name)
        self._refuse_inherited()
        self.local.token = None
        with _translated(self.name):
            guard = _held.pop(handle, None)
            if guard is not None:
                guard.release()
            else:
                self._locks.release(handle)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Makes the lock last longer: by `additional_time`, or with `replace_ttl` until then from now."""
        return self._extend(additional_time, "extend", add=not replace_ttl)

    def reacquire(self) -> Literal[True]:
        """Makes the lock last for its `timeout` from now."""
        return self._extend(self.timeout or 0.0, "reacquire", add=False)

    def _extend(self, ttl: float, what: str, add: bool) -> Literal[True]:
        handle = self._handle
        if handle is None:
            raise LockError(f"Cannot {what} an unlocked lock", lock_name=self.name)
        if self.timeout is None:
            raise LockError(f"Cannot {what} a lock with no timeout", lock_name=self.name)
        self._refuse_inherited()
        with _translated(self.name):
            # The store's word, not this object's: others that have the handle may have extended it as well.
            shown = self._locks.show(self.name) if add else None
            left = shown.expires_in if shown is not None else None
            self._locks.extend(handle, ttl + (left or 0.0))
        return True

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified", lock_name=self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


class _translated:
    """Raises the errors that redis-py's lock raises."""

    def __init__(self, name: str) -> None:
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
