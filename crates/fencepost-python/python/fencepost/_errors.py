"""What can go wrong. One class a situation; messages name the lock and the next step and never hold a
password.

All attributes are plain values, so every exception survives pickling: a task queue can carry it home.
"""

from __future__ import annotations

from ._values import Holder, Loss


class Error(Exception):
    """The base of all errors of this package."""

    transient: bool = False
    """Whether trying again later, with nothing changed, can help."""


class Busy(Error):
    """Somebody else has the lock and the caller did not want to wait."""

    transient = True

    def __init__(self, message: str, *, name: str = "", holder: Holder | None = None) -> None:
        super().__init__(message)
        self.name = name
        """The lock."""
        self.holder = holder
        """Who has it, if the store could tell."""


class LockTimeout(Error, TimeoutError):
    """Somebody else kept the lock for as long as the caller was willing to wait."""

    transient = True

    def __init__(
        self, message: str, *, name: str = "", waited: float = 0.0, holder: Holder | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        """The lock."""
        self.waited = waited
        """How long the caller has waited, in seconds."""
        self.holder = holder
        """Who had it at the last look, if the store could tell."""


class LockLost(Error):
    """The lock was held and is not any more."""

    def __init__(
        self, message: str, *, name: str = "", why: str = "unknown", reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        """The lock."""
        self.why = Loss(why)
        """The cause."""
        self.reason = reason
        """What the operator said who force-released it."""


class Changed(Error):
    """Another holder than the one that was to lose the lock has it by now, and keeps it. Nothing was done."""

    def __init__(self, message: str, *, name: str = "", holder: Holder | None = None) -> None:
        super().__init__(message)
        self.name = name
        """The lock."""
        self.holder = holder
        """Who has it, if the store could tell."""


class Unavailable(Error, ConnectionError):
    """The store did not answer, or could not be reached. Nothing was acquired."""

    transient = True

    def __init__(self, message: str, *, store: str = "", nodes: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.store = store
        """The store, without its password."""
        self.nodes = nodes or {}
        """What each node said, for a store with several."""


class Uncertain(Error):
    """A request was sent and its answer never came. A lock that was to be released ends with its ttl at the
    latest, and the release is still being tried in the background."""

    transient = True

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
        """The lock."""


class Unsupported(Error):
    """This store cannot do that; the message says what to do instead."""


class Invalid(Error, ValueError):
    """An argument is wrong. Nothing was done."""


class ConfigError(Error):
    """The store is not fit for locks as it is configured, or refuses us."""


class BackendError(Error):
    """The store answered with an error of its own, or with something that cannot be read."""

    def __init__(self, message: str, *, store: str = "") -> None:
        super().__init__(message)
        self.store = store
        """The store, without its password."""


class StaleToken(Error):
    """A resource refused a token smaller than the largest it has seen: the lock has passed to somebody
    else."""

    def __init__(self, message: str, *, resource: str = "", presented: int = 0, highest: int = 0) -> None:
        super().__init__(message)
        self.resource = resource
        """The resource."""
        self.presented = presented
        """The token that was shown to it."""
        self.highest = highest
        """The largest that it has seen."""

    @classmethod
    def of(cls, resource: str, presented: int, highest: int) -> StaleToken:
        """The refusal of `presented` by a resource that has seen `highest`."""
        message = (
            f"token {presented} is stale for `{resource}`, which has seen {highest}; "
            "the lock has passed to somebody else: acquire it again and start over"
        )
        return cls(message, resource=resource, presented=presented, highest=highest)
