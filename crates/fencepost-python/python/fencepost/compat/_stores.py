"""Finds the store behind a client of another package, and connects to it once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from .. import _locks, aio
from .._errors import Invalid, LockTimeout, Unavailable, Unsupported
from .._values import Secret

SHORTEST = 0.05
"""The shortest lease that a store grants. A shorter one is rounded up: others are kept out for longer."""

_connected: dict[Secret, _locks.Locks] = {}
_connected_aio: dict[Secret, aio.Locks] = {}


def locks(url: Secret) -> _locks.Locks:
    """The locks of a store, shared by all who ask for it."""
    found = _connected.get(url)
    if found is None or found._closed:
        # No mutex, which a child that is forked meanwhile would wait for for ever. Of two that connect at a
        # time, one stays.
        found = _connected[url] = _locks.connect(url.text)
    return found


async def aio_locks(url: Secret) -> aio.Locks:
    """As `locks`, for asyncio."""
    found = _connected_aio.get(url)
    if found is None or found._closed:
        found = _connected_aio[url] = await aio.connect(url.text)
    return found


def acquire(
    locks: _locks.Locks, name: str, ttl: float | None, wait: float | None, renew: bool
) -> _locks.Guard | None:
    """Acquires a lock; `None` if somebody else has it until the wait is over. The first try takes the time it
    takes, as it does in the other packages: `wait` is for those that come after it."""
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


async def aio_acquire(
    locks: aio.Locks, name: str, ttl: float | None, wait: float | None, renew: bool
) -> aio.Guard | None:
    """As `acquire`, for asyncio."""
    lock = locks.lock(name, ttl=ttl, renew=renew)
    if wait is None:
        return await lock.acquire()
    guard = await lock.try_acquire()
    if guard is not None or wait <= 0:
        return guard
    try:
        return await locks.lock(name, ttl=ttl, wait=wait, renew=renew).acquire()
    except LockTimeout:
        return None
    except Unavailable:
        return await lock.try_acquire()


def rounded(ttl: float) -> float:
    """A ttl that stores grant. What is no ttl at all is refused where it is used."""
    return SHORTEST if isinstance(ttl, (int, float)) and 0 < ttl < SHORTEST else ttl


def key(name: Any) -> Any:
    """A key as a lock name, which is text."""
    if not isinstance(name, (bytes, bytearray, memoryview)):
        return name
    try:
        return bytes(name).decode()
    except UnicodeDecodeError:
        raise Invalid(f"a lock name is text in UTF-8, not {bytes(name)!r}") from None


def client_url(client: Any, asyncio: bool = False) -> Secret:
    """The URL of the server that a client of redis-py talks to."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if settings is None or hasattr(pool, "service_name"):
        raise Unsupported(
            f"a {type(client).__name__} has no single server; "
            "give a plain redis.Redis, or use fencepost.connect "
            "with a redlock:// URL"
        )
    if inspect.iscoroutinefunction(getattr(client, "execute_command", None)) != asyncio:
        if asyncio:
            raise Unsupported("this lock is for asyncio and needs a client of redis.asyncio")
        raise Unsupported(
            "a client of redis.asyncio needs fencepost.compat.redis_lock.AsyncLock, or fencepost.aio.connect"
        )
    kind = getattr(pool, "connection_class", type(None))
    if kind.__module__.partition(".")[0] != "redis":
        raise Unsupported(
            f"connections of another kind ({kind.__module__}.{kind.__qualname__}) may lead to any server; "
            "use fencepost.connect with the server's URL"
        )
    return _server_url(settings, "SSL" in kind.__name__)


_IGNORED = re.compile(
    "ssl_.*|socket_.*|retry.*|encod.*|charset|errors|decode_responses|protocol|max_connections|cache.*"
    "|single_connection_client|health_check_interval|client_name|lib_name|lib_version|driver_info"
    "|redis_connect_func|event_dispatcher|maint_notifications_config"
)
"""Settings of redis-py that say nothing about which server it is."""

_USED = {"host", "port", "db", "username", "password", "credential_provider", "unix_socket_path", "ssl"}


def settings_url(settings: Mapping[str, Any]) -> Secret:
    """The URL for the keyword arguments of redis-py's client. One that is not known is refused: misspelt, it
    would leave the lock on another server than was meant."""
    for name in settings:
        if name not in _USED and not _IGNORED.fullmatch(str(name)):
            known = ", ".join(sorted(_USED))
            raise Invalid(f"a server has no setting `{name}`; known are {known}, and others of redis.Redis")
    return _server_url(settings, bool(settings.get("ssl")))


def _server_url(settings: Mapping[str, Any], secure: bool) -> Secret:
    user, password = settings.get("username"), settings.get("password")
    provider = settings.get("credential_provider")
    if provider is not None:
        told = provider.get_credentials()
        user, password = (None, told[0]) if len(told) == 1 else told
    login = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
    more = {"keys": "plain"}
    timeout = settings.get("socket_timeout")
    if timeout:
        more["timeout"] = f"{max(1, round(timeout * 1000))}ms"
    database = _number("db", settings.get("db") or 0)
    path = settings.get("path") or settings.get("unix_socket_path")
    if path:
        return Secret(f"redis+unix://{login}{quote(path)}?{urlencode({**more, 'db': database})}")
    if secure:
        for theirs, ours in (("ssl_ca_certs", "ca"), ("ssl_certfile", "cert"), ("ssl_keyfile", "key")):
            if settings.get(theirs):
                more[ours] = settings[theirs]
    host = settings.get("host", "localhost")
    if not isinstance(host, str) or not re.fullmatch(r"[^\s/?#@,\[\]%]+", host):
        raise Invalid(f"`host` is the name or address of one server, not {host!r}")
    host = f"[{host}]" if ":" in host else host
    port = _number("port", settings.get("port", 6379))
    return Secret(f"{'rediss' if secure else 'redis'}://{login}{host}:{port}/{database}?{urlencode(more)}")


def _number(what: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Invalid(f"`{what}` is a number, not {value!r}") from None
