"""The options of a lock. Wrong ones are refused when they are given, not when the lock is acquired."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, Union

from . import _fencepost as native
from ._errors import Invalid

Duration = Union[float, datetime.timedelta]
"""Seconds, or a timedelta."""

LONGEST = 10**9
"""About thirty years."""

Schedule = tuple[float, float, Union[list[float], None], Union[int, None], bool]


class Options(TypedDict):
    """Options as the native half takes them."""

    ttl: float | None
    wait: float | None
    retry: Schedule | None
    note: str
    renew: bool
    renew_every: float | None
    max_hold: float | None


def text(what: str, value: object) -> str:
    """A text that can be sent to a store."""
    if not isinstance(value, str):
        raise Invalid(f"{what} is a string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} is text that can be encoded, not {value!r}") from None
    return value


def fencing_token(token: object) -> int:
    """A token that a store may have handed out."""
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token < 2**53:
        raise Invalid(f"a fencing token lies between 1 and 2^53 - 1, not {token!r}")
    return token


def name_of(handle: object) -> str:
    """The name of a handle's lock. What is no handle is not quoted: it may be most of one, which is a key."""
    if not isinstance(handle, str):
        raise Invalid(f"a handle is a string, as detach() returns it, not a {type(handle).__name__}")
    return native.parse_handle(handle)[0]


def seconds(what: str, duration: Duration) -> float:
    """A duration in seconds."""
    if isinstance(duration, datetime.timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise Invalid(f"{what} is a number of seconds or a timedelta, not {duration!r}")
    if not 0 <= duration <= LONGEST:
        raise Invalid(f"{what} must be a number of seconds from 0 to {LONGEST:,}, this one is {duration}")
    return float(duration)


def optional_seconds(what: str, duration: Duration | None) -> float | None:
    """A duration in seconds, if there is one."""
    return None if duration is None else seconds(what, duration)


@dataclass(frozen=True)
class Retry:
    """A schedule of tries, for callers that want to poll instead of queueing. Made by `fixed`, `exponential`
    or `after`.

    `attempts` is the largest number of tries in all, the first one included. `jitter` shortens each pause at
    random by up to a half, so that many clients do not try in step."""

    first: float
    """The first pause."""
    most: float
    """The longest pause."""
    pauses: tuple[float, ...] | None = None
    """Each pause, where all are listed."""
    attempts: int | None = None
    """The largest number of tries in all; `None` for no limit."""
    jitter: bool = False
    """Whether pauses are shortened at random."""

    @classmethod
    def fixed(cls, pause: Duration, *, attempts: int | None = None, jitter: bool = False) -> Retry:
        """Tries again after the same pause each time."""
        return cls.exponential(pause, pause, attempts=attempts, jitter=jitter)

    @classmethod
    def exponential(
        cls, first: Duration, most: Duration, *, attempts: int | None = None, jitter: bool = False
    ) -> Retry:
        """Tries again after `first`, then twice that, and so on, up to `most` between two tries."""
        return cls(seconds("a pause", first), seconds("a pause", most), None, _tries(attempts), jitter)

    @classmethod
    def after(cls, pauses: Iterable[Duration], *, attempts: int | None = None, jitter: bool = False) -> Retry:
        """Tries again after each of these pauses in turn, and then no more."""
        listed = tuple(seconds("a pause", pause) for pause in pauses)
        return cls(0.0, 0.0, listed, _tries(attempts), jitter)

    def _schedule(self) -> Schedule:
        pauses = None if self.pauses is None else list(self.pauses)
        return (self.first, self.most, pauses, self.attempts, self.jitter)


def _tries(attempts: int | None) -> int | None:
    if attempts is None:
        return None
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts < 2**32:
        raise Invalid(f"attempts is a number of tries from 1 on, this one is {attempts!r}")
    return attempts


def options(
    ttl: Duration | None,
    wait: Duration | None,
    retry: Retry | None,
    note: str,
    renew: bool,
    renew_every: Duration | None,
    max_hold: Duration | None,
) -> Options:
    """Checks the options of a lock."""
    if retry is not None and not isinstance(retry, Retry):
        raise Invalid(f"retry is made by fencepost.Retry, as in Retry.fixed(0.1), not {retry!r}")
    return {
        "ttl": optional_seconds("ttl", ttl),
        "wait": optional_seconds("wait", wait),
        "retry": None if retry is None else retry._schedule(),
        "note": text("a note", note),
        "renew": bool(renew),
        "renew_every": optional_seconds("renew_every", renew_every),
        "max_hold": optional_seconds("max_hold", max_hold),
    }
