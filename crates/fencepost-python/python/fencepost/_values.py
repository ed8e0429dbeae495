"""Plain values that stores and guards give out. Durations are seconds."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypedDict, cast


@dataclass(frozen=True)
class Secret:
    """A text that is not shown where the object that has it is: a URL, which may have a password in it."""

    text: str = field(repr=False)
    """The text."""


class Loss(str, Enum):
    """Why a lock was lost."""

    EXPIRED = "expired"
    """The lease ended and was not to be renewed."""
    TAKEN = "taken"
    """Somebody else has the lock: its entry was deleted, evicted or overwritten."""
    FORCE_RELEASED = "force_released"
    """An operator took it back."""
    SESSION_ENDED = "session_ended"
    """The session or connection that carried the lock ended."""
    UNREACHABLE = "unreachable"
    """The lease ended while the store did not answer renewals."""
    PAUSED = "paused"
    """This process, or the whole machine, stood still for longer than the lease."""
    MAX_HOLD = "max_hold"
    """The lock was held for its `max_hold`."""
    FORKED = "forked"
    """This process was forked from the one that holds the lock, and does not hold it."""
    UNKNOWN = "unknown"
    """A cause that this version of the package has no name for."""

    def __str__(self) -> str:
        return self.value


Kind = Literal["held", "at_risk", "lost", "released"]
"""`at_risk` is still held, but will be lost when the time left has passed unless a renewal gets through.
`lost` is final."""


@dataclass(frozen=True)
class State:
    """What a guard knows about its lock at this moment."""

    kind: Kind
    """Held, at risk, lost or released."""
    left: float | None
    """Time until the lease would end without renewal; `None` if it has no end."""
    why: str | None = None
    """What is wrong, in a word: of `lost` the value of a `Loss`."""
    message: str | None = None
    """What is wrong, in a phrase."""

    @property
    def lost(self) -> bool:
        """Whether the lock is gone."""
        return self.kind == "lost"

    @property
    def held(self) -> bool:
        """Whether the lock is held, at risk or not."""
        return self.kind in ("held", "at_risk")


@dataclass(frozen=True)
class NodeView:
    """What one node has of a lock, where a store has several."""

    node: str
    """The node's URL, without its password."""
    holds: bool
    """Whether its key is the holder's."""
    counter: int | None = None
    """Its token counter."""
    expires_in: float | None = None
    """When its key expires."""
    problem: str | None = None
    """What stands in the way, if it cannot be asked or does not vote."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as others see it. What a store does not know is `None`."""

    name: str
    """The lock's name."""
    owner: str | None = None
    """The identity of the acquisition, which makes no handle; `None` if a foreign client of the same key
    holds the lock."""
    token: int | None = None
    """The holder's fencing token, where the store can tell."""
    host: str | None = None
    """The machine it was acquired on."""
    pid: int | None = None
    """The process that acquired it."""
    note: str | None = None
    """Free text given by the holder."""
    since: datetime.datetime | None = None
    """When it was acquired, by the holder's wall clock."""
    expires_in: float | None = None
    """Time until the lease ends unless it is renewed; `None` if it has no end."""
    revoked: str | None = None
    """The reason, if an operator has asked for this lock back and the holder has not yet let go."""
    nodes: tuple[NodeView, ...] = ()
    """What each node has of the lock, where a store has several and was asked to show one lock."""
    queue: tuple[Holder, ...] = ()
    """Who waits behind it, first come first, where the store was asked to show one lock."""


@dataclass(frozen=True)
class Revoked:
    """What a force-release came to."""

    holder: Holder
    """Who held the lock."""
    token: int
    """A fresh token, larger than the victim's: recording it at the protected resource is what retires the
    victim's."""
    freed: bool
    """Whether the lock is free already. If not, it is when the victim lets go or its lease ends."""


@dataclass(frozen=True)
class Capabilities:
    """What a store can do."""

    store: str
    """The store, for messages; never with a password."""
    leases: bool
    """Held locks are leases that end by themselves; `False` where they end with their process."""
    detach: bool
    """Locks can be detached and attached again."""
    fair: bool
    """Waiters are served in order."""


class Distribution(TypedDict):
    """How durations were distributed."""

    count: int
    """How many there were."""
    total: float
    """Their sum."""
    buckets: list[tuple[float, int]]
    """Upper bound of each bucket and how many fell into it; the last one takes everything longer, too."""


class Stats(TypedDict):
    """What was done through some locks so far: counters, and distributions of durations."""

    acquired: int
    """Locks acquired, attached ones included."""
    released: int
    """Locks released, by call or in the background."""
    busy: int
    """Tries that found the lock held."""
    timed_out: int
    """Waits that ended in vain."""
    failed: int
    """Attempts that failed because of the store."""
    renewed: int
    """Renewals that were answered."""
    renewals_failed: int
    """Renewals that failed and were tried again."""
    slow: int
    """Round trips of more than a quarter of the ttl: the ttl is too short for this store."""
    lost: dict[str, int]
    """Locks lost, by the value of a `Loss`."""
    held_now: int
    """Guards alive now."""
    waiting_now: int
    """Callers that wait now."""
    waiting: Distribution
    """From the call of acquire to the guard."""
    holding: Distribution
    """From the guard to its release."""
    round_trips: Distribution
    """From the send of a request to its answer, for grants and renewals."""


def holder(text: str) -> Holder:
    """A holder from the JSON that the library writes."""
    return _holder(json.loads(text))


def _holder(said: Mapping[str, Any]) -> Holder:
    since = said.get("since_unix_ms")
    return Holder(
        name=said["name"],
        owner=said.get("owner"),
        token=said.get("token"),
        host=said.get("host"),
        pid=said.get("pid"),
        note=said.get("note"),
        since=None if since is None else datetime.datetime.fromtimestamp(since / 1000, datetime.timezone.utc),
        expires_in=_seconds(said.get("expires_in_ms")),
        revoked=said.get("revoked"),
        nodes=tuple(_node(node) for node in said.get("nodes", ())),
        queue=tuple(_holder(waiter) for waiter in said.get("queue", ())),
    )


def _node(said: Mapping[str, Any]) -> NodeView:
    return NodeView(
        said["node"], said["holds"], said["counter"], _seconds(said["expires_in_ms"]), said["problem"]
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def stats(text: str) -> Stats:
    """Counters from the JSON that the library writes, durations as seconds."""

    def plain(value: dict[str, Any]) -> Any:
        if value.keys() == {"secs", "nanos"}:
            return value["secs"] + value["nanos"] / 1e9
        if "buckets" in value:
            value["buckets"] = [tuple(bucket) for bucket in value["buckets"]]
        return value

    return cast(Stats, json.loads(text, object_hook=plain))
