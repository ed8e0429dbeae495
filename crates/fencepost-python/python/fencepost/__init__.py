"""Distributed locks that are safe to build on.

Every lock comes with a fencing token that only grows, is renewed while you work, and tells you *at risk* and
then *lost* before it can be gone:

    locks = fencepost.connect("redis://127.0.0.1:6379")
    with locks.lock("order:42", ttl=10, wait=5) as guard:
        save(order, fence=guard.token)

The same names for asyncio are in `fencepost.aio`.
"""

from ._errors import (
    BackendError,
    Busy,
    Changed,
    ConfigError,
    Error,
    Invalid,
    LockLost,
    LockTimeout,
    StaleToken,
    Unavailable,
    Uncertain,
    Unsupported,
)
from ._fencepost import VERSION as __version__
from ._locks import Guard, GuardSet, Lock, Locks, LockSet, connect, init
from ._options import Retry
from ._values import Capabilities, Holder, Loss, NodeView, Revoked, State

__all__ = [
    "BackendError",
    "Busy",
    "Capabilities",
    "Changed",
    "ConfigError",
    "Error",
    "Guard",
    "GuardSet",
    "Holder",
    "Invalid",
    "Lock",
    "LockLost",
    "LockSet",
    "LockTimeout",
    "Locks",
    "Loss",
    "NodeView",
    "Retry",
    "Revoked",
    "StaleToken",
    "State",
    "Unavailable",
    "Uncertain",
    "Unsupported",
    "__version__",
    "connect",
    "init",
]
