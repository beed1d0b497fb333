"""Which fault comes when: a seed gives the same list each time. Nothing here touches anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

FIRST_S = 5.0
GAP_S = (4.0, 14.0)
"""From one fault's beginning to the next one's. They may overlap, but no two of one group."""
CALM_EVERY_S = 120.0
CALM_S = 30.0
"""A time without faults, in which everything must come right again."""


@dataclass(frozen=True)
class Kind:
    """A fault as the schedule sees it.

    `targets` are the parts it may hit, `seconds` the shortest and longest time it lasts, `values` what it may be done
    with. Two faults of one `group` are never at work together, since the second would undo the first.
    """

    name: str
    targets: Sequence[str]
    seconds: tuple[float, float]
    values: Sequence[float | str] = ()
    group: str = ""
    weight: float = 1.0
    """How often it comes, beside the others."""


@dataclass(frozen=True)
class Injection:
    """One fault: begins `at_s` after the start and is undone after `seconds`."""

    at_s: float
    kind: str
    target: str
    seconds: float
    value: float | str | None = None

    @property
    def end_s(self) -> float:
        return self.at_s + self.seconds

    def __str__(self) -> str:
        with_value = "" if self.value is None else f" ({self.value:g})" if isinstance(self.value, float) else ""
        return f"{self.kind} {self.target}{with_value or (f' ({self.value})' if self.value else '')}"


def schedule(seed: int, length_s: float, kinds: Mapping[str, Kind]) -> list[Injection]:
    """Faults for `length_s`, in order; the last one is over by then."""
    random = Random(seed)
    names = sorted(kinds)
    weights = [kinds[name].weight for name in names]
    injections: list[Injection] = []
    at_s = FIRST_S
    while True:
        into_s = at_s % (CALM_EVERY_S + CALM_S)
        if into_s >= CALM_EVERY_S:
            at_s += CALM_EVERY_S + CALM_S - into_s
        kind = kinds[random.choices(names, weights)[0]]
        target = random.choice(list(kind.targets))
        seconds = round(random.uniform(*kind.seconds), 1)
        value = random.choice(list(kind.values)) if kind.values else None
        begin_s = round(at_s, 1)
        if begin_s + seconds > length_s:
            return injections
        # It is over when the calm begins: a calm with a fault in it shows nothing.
        left_s = CALM_EVERY_S - begin_s % (CALM_EVERY_S + CALM_S)
        injection = Injection(begin_s, kind.name, target, min(seconds, round(left_s, 1)), value)
        if not any(clash(injection, kind, before, kinds[before.kind]) for before in injections):
            injections.append(injection)
        at_s += random.uniform(*GAP_S)


def clash(injection: Injection, kind: Kind, before: Injection, before_kind: Kind) -> bool:
    """Whether the earlier fault is still at work on what this one needs."""
    same = injection.target == before.target or (kind.group and kind.group == before_kind.group)
    return bool(same) and before.end_s >= injection.at_s


def calm_windows(length_s: float) -> list[tuple[float, float]]:
    """When no fault is at work, from the schedule's rule alone."""
    windows = []
    at_s = CALM_EVERY_S
    while at_s + CALM_S <= length_s:
        windows.append((at_s, at_s + CALM_S))
        at_s += CALM_EVERY_S + CALM_S
    return windows
