"""The locks on what one pool drives, as a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.config import PoolSettings
from slackwater.lbengine.leadership.lock import PoolLocks


@contextmanager
def pool_lock(pool: PoolSettings, folder: Path) -> Iterator[None]:
    """Held within the `with` statement. Raises LockError."""
    locks = PoolLocks(folder)
    locks.take([pool])
    try:
        yield
    finally:
        locks.release()
