"""Fixtures for tests of code that uses locks. Installed with the package; pytest finds them by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import testing
from ._locks import Locks


@pytest.fixture
def fencepost_clock() -> testing.Clock:
    """A clock that moves only when told to."""
    return testing.Clock()


@pytest.fixture
def fencepost_store(fencepost_clock: testing.Clock) -> testing.Store:
    """A store in memory on the clock `fencepost_clock`, with faults on demand."""
    return testing.Store(fencepost_clock)


@pytest.fixture
def fencepost_locks(fencepost_store: testing.Store) -> Iterator[Locks]:
    """The locks of `fencepost_store`. Fails the test if it leaves one held."""
    locks = fencepost_store.locks()
    yield locks
    locks.close()
    left = [holder.name for holder in fencepost_store.locks().list()]
    if left:
        pytest.fail(f"the test left locks held: {', '.join(left)}")
