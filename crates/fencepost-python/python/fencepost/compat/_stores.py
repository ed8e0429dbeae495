"""Finds the store behind a client of another package, and connects to it once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from .._errors import LockTimeout, Unavailable, Unsupported
from .._locks import Guard, Locks, connect

_connected: dict[str, Locks] = {}


def locks(url: str) -> Locks:
    """The locks of a store, shared by all who ask for it."""
    found = _connected.get(url)
    if found is None or found._closed:
        # No mutex, which a child that is forked meanwhile would wait for for ever. Of two that connect at a time, one stays.
        found = _connected[url] = connect(url)
    return found


def acquire(locks: Locks, name: str, ttl: float | None, wait: float | None, renew: bool) -> Guard | None:
    """Acquires a lock; `None` if somebody else has it until the wait is over. The first try takes the time it takes, as it
    does in the other packages: `wait` is for those that come after it."""
    lock = locks.lock(name, ttl=ttl, renew=renew)
    if wait is None:
        return lock.acquire()
    guard = lock.try_acquire()
    if guard is not None or wait <= 0:
        return guard
    try:
        return locks.lock(name, ttl=ttl, wait=wait, renew=renew).acquire()
    except LockTimeout:
        return None
    except Unavailable:
        # The wait was too short for an answer, or the server hangs: a last try finds out.
        return lock.try_acquire()


def client_url(client: Any) -> str:
    """The URL of the server that a client of redis-py talks to."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if settings is None or hasattr(pool, "service_name"):
        raise Unsupported(
            f"a {type(client).__name__} has no single server; give a plain redis.Redis, or use fencepost.connect "
            "with a redlock:// URL"
        )
    secure = "SSL" in getattr(pool, "connection_class", type(None)).__name__
    return server_url(settings, secure)


def server_url(settings: Mapping[str, Any], secure: bool = False) -> str:
    """The URL for the keyword arguments of redis-py's client."""
    user, password = settings.get("username"), settings.get("password")
    provider = settings.get("credential_provider")
    if provider is not None:
        told = provider.get_credentials()
        user, password = (None, told[0]) if len(told) == 1 else told
    login = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
    database = settings.get("db") or 0
    more = {"keys": "plain"}
    timeout = settings.get("socket_timeout")
    if timeout:
        more["timeout"] = f"{max(1, round(timeout * 1000))}ms"
    path = settings.get("path") or settings.get("unix_socket_path")
    if path:
        return f"redis+unix://{login}{path}?{urlencode({**more, 'db': database})}"
    scheme = "redis"
    if secure or settings.get("ssl"):
        scheme = "rediss"
        for theirs, ours in (("ssl_ca_certs", "ca"), ("ssl_certfile", "cert"), ("ssl_keyfile", "key")):
            if settings.get(theirs):
                more[ours] = settings[theirs]
    host = settings.get("host", "localhost")
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{login}{host}:{settings.get('port', 6379)}/{database}?{urlencode(more)}"
