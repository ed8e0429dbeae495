"""What blocking and asyncio locks have in common: everything that does not wait."""

from __future__ import annotations

import inspect
import itertools
import logging
import string
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from . import _fencepost as native
from . import _log, _process
from ._errors import Invalid, LockLost, Unsupported
from ._options import Options, text
from ._values import Capabilities, Holder, Loss, Secret, State, Stats, stats

G = TypeVar("G", bound="BaseGuard")
L = TypeVar("L", bound="BaseLocks")

logger = logging.getLogger("fencepost")


def listed(holders: list[Holder], unreadable: list[str]) -> list[Holder]:
    """The holders that could be read; why others could not is logged."""
    for why in unreadable:
        logger.warning("a lock could not be read, and the list goes on without it: %s", why)
    return holders


class BaseLocks:
    """The locks of one store."""

    def __init__(self, connected: native.Locks, url: str | None) -> None:
        self._connected = connected
        self._url = None if url is None else Secret(url)
        self._generation = _process.generation
        self._closed = False
        _process.stores.add(self)

    def _inherited(self) -> bool:
        """Whether the connection is that of a parent process."""
        return self._generation != _process.generation

    def _adopt(self, connected: native.Locks) -> native.Locks:
        self._connected = connected
        self._generation = _process.generation
        _process.stores.add(self)
        return connected

    def _usable(self) -> None:
        _process.stop_at_end()
        _log.follow()
        if self._closed:
            raise Invalid("these locks are closed; connect again")

    def _reconnection(self) -> native.Call[native.Locks]:
        """The call that connects a forked child."""
        if self._url is None:
            raise Unsupported(
                "these locks are of the process that this one was forked from; make a store of its own here"
            )
        return native.connect(self._url.text)

    def _end(self) -> None:
        if not self._closed and not self._inherited():
            self._closed = True
            self._connected.close().wait()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.capabilities.store}>"

    def __reduce__(self) -> Any:
        raise TypeError("locks cannot be pickled; connect in the process that uses them")

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return Capabilities(*self._connected.capabilities())

    @property
    def default_ttl(self) -> float:
        """The ttl of locks that name none: the store URL's `ttl`, else 30 seconds."""
        return self._connected.default_ttl()

    def stats(self) -> Stats:
        """What was done through these locks so far: counters, and distributions of durations in seconds."""
        return stats(self._connected.stats())


class BaseLock(Generic[L]):
    """A name and options; holds nothing until it is acquired."""

    def __init__(self, locks: L, name: str, chosen: Options, ignore_loss: bool) -> None:
        self._locks = locks
        self._name = text("a lock name", name)
        self._options = chosen
        self._ignore_loss = ignore_loss
        self._made: tuple[native.Locks, native.Lock] | None = None
        # Refused here already, not when the lock is acquired.
        if not locks._inherited():
            self._on(locks._connected)

    def _on(self, connected: native.Locks) -> native.Lock:
        if self._made is None or self._made[0] is not connected:
            self._made = (connected, connected.lock(self._name, self._options))
        return self._made[1]

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._name!r}>"


class Entered:
    """What was entered and not left yet. A lock that was lost can be in the hands of two at once, and each
    has to leave with its own guard: a thread, or a task in a loop. Whoever has none leaves for another, as
    where a framework enters a block in one thread and leaves it in the next. Without a mutex: a child might
    be forked while it is locked."""

    def __init__(self, who: Callable[[], object]) -> None:
        self._who = who
        self._numbers = itertools.count()
        self._entries: dict[int, tuple[object, Any]] = {}

    def push(self, guard: Any) -> None:
        self._entries[next(self._numbers)] = (self._who(), guard)

    def pop(self) -> Any:
        """The guard that was entered last: by this thread or task, else by any."""
        here, entries = self._who(), self._entries.copy()
        for number in sorted(entries, key=lambda number: (entries[number][0] == here, number), reverse=True):
            entry = self._entries.pop(number, None)
            if entry is not None:
                return entry[1]
        raise Invalid("a lock is left that was not entered")

    def forget(self, guard: Any) -> None:
        """Takes a guard out whose block was never begun."""
        for number, (_, entered) in self._entries.copy().items():
            if entered is guard:
                self._entries.pop(number, None)


