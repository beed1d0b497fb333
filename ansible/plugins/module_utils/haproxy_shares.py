"""The shares that a haproxy.cfg gives the servers of each backend, to be compared before and after an edit of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

try:
    from ansible_collections.slackwater.slackwater.plugins.module_utils.haproxy_configuration import (
        CONDITIONS,
        PROXIES,
        SECTIONS,
        UNKNOWN,
        Started,
        rows_of,
    )
except ImportError:  # started from the source tree
    from haproxy_configuration import CONDITIONS, PROXIES, SECTIONS, UNKNOWN, Started, rows_of

MOST_WEIGHT = 256


class Weight(NamedTuple):
    """The weight of one server."""

    value: int | None
    """None: only HAProxy knows."""
    is_configured: bool = True
    """Whether the site's files name it; otherwise it is HAProxy's default."""


ONLY_HAPROXY_KNOWS = Weight(None)
OWN = Weight(1, is_configured=False)
"""HAProxy's default, where the files name none."""


class _State(NamedTuple):
    """What holds at a line, by (kind, name) of sections. After a condition (`.if`) there may be several of each: which
    branch holds only HAProxy knows."""

    weights: dict[tuple[str, str], Weight]
    """A server's weight where it has none of its own, of each `defaults` and of the sections in `sections`."""
    sections: frozenset[tuple[str, str]]
    """Those that the line may belong to."""
    defaults: frozenset[tuple[str, str]]
    """The last `defaults`."""


def weights(rows: Sequence[Sequence[str]]) -> dict[str, dict[str, Weight]]:
    """By backend, each server's weight as HAProxy takes it: its own, of `default-server`, of `defaults`, or 1.

    A `server-template` is one server here, called `PREFIX NUMBERS`. A server is here also where only a branch of a
    condition has it.
    """
    by_backend: dict[str, dict[str, Weight]] = {}
    none = ("defaults", UNKNOWN)
    state = _State({none: OWN}, frozenset(), frozenset([none]))
    conditions: list[list[_State]] = []
    for row in rows:
        first = row[0] if row else ""
        if first == ".if":
            conditions.append([state])
        elif first in CONDITIONS and conditions:
            conditions[-1].append(state)
            state = conditions[-1][0]
            if first == ".else":  # one of the branches holds
                del conditions[-1][0]
            elif first == ".endif":
                state = _one_of(conditions.pop())
        elif first in SECTIONS:
            state = _in_section(state, row, is_certain=not conditions)
            for kind, name in state.sections:
                if kind in PROXIES:
                    by_backend.setdefault(name, {})
        elif first == "default-server":
            for section in state.sections:
                before = state.weights[section]
                after = _configured(row[1:], before)
                after = after if len(state.sections) == 1 else _same([before, after])
                state = state._replace(weights={**state.weights, section: after})
        elif first in ("server", "server-template"):
            server = " ".join(row[1:2] if first == "server" else row[1:3])
            is_hidden = _by_dns(row) or UNKNOWN in server
            for kind, name in state.sections:
                if kind in PROXIES:
                    weight = ONLY_HAPROXY_KNOWS if is_hidden else _configured(row[3:], state.weights[kind, name])
                    servers = by_backend[name]
                    servers[server] = _same([servers.get(server, weight), weight])
    return by_backend


def _in_section(state: _State, row: Sequence[str], *, is_certain: bool) -> _State:
    """At the first line of a section. `is_certain`: it stands in no condition."""
    kind, name = row[0], row[1] if len(row) > 1 and row[1] != "from" else ""
    if "from" in row[:-1]:
        weight = state.weights.get(("defaults", row[row.index("from") + 1]), ONLY_HAPROXY_KNOWS)
    elif kind == "defaults":
        weight = OWN
    else:
        weight = _same([state.weights[section] for section in state.defaults])
    if kind in PROXIES and not is_certain:  # another branch may have another part of it
        weight = ONLY_HAPROXY_KNOWS
    here = frozenset([(kind, name)])
    kept = {section: weight for section, weight in state.weights.items() if section[0] == "defaults"}
    return _State({**kept, (kind, name): weight}, here, here if kind == "defaults" else state.defaults)


