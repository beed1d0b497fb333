"""The locks on what one pool drives, as a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbengine.leadership.lock import PoolLocks
from slackwater.config import PoolSettings


@contextmanager
def pool_lock(pool: PoolSettings, folder: Path) -> Iterator[None]:
    """Held within the `with` statement. Raises LockError."""
    locks = PoolLocks(folder)
    locks.take([pool])
    try:
        yield
    finally:
        locks.release()
