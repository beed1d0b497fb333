"""The shares that a haproxy.cfg gives the servers of each backend, to be compared before and after an edit of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

try:
    from ansible_collections.slackwater.slackwater.plugins.module_utils.haproxy_configuration import (
        CONDITIONS,
        SECTIONS,
        UNKNOWN,
    )
except ImportError:  # started from the source tree
    from haproxy_configuration import CONDITIONS, SECTIONS, UNKNOWN

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


def weights(rows: Sequence[Sequence[str]]) -> dict[str, dict[str, Weight]]:
    """By backend, each server's weight as HAProxy takes it: its own, of `default-server`, of `defaults`, or 1.

    A `server-template` is one server here, called `PREFIX NUMBERS`.
    """
    by_backend: dict[str, dict[str, Weight]] = {}
    of_defaults: dict[str, Weight] = {}
    here = last = OWN
    depth = 0
    kind = name = ""
    for row in rows:
        first = row[0] if row else ""
        if first in CONDITIONS:  # which branch holds only HAProxy knows
            depth += CONDITIONS[first]
            here = ONLY_HAPROXY_KNOWS
        elif first in SECTIONS:
            kind, name = first, row[1] if len(row) > 1 and row[1] != "from" else ""
            parent = of_defaults.get(row[row.index("from") + 1]) if "from" in row[:-1] else None
            here = parent or (OWN if kind == "defaults" else last)
            here = ONLY_HAPROXY_KNOWS if depth else here
            if kind in ("backend", "listen"):
                by_backend[name] = {}
        elif first == "default-server":
            here = _configured(row[1:], here)
        elif first in ("server", "server-template") and kind in ("backend", "listen"):
            server = " ".join(row[1:2] if first == "server" else row[1:3])
            is_hidden = _by_dns(row) or UNKNOWN in server
            by_backend[name][server] = ONLY_HAPROXY_KNOWS if is_hidden else _configured(row[3:], here)
        if kind == "defaults":
            last = of_defaults[name] = here
    return by_backend


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
