"""Tells callbacks of losses, on one thread for all guards of the process. It starts with the first
callback."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import _fencepost as native
from . import _process
from ._values import Loss

if TYPE_CHECKING:
    from ._locks import Guard

logger = logging.getLogger("fencepost")


class Watcher:
    """The thread and what it waits for."""

    def __init__(self) -> None:
        self.generation = _process.generation
        self._losses = native.Losses()
        self._callbacks: dict[int, Callable[[Loss], object]] = {}
        self._next = 0
        self._mutex = threading.Lock()
        threading.Thread(target=self._run, name="fencepost-losses", daemon=True).start()

    def watch(self, guard: native.Guard, callback: Callable[[Loss], object]) -> None:
        with self._mutex:
            self._next += 1
            number = self._next
        # Not the guard itself, which would be held for as long as it is watched.
        self._callbacks[number] = callback
        self._losses.watch(guard, number)

    def _run(self) -> None:
        while (told := self._losses.next().wait()) is not None:
            number, why = told
            callback = self._callbacks.pop(number)
            if why is not None:
                # Nothing may end this thread, not even sys.exit(): others wait for it.
                call(callback, Loss(why), BaseException)


def call(callback: Callable[[Loss], object], why: Loss, caught: type[BaseException] = Exception) -> None:
    """Calls a callback; what it raises is nobody's to catch."""
    try:
        callback(why)
    except caught:
        logger.exception("a callback of on_lost failed")


_watcher: Watcher | None = None
_mutex = threading.Lock()


def _in_child() -> None:
    # A thread that the fork has left behind may have had it.
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def tell(guard: Guard, callback: Callable[[Loss], object]) -> None:
    """Calls `callback` when the lock of `guard` is lost."""
    global _watcher
    with _mutex:
        if _watcher is None or _watcher.generation != _process.generation:
            _watcher = Watcher()
        watcher = _watcher
    watcher.watch(guard._native, callback)
