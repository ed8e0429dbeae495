"""Distributed locks that are safe to build on.

Every lock comes with a fencing token that only grows, is renewed while you work, and tells you *at risk* and
then *lost* before it can be gone:

    locks = fencepost.connect("redis://127.0.0.1:6379")
    with locks.lock("order:42", ttl=10, wait=5) as guard:
        save(order, fence=guard.token)

The same names for asyncio are in `fencepost.aio`.
"""

from typing import TYPE_CHECKING

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
from ._values import Capabilities, Distribution, Holder, Loss, NodeView, Revoked, State, Stats

if TYPE_CHECKING:
    from . import aio as aio
    from . import fence as fence
    from . import testing as testing
else:

    def __getattr__(name):
        """Imports a module when it is first used: whoever blocks does not pay for asyncio."""
        if name not in ("aio", "fence", "testing"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return importlib.import_module(f".{name}", __name__)

__all__ = [
    "BackendError",
    "Busy",
    "Capabilities",
    "Changed",
    "ConfigError",
    "Distribution",
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
    "Stats",
    "Unavailable",
    "Uncertain",
    "Unsupported",
    "__version__",
    "connect",
    "init",
]
