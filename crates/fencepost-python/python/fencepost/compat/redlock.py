"""`Redlock` with the call shape of the package `redlock-py`:

    - from redlock import Redlock
    + from fencepost.compat.redlock import Redlock

The same keys, so both exclude each other. What is different:

- New servers have to be declared once by `fencepost init` (or vote after their quarantine): that is what
  keeps a server that
  was restarted without its data from granting a lock that is held.
- Waiters are woken: `retry_count` times `retry_delay` is the longest that `lock` waits.
- A ttl is at most 60 s, since it sets how long a restarted server does not vote; `max_ttl=1h` in the URLs of
  all servers and all
  processes changes that.
- One server out of reach is no error while a majority answers.
- A ttl below 50 ms keeps others out for 50 ms; `validity` is what was asked for.
- `Lock.token` is the fencing token, to pass with every write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from .. import _errors
from .. import _fencepost as native
from .._values import Secret
from . import _stores

__all__ = ["CannotObtainLock", "Lock", "MultipleRedlockException", "Redlock"]


class CannotObtainLock(Exception):
    """The servers cannot be used for locks."""


class MultipleRedlockException(Exception):
    """A majority of the servers did not answer."""

    def __init__(self, errors: list[Exception], *args: object) -> None:
        super().__init__(*args)
        self.errors = errors

    def __str__(self) -> str:
        return " :: ".join(str(error) for error in self.errors)


class Lock(NamedTuple):
    """A lock that is held."""

    validity: int
    """For how long, in milliseconds."""
    resource: str
    """The lock's name."""
    key: bytes
    """The handle: whoever has it can release the lock."""

    @property
    def token(self) -> int:
        """The fencing token."""
        return native.parse_handle(self.key.decode())[2]


class Redlock:
    """Locks on several independent Redis servers, or on one."""

    default_retry_count = 3
    default_retry_delay = 0.2

    def __init__(
        self, connection_list: Sequence[Any], retry_count: int | None = None, retry_delay: float | None = None
    ) -> None:
        self.retry_count = retry_count or self.default_retry_count
        self.retry_delay = retry_delay or self.default_retry_delay
        try:
            urls = [_url(connection) for connection in connection_list]
            if len(urls) in (0, 2):
                raise CannotObtainLock(f"{len(urls)} servers have no majority without one; use 1, 3 or 5")
            self._url = Secret(urls[0] if len(urls) == 1 else _together(urls))
            self._locks = _stores.locks(self._url)
        except _errors.Error as error:
            raise CannotObtainLock(str(error)) from error

    def lock(self, resource: str, ttl: int) -> Lock | Literal[False]:
        """Acquires a lock for `ttl` milliseconds; `False` if somebody else has it."""
        if not isinstance(ttl, int):
            raise ValueError(f"ttl {ttl} is not an integer")
        wait = self.retry_count * self.retry_delay
        try:
            name, lease = _stores.key(resource), _stores.rounded(ttl / 1000)
            guard = _stores.acquire(self._locks, name, lease, wait, renew=False)
            if guard is None:
                return False
            validity = min(int((guard.valid_for or 0.0) * 1000), int(ttl))
            return Lock(validity, resource, guard.detach().encode())
        except _errors.LockLost:
            return False
        except (_errors.Unavailable, _errors.Uncertain) as error:
            raise MultipleRedlockException([error]) from error

    def unlock(self, lock: Lock) -> None:
        """Gives a lock back; one that has ended already is no error."""
        try:
            self._locks.release(lock.key.decode())
        except _errors.LockLost:
            pass
        except (_errors.Unavailable, _errors.Uncertain) as error:
            raise MultipleRedlockException([error]) from error


def _url(connection: Any) -> str:
    if isinstance(connection, str):
        joint = "&" if "?" in connection else "?"
        return f"{connection}{joint}keys=plain"
    if isinstance(connection, dict):
        return _stores.settings_url(connection).text
    return _stores.client_url(connection).text


def _together(urls: list[str]) -> str:
    """One URL for servers that have the same settings."""
    heads, settings = [], set()
    for url in urls:
        head, _, rest = url.partition("?")
        place, _, database = head.partition("://")[2].partition("/")
        heads.append(f"{head.partition('://')[0]}://{place}")
        settings.add((database or "0", rest))
    if len(settings) != 1:
        raise CannotObtainLock("all servers need the same database and settings")
    database, rest = settings.pop()
    return f"redlock:{','.join(heads)}?db={database}&{rest}"
