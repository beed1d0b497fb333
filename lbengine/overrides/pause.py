"""The pause: an operator's word that the weights are theirs. On disk, so that it outlives a restart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lbengine.baseline import replace_durably


class PauseError(Exception):
    """The pause cannot be kept or ended; the text names the file."""


class Pause(msgspec.Struct, frozen=True):
    """Who paused a pool, why, and when by the wall clock."""

    by: str
    why: str
    since_unix_s: float


@dataclass(frozen=True)
class PauseStore:
    """`<state_dir>/paused-<pool>.json`: there while the pool is paused."""

    state_dir: Path
    pool: str

    @property
    def path(self) -> Path:
        return self.state_dir / f"paused-{self.pool}.json"

    def load(self) -> Pause | None:
        """The pause in force, or None. A file that cannot be read still means a pause: hands off is the safe side."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Pause)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            return Pause(by="unknown", why=f"{self.path} is there but cannot be read: {error}", since_unix_s=0.0)

    def save(self, pause: Pause) -> None:
        """Raises PauseError when it cannot be kept."""
        try:
            replace_durably(self.path, msgspec.json.encode(pause) + b"\n")
        except OSError as error:
            raise PauseError(f"{self.path}: the pause cannot be kept: {error.strerror}; nothing was changed") from None

    def remove(self) -> None:
        """Raises PauseError when it cannot be ended."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise PauseError(f"{self.path}: the pause cannot be ended: {error.strerror}") from None
