"""Which times of trouble are one episode: those of a server with only a little calm between them, and those of all
servers that are slow at once. One neighbour is one episode, however often its signals waver. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from slackwater.core.messages import SLOW_ALONE, State

LEAST_S, MOST_S = 3.0, 15.0
PART = 0.25
"""Two times are one episode if the calm between them is shorter than this part of the first, and than `MOST_S`. Less
than `LEAST_S` of calm ends no episode."""


class Span(Protocol):
    """A time that a node spent in a state other than calm and unknown."""

    @property
    def node(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def since_unix_s(self) -> float: ...
    @property
    def until_unix_s(self) -> float | None: ...


S = TypeVar("S", bound=Span)


def together(spans: Iterable[S]) -> list[list[S]]:
    """Groups of spans that are one episode each, in order of their beginnings."""
    groups: list[list[S]] = []
    latest: dict[str, tuple[list[S], float]] = {}
    """The newest group of each server, and when its last span ended. A server that wavers for days has a group of
    thousands."""
    for span in sorted(spans, key=lambda span: (span.since_unix_s, span.node)):
        key = "" if span.state == "all_slow" else span.node
        group, until = latest.get(key, ([], -math.inf))
        ends = math.inf if span.until_unix_s is None else span.until_unix_s
        if group and _follows(group[0].since_unix_s, until, span.since_unix_s):
            group.append(span)
            latest[key] = group, max(until, ends)
        else:
            groups.append([span])
            latest[key] = groups[-1], ends
    return groups


def leading(group: Sequence[S]) -> S:
    """The span whose state and reasons are the episode's: the first one of a server that is slow by
    itself, else the first."""
    return next((span for span in group if span.state in SLOW_ALONE), group[0])


def end(group: Sequence[Span]) -> float | None:
    """When the last of the spans ended; None: it goes on."""
    ends = [span.until_unix_s for span in group]
    return None if None in ends else max(until for until in ends if until is not None)


def _follows(first_unix_s: float, until_unix_s: float, since_unix_s: float) -> bool:
    most_s = min(max(LEAST_S, PART * (until_unix_s - first_unix_s)), MOST_S)
    return since_unix_s - until_unix_s < most_s
