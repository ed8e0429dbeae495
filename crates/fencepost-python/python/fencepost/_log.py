"""Hands the library's events to `logging`, on a thread of the package's own. The threads on which they happen
never wait for Python: they put them into a queue of the native half."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback

from . import _fencepost as native

PATIENCE = 5.0
"""How long the end of the interpreter waits for handlers to take what is left."""

logger = logging.getLogger("fencepost")

_mutex = threading.Lock()
_thread: threading.Thread | None = None
_events: socket.socket | None = None
_debug = False
_ended = False


def _in_child() -> None:
    """The thread has stayed behind, and another one may have had the mutex."""
    global _mutex, _thread, _events, _debug, _ended
    if _events is not None:
        _events.close()
    _mutex, _thread, _events, _debug, _ended = threading.Lock(), None, None, False, False


os.register_at_fork(after_in_child=_in_child)


def follow() -> None:
    """Has events logged from now on: from level INFO, or DEBUG if the logger takes them now."""
    global _debug
    if _thread is None:
        _start()
    debug = logger.isEnabledFor(logging.DEBUG)
    if debug is not _debug:
        _debug = debug
        native.log_debug(debug)


def _start() -> None:
    global _thread, _events, _debug
    # Whoever comes meanwhile goes on without: it may be a signal handler on this thread.
    if not _mutex.acquire(blocking=False):
        return
    try:
        if _thread is None and not _ended:
            _events, _debug = socket.socket(fileno=native.log_open()), False
            thread = threading.Thread(target=_run, args=(_events,), name="fencepost-log", daemon=True)
            thread.start()
            _thread = thread
    except (RuntimeError, OSError):
        # No thread or no descriptor is to be had. Locks do without.
        native.log_close()
    finally:
        _mutex.release()


def stop() -> None:
    """Hands over what is left, and ends the thread."""
    global _ended
    _ended = True
    native.log_close()
    if _thread is not None:
        _thread.join(PATIENCE)


def _run(events: socket.socket) -> None:
    with events:
        more = True
        while more:
            # A socket of Python's own: where gevent makes threads of greenlets, the others go on meanwhile.
            more = bool(events.recv(4096))
            waiting, dropped = native.log_take()
            for event in waiting:
                _log(*event)
            if dropped:
                message = f"{dropped} events were not logged, because the handlers of `logging` are too slow"
                _log(logging.WARNING, time.time(), __file__, 0, message)


def _log(level: int, at: float, file: str, line: int, message: str) -> None:
    try:
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, file, line, message, (), None)
            record.relativeCreated -= 1000 * (record.created - at)
            record.created, record.msecs = at, at % 1 * 1000
            logger.handle(record)
    except BaseException:
        # Of a handler or filter of the user's. Nothing may end this thread.
        traceback.print_exc()
