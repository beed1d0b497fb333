"""A node's monitor sees more than its balancer: while the monitor speaks, the balancer's Samples are left out. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from slackwater.core.messages import Sample
from slackwater.detector.features.columns import SECTIONS, Bools, Floats, Ints, Row, Table, is_outside, node_of
from slackwater.detector.slot_arrays import SlotArrays

SEEN_OUTSIDE = ("traffic.", "balancer.")
"""Columns with these prefixes are known at the balancer too. Those of all other sections are not."""
BLANK_S = 5.0
"""A monitor that has just come sees its first requests within this time, or none at all."""


def monitors_first(
    arrived: Sequence[Row], samples: Sequence[Sample], has_monitor: Callable[[str], bool]
) -> tuple[Sequence[Row], Sequence[Sample]]:
    """The Samples of a tick without those of the balancer whose node has a monitor that speaks.

    `samples`: the same as `arrived`, or empty. `has_monitor`: whether a node's monitor was heard before this tick.
    """
    outside = [is_outside(row) for row in arrived]
    if not any(outside):
        return arrived, samples
    nodes = [node_of(row) for row in arrived]
    monitored = {node for node, at_balancer in zip(nodes, outside, strict=True) if not at_balancer or has_monitor(node)}
    kept = [number for number, node in enumerate(nodes) if not outside[number] or node not in monitored]
    return [arrived[number] for number in kept], [samples[number] for number in kept if samples]


class Sources(SlotArrays):
    """What each slot is judged by."""

    speaks: Bools
    """Whether the last Sample was the monitor's."""
    outside: Bools
    """Whether the slot is judged by its requests alone: by the balancer's Samples, or by what these would show."""
    blank_s: Floats
    """Time for which the monitor, since it came, has seen no requests."""
    unnamed: Bools
    """Whether nothing but requests has shown the slot's episode, or what may become one: no cause of it was seen."""

    def __init__(self) -> None:
        super().__init__(speaks=False, outside=False, blank_s=0.0, unnamed=False)

    def hear(self, slots: Ints, table: Table, in_episode: Bools, knows_calm: Callable[[str], bool]) -> Table:
        """Notes who sent these slots' Samples (M,); returns the table as they are judged.

        When the monitor of a slow server comes, nothing may be known of its signals in calm, neither by itself nor by
        its peers. All that it shows would look calm then, and be learnt as calm. So until calm is known or the episode
        ends only the requests in its Samples are judged, against their calm at the balancer. It may see its first
        requests later than its other signals.

        `in_episode`: (slots,); `knows_calm`: whether a node's signals can be compared with calm.
        """
        from_balancer = table.columns["balancer.only"] > 0.0
        self.speaks[slots] = ~from_balancer
        joined = ~from_balancer & self.outside[slots] & in_episode[slots]
        blank = joined & np.isnan(table.columns["traffic.rps"])
        self.blank_s[slots] = np.where(blank, self.blank_s[slots] + table.columns["period_s"], 0.0)
        joined &= self.blank_s[slots] < BLANK_S
        held = [row for row in np.flatnonzero(joined).tolist() if not knows_calm(table.nodes[row])]
        return requests_alone(table, held) if held else table

    def reword(self, slots: Ints, unnamed: Bools, shown: Bools, calm: Bools) -> Bools:
        """(M,) whether these slots' episodes get another word: a cause was seen, or none is seen any more.

        `unnamed`: (M,) whether the row shows no cause; `shown`: whether it looks like a neighbour's; `calm`: whether it
        looks calm and the slot is in no episode, so that what was seen before is of another one.
        """
        before = self.unnamed[slots] | calm
        self.unnamed[slots] = now = self.outside[slots] | (before & ~(shown & ~unnamed))
        return np.asarray(before != now)


def requests_alone(table: Table, rows: Sequence[int]) -> Table:
    """The table with nothing but the requests in these rows, as if the balancer had made them."""
    columns = dict(table.columns)
    for name, values in columns.items():
        if name.partition(".")[0] in (*SECTIONS, "pmu", "probe") and not name.startswith(SEEN_OUTSIDE):
            columns[name] = values.copy()
            columns[name][rows] = np.nan
    columns["balancer.only"] = columns["balancer.only"].copy()
    columns["balancer.only"][rows] = 1.0
    return dataclasses.replace(table, columns=columns)