def _one_of(states: Sequence[_State]) -> _State:
    """The state where any of these may hold."""
    known = {section for state in states for section in state.weights}
    return _State(
        {it: _same([state.weights[it] for state in states if it in state.weights]) for it in known},
        frozenset().union(*(state.sections for state in states)),
        frozenset().union(*(state.defaults for state in states)),
    )


def _same(weights: Sequence[Weight]) -> Weight:
    """The weight, where all are the same."""
    return weights[0] if len(set(weights)) == 1 else ONLY_HAPROXY_KNOWS


class Site:
    """HAProxy's whole configuration: the file that is edited, and those that HAProxy reads before and after it."""

    def __init__(self, before: list[str] | None = None, after: list[str] | None = None, started: Started | None = None):
        self._before, self._after = before or [], after or []
        self._environ, self.folder = (started.environ, started.folder) if started else ({}, "")

    def rows(self, lines: list[str]) -> list[list[str]]:
        """The rows of all files, with these lines in the edited one."""
        return rows_of([*self._before, *lines, *self._after], self._environ)

    def own_rows(self, lines: list[str]) -> list[list[str]]:
        """The rows of the edited file, with these lines in it."""
        start = len(self._before)
        return self.rows(lines)[start : start + len(lines)]

    def weights(self, lines: list[str]) -> dict[str, dict[str, Weight]]:
        return weights(self.rows(lines))


def _by_dns(row: Sequence[str]) -> bool:
    """Whether SRV records bring its weight."""
    is_record = any(word.startswith("_") for word in row[2:4])
    return is_record and "ignore-weight" not in ",".join(row).split(",")


def _configured(row: Sequence[str], otherwise: Weight) -> Weight:
    """The weight in these words. A value that is not understood is unknown, never a default."""
    for key, value in zip(row, [*row[1:], ""], strict=False):
        if UNKNOWN in key:
            otherwise = ONLY_HAPROXY_KNOWS
        elif key == "weight":
            is_number = value.isascii() and value.isdigit() and int(value) <= MOST_WEIGHT
            otherwise = Weight(int(value)) if is_number else ONLY_HAPROXY_KNOWS
    return otherwise


def same_shares(before: Mapping[str, Weight], after: Mapping[str, Weight]) -> bool:
    """Whether each server gets the same part of the backend's load. What is not known may not be edited at all."""
    if before == after:
        return True
    old, new = (_known(side) for side in (before, after))
    if before.keys() != after.keys() or old is None or new is None:
        return False
    return all(old_weight * sum(new) == new_weight * sum(old) for old_weight, new_weight in zip(old, new, strict=True))


def _known(weights: Mapping[str, Weight]) -> list[int] | None:
    values = [weight.value for weight in weights.values() if weight.value is not None]
    return values if len(values) == len(weights) else None


def in_words(weights: Mapping[str, Weight]) -> str:
    """Each server's share; its weight where that cannot be told."""
    values = _known(weights)
    if values is None or not sum(values):
        return ", ".join(f"{name} {'?' if weight.value is None else weight.value}" for name, weight in weights.items())
    return ", ".join(f"{name} {100 * value / sum(values):.3g}%" for name, value in zip(weights, values, strict=True))


def advice(weights: Mapping[str, Weight]) -> str:
    """Weights in the same proportion with room below them, where they are known."""
    values = _known(weights)
    if values is None or not 0 < max(values) <= MOST_WEIGHT // 2:
        return "give each of its servers a weight of its own, the largest 100 or so"
    times = MOST_WEIGHT // max(values)
    same = ", ".join(f"{name} {value * times}" for name, value in zip(weights, values, strict=True))
    return f"weights in the same proportion, with room below them: {same}"


def each_server(weights: Mapping[str, Weight]) -> set[str]:
    """The names of all servers, those of a `server-template` one by one."""
    names = set()
    for server in weights:
        prefix, _, numbers = server.partition(" ")
        low, _, high = numbers.rpartition("-")
        is_known = high.isdigit() and (low.isdigit() or not low)
        names |= {f"{prefix}{number}" for number in range(int(low or 1), int(high) + 1)} if is_known else {server}
    return names
