"""The knowledge base: from severity to values of knobs. A TOML file; ours is `knowledge.toml` beside this."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slackwater.core.files import bytes_of
from slackwater.core.messages import KnobState
from slackwater.orders.knobs import Value

SHIPPED = Path(__file__).resolve().parent / "knowledge.toml"
MAXCONN = "maxconn"
"""The knob that is the balancer's."""


class KnowledgeError(Exception):
    """A knowledge base that cannot be used; the text names the file, the knob and what was expected."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of one knob; row i counts from `severity[i]` on."""

    severity: list[float]
    factor: list[float] = []
    value: list[int | str] = []

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
        rows = [index for index, from_ in enumerate(self.severity) if severity >= from_]
        return rows[-1] if rows else None


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
    """What the knob should be at this severity, within the node's bounds; None: as it is without us.

    A factor never rounds to no change at all: 1 worker times 1.2 becomes 2, if that may be.
    """
    row = rule.row(severity)
    if row is None or knob.baseline is None:
        return None
    if rule.value:
        wanted = rule.value[row]
        allowed = wanted in knob.words if isinstance(wanted, str) else bounded(wanted, knob) == wanted
        return wanted if allowed and wanted != knob.baseline else None
    if isinstance(knob.baseline, str):
        return None
    return scaled(knob, rule.factor[row])


def scaled(knob: KnobState, factor: float) -> int | None:
    """The baseline times `factor`, whole and within bounds; None where that is the baseline."""
    if knob.baseline is None or isinstance(knob.baseline, str):
        return None
    baseline = round(knob.baseline)
    wanted = round(baseline * factor)
    if wanted == baseline and factor != 1.0:
        wanted += 1 if factor > 1.0 else -1
    found = bounded(max(1, wanted), knob)
    # A bound on the far side of the baseline would turn the knob the wrong way.
    wrong_way = found is not None and (found - baseline) * (factor - 1.0) < 0
    return None if found == baseline or wrong_way else found


def bounded(value: int, knob: KnobState) -> int | None:
    """The nearest value that Orders may ask for; None where no number may be."""
    if knob.lowest is None or knob.highest is None:
        return None
    return min(max(value, knob.lowest), knob.highest)
