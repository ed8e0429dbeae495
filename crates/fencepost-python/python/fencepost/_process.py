"""What has to be done for a process as a whole: when it forks, and when it ends.

A forked child has the objects of its parent but not its threads and not its locks. Guards know that by
themselves and do nothing; locks connect anew when they are first used. When the interpreter ends, what is
still held is given back."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from . import _fencepost as native
from . import _log
from ._errors import Error

if TYPE_CHECKING:
    from ._base import BaseGuard, BaseLocks

generation = 0
"""How many forks there were above this process since the package was imported."""

ending = False
"""Whether the interpreter ends."""

guards: weakref.WeakSet[BaseGuard] = weakref.WeakSet()
"""The guards of this process."""

stores: weakref.WeakSet[BaseLocks] = weakref.WeakSet()
"""The stores that this process is connected to."""


def _in_child() -> None:
    global generation, ending, guards, stores
    generation += 1
    ending = False
    guards = weakref.WeakSet()
    stores = weakref.WeakSet()
    native.after_fork()
    # A child of multiprocessing ends without atexit, but with finalizers, which it clears after this.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(native, lambda _: util.Finalize(None, _at_exit, exitpriority=0))


def stop_at_end() -> None:
    """Ends a daemon thread that asks for locks while the interpreter ends. An error would be nobody's."""
    if ending and threading.current_thread().daemon:
        raise SystemExit


def _at_exit() -> None:
    global ending
    ending = True
    held = [guard._native for guard in guards]
    try:
        native.release_all(held).wait()
        for locks in list(stores):
            locks._end()
        _log.stop()
    except (Error, KeyboardInterrupt):
        # Whoever ends a program twice wants it to end; the locks end with their leases.
        pass


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