class BaseGuard:
    """A held lock."""

    def __init__(self, held: native.Guard, ignore_loss: bool) -> None:
        self._native = held
        self._ignore_loss = ignore_loss
        self._settled = False
        self._generation = _process.generation
        _process.guards.add(self)

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._native.name

    @property
    def token(self) -> int:
        """The fencing token: pass it with every write to what the lock protects."""
        return self._native.token

    @property
    def owner(self) -> str:
        """The identity of this acquisition, as others see it."""
        return self._native.owner

    @property
    def valid_for(self) -> float | None:
        """Time until the lease would end without renewal; zero when lost, `None` if it has no end."""
        return self._native.valid_for()

    @property
    def state(self) -> State:
        """The state now. Exact whenever asked: it is computed from the local suspend-aware clock."""
        return State(*self._native.state())

    def check(self) -> None:
        """Raises `LockLost` with the cause unless the lock is held."""
        self._native.check()

    def _let_go(self) -> None:
        """Gives the lock back in the background, if that was not done yet."""
        self._settled = True
        self._native.let_go()

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{kind} {self.name!r} token={self.token} {self.state.kind}>"

    def __reduce__(self) -> Any:
        raise TypeError("a guard cannot be pickled; hand on the handle that detach() returns")

    def __del__(self) -> None:
        if getattr(self, "_settled", True) or self._generation != _process.generation:
            return
        held = self.state.held
        # Before the warning, which may raise. The guard is not its `source`: a record would keep it alive.
        self._let_go()
        if held:
            message = f"guard of lock `{self.name}` was let go without release(); it is released now"
            warnings.warn(message, ResourceWarning, stacklevel=2)


class BaseLockSet(Generic[L]):
    """Several names that are acquired together."""

    def __init__(self, locks: L, names: Iterable[str], chosen: Options, ignore_loss: bool) -> None:
        if isinstance(names, str):
            raise Invalid(f"all() takes several names, as in all(['a', 'b']), not {names!r}")
        self._locks = locks
        self._names = [text("a lock name", name) for name in names]
        self._options = chosen
        self._ignore_loss = ignore_loss
        # Refused here already, not when the locks are acquired.
        if not locks._inherited():
            locks._connected.all(self._names, chosen)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._names!r}>"


class BaseGuardSet(Generic[G]):
    """Several held locks."""

    def __init__(self, guards: list[G]) -> None:
        self._guards = guards

    def __iter__(self) -> Iterator[G]:
        return iter(self._guards)

    def __len__(self) -> int:
        return len(self._guards)

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {guard.name: guard.token for guard in self._guards}

    @property
    def state(self) -> State:
        """The worst state of all: one lost lock makes the set lost."""
        order = {"held": 0, "at_risk": 1, "released": 2, "lost": 3}

        def badness(state: State) -> tuple[int, float]:
            return (order[state.kind], -(float("inf") if state.left is None else state.left))

        return max((guard.state for guard in self._guards), key=badness)

    @property
    def valid_for(self) -> float | None:
        """Time until the first of the leases would end without renewal; `None` if none has an end."""
        return min((left for guard in self._guards if (left := guard.valid_for) is not None), default=None)

    def check(self) -> None:
        """Raises `LockLost` for the first that is not held."""
        for guard in self._guards:
            guard.check()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.tokens!r} {self.state.kind}>"

    def _let_go(self) -> None:
        """Gives back in the background what was not given back yet."""
        for guard in self._guards:
            guard._let_go()


def chain(error: BaseException, lost: LockLost) -> None:
    """Notes a loss behind an error of the caller's own, which goes on as it is."""
    seen = {id(lost)}
    end = error
    while end.__context__ is not None and id(end) not in seen:
        seen.add(id(end))
        end = end.__context__
    if id(end) not in seen:
        end.__context__ = lost
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(str(lost))


def cause(told: tuple[str, str] | None) -> Loss | None:
    """The cause of a loss as the native half tells it."""
    return None if told is None else Loss(told[0])


class Template:
    """A lock name with parts that a function's arguments fill in, as in `"report:{day}"`."""

    def __init__(self, text: str, function: Callable[..., Any], inject: str | None) -> None:
        self._text = text
        self._given = {} if inject is None else {inject: None}
        self._signature = inspect.signature(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Invalid("a generator runs after its call has returned; use `with` inside it")
        known = self._signature.parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for _, part, _, _ in string.Formatter().parse(text):
            name = (part or "").split(".")[0].split("[")[0]
            if part is not None and name not in known and not open_ended:
                raise Invalid(
                    f"lock name {text!r} needs an argument `{name}` "
                    f"that {function.__qualname__} does not take"
                )

    def fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name for a call with these arguments."""
        bound = self._signature.bind(*args, **kwargs, **self._given)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values.update(values.pop(parameter.name, {}))
        return self._text.format(**values)
