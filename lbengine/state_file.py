"""Small JSON files that outlive a restart and a power cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from slackwater.core.files import bytes_of, remove, replace_durably

Kept = TypeVar("Kept")


class StateFileError(Exception):
    """A file cannot be read, written or removed; the text names it."""


@dataclass(frozen=True)
class StateFile(Generic[Kept]):
    """A file that keeps a value of the type `kind`. It is absent while there is nothing to keep."""

    path: Path
    kind: type[Kept]

    def load(self) -> Kept | None:
        """The value; None when there is no file. Raises StateFileError."""
        try:
            return msgspec.json.decode(bytes_of(self.path), type=self.kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StateFileError(f"{self.path} is there but cannot be read: {error}") from None

    def save(self, value: Kept | None) -> None:
        """Keeps the value; None removes the file. Raises StateFileError."""
        try:
            if value is None:
                remove(self.path)
            else:
                replace_durably(self.path, msgspec.json.encode(value) + b"\n")
        except OSError as error:
            raise StateFileError(f"{self.path}: cannot be kept: {error.strerror}; nothing was changed") from None
