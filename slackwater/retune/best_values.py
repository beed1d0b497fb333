"""The best values of earlier searches, by kind of node and severity: a small file in `state_dir`, replaced whole."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import msgspec

from slackwater.core.files import bytes_of, replace_durably

log = logging.getLogger("retune")

BANDS = 5
"""Number of bands of severities, from 0 to 1."""


def band(severity: float) -> str:
    """`0.4-0.6`: the band that a severity is in."""
    low = min(math.floor(severity * BANDS + 1e-9), BANDS - 1)
    return f"{low / BANDS:.1f}-{(low + 1) / BANDS:.1f}"


Values = dict[str, dict[str, dict[str, int]]]
"""Kind of node -> band -> knob -> value."""


class _File(msgspec.Struct):
    v: int
    values: Values


class BestValues:
    """`state_dir/retune.json`. A file that cannot be read is logged and left out: it only saves time."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "retune.json"
        self._values: Values = {}
        try:
            self._values = msgspec.json.decode(bytes_of(self.path), type=_File).values
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s: left out: %s", self.path, error)

    def get(self, kind: str, severity: float) -> dict[str, int] | None:
        """The best values for such a node; None: they are not known."""
        return self._values.get(kind, {}).get(band(severity))

    def put(self, kind: str, severity: float, values: dict[str, int]) -> None:
        """Keeps the values on disk; when that fails they are known to this process only."""
        self._values.setdefault(kind, {})[band(severity)] = dict(values)
        text = msgspec.json.format(msgspec.json.encode(_File(1, self._values)), indent=2)
        try:
            replace_durably(self.path, text + b"\n")
        except OSError as error:
            log.warning("%s: not kept: %s", self.path, error.strerror)
