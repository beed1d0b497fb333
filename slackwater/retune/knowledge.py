"""The knowledge base: from severity to values of knobs. A TOML file; ours is `knowledge.toml` beside this."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slackwater.core.files import bytes_of
from slackwater.core.messages import KnobState
from slackwater.orders.knobs import Value, allows

SHIPPED = Path(__file__).resolve().parent / "knowledge.toml"
MAXCONN = "maxconn"
"""The balancer's own limit for a server, which no wsengine sets."""


class KnowledgeError(Exception):
    """A knowledge base that cannot be used; the text names the file, the knob and what was expected."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of a knob; row i counts from `severity[i]` on."""

    severity: list[float]
    factor: list[float] = []
    value: list[int | str] = []
    least_cpus: int = 1
    """A web server that may run on fewer CPUs keeps its own value."""

    def __post_init__(self) -> None:
        rows = self.factor or self.value
        if bool(self.factor) == bool(self.value) or len(rows) != len(self.severity):
            raise ValueError("expected `severity` and either `factor` or `value`, of the same length")
        if not self.severity or sorted(set(self.severity)) != self.severity or not 0 < self.severity[0] <= 1:
            raise ValueError("`severity` must rise, from above 0 to at most 1")
        if any(not 0 < factor <= 100 for factor in self.factor):
            raise ValueError("a `factor` must be more than 0 and at most 100")

    def row(self, severity: float) -> int | None:
        """The row that counts at this severity; None below the first."""
        return max((row for row, lowest in enumerate(self.severity) if severity >= lowest), default=None)


Knowledge = Mapping[str, Rule]


def load(path: str = "") -> Knowledge:
    """Reads a knowledge base; an empty path means the shipped one. Raises KnowledgeError."""
    file = Path(path) if path else SHIPPED
    try:
        raw = tomllib.loads(bytes_of(file).decode("utf-8-sig"))
    except OSError as error:
        raise KnowledgeError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KnowledgeError(f"{file}: not TOML: {error}") from None
    rules = {}
    for knob, table in raw.items():
        try:
            rules[knob] = msgspec.convert(table, Rule)
        except msgspec.ValidationError as error:
            raise KnowledgeError(f"{file}: {knob}: {error}") from None
    return rules


def value_for(rule: Rule, knob: KnobState, severity: float) -> Value | None:
    """The knob's value at this severity, within the node's bounds; None: as it is without us.

    A factor never rounds to no change at all: 1 worker times 1.2 becomes 2, if that may be.
    """
    row = rule.row(severity)
    if row is None or knob.baseline is None:
        return None
    if rule.value:
        wanted = rule.value[row]
        is_allowed = wanted in knob.words if isinstance(wanted, str) else allows(knob, wanted, wanted)
        return wanted if is_allowed and wanted != knob.baseline else None
    if isinstance(knob.baseline, str) or knob.lowest is None or knob.highest is None:
        return None
    baseline, factor = round(knob.baseline), rule.factor[row]
    wanted = round(baseline * factor)
    if wanted == baseline and factor != 1.0:
        wanted += 1 if factor > 1.0 else -1
    value = min(max(1, wanted, knob.lowest), knob.highest)
    # A bound on the far side of the baseline would change the knob the wrong way.
    is_wrong_way = (value - baseline) * (factor - 1.0) < 0
    return None if value == baseline or is_wrong_way else value
