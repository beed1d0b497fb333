"""`policy = "search"` over time: which node of a pool tries which values, for how long, and which are kept.

All nodes get the values that are known at once. Then they search, one node of a pool at a time: another node's new
values move the load, and would be measured with this node's. The next node of the same kind begins with the values that
were best here. It keeps them without further tries when they are better than those without us. Where the rest of the
pool can carry a node's load there is nothing to measure, so the known values stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from slackwater.retune import search
from slackwater.retune.best_values import BestValues
from slackwater.retune.node import RetunedNode
from slackwater.retune.search import Climb, Range, Values

log = logging.getLogger("retune")


class PoolSearch:
    """The searches of one pool. `measure_s` is how long each try is measured."""

    def __init__(self, best_values: BestValues, measure_s: float) -> None:
        self._best_values = best_values
        self._measure_s = measure_s
        self._quiet_since_s = 0.0
        """Since when no node has been searching or changing its values: nothing that we do moves the load."""
        self._room: bool | None = None
        self._room_since_s = 0.0
        self.active_node = ""
        """The node that is measured; it must keep its baseline weight, or the tries cannot be compared."""

    def step(self, nodes: Iterable[RetunedNode], now_s: float, busy: Callable[[RetunedNode], bool], room: bool) -> None:
        """Measures the values in force and chooses the next try.

        `busy`: the node's values are being changed, or are to be. `room`: the rest of the pool can carry its load.
        """
        nodes, self.active_node = list(nodes), ""
        if room != self._room:
            self._room, self._room_since_s = room, now_s
        for node in nodes:
            if node.search.is_measuring and not busy(node):
                self._go_on(node, now_s)
            elif node.stage.entered and node.search.values is None:
                self._set_known(node, now_s)
        if any(node.search.is_measuring or busy(node) for node in nodes):
            self._quiet_since_s = now_s
            self.active_node = next((node.name for node in nodes if node.search.is_measuring), "")
            return
        if room or now_s - self._room_since_s < self._measure_s:
            return
        for node in nodes:
            if node.stage.entered and node.search.climb is None and (ranges := node.ranges(now_s)):
                self.active_node = node.name
                self._begin(node, ranges, now_s)
                return

    def left(self, node: RetunedNode) -> None:
        """The node's episode is over: the best values so far are not lost."""
        if node.search.is_measuring and node.search.climb is not None and node.search.climb.improved:
            self._remember(node, node.search.climb.best_values)

    def _set_known(self, node: RetunedNode, now_s: float) -> None:
        """The known values help at once; they are measured when the node's turn comes."""
        if ranges := node.ranges(now_s):
            node.search.severity = node.stage.severity
            known = self._remembered(node, ranges)
            node.search.values = known or node.known_values({*ranges}, node.search.severity, now_s)
            node.search.status = "known values, not measured yet"

    def _begin(self, node: RetunedNode, ranges: Mapping[str, Range], now_s: float) -> None:
        """The values in force are measured first, while no other node changes."""
        state = node.search
        state.severity = node.stage.severity
        if (known := self._remembered(node, ranges)) is not None and state.values != known:
            state.values = known  # another node's search has found them meanwhile
            return
        since_s = max(self._quiet_since_s, node.full_weight_since_s or now_s, node.stage.since_s or now_s)
        if now_s - since_s < self._measure_s or (cost_ms := node.cost_ms(since_s)) is None:
            return
        state.climb = search.begin(ranges, cost_ms, state.values)
        log.info("%s: search begins with %s: a p95 of %.1f ms", node.name, words(state.climb.best_values), cost_ms)
        self._try_next(node, state.climb)

    def _go_on(self, node: RetunedNode, now_s: float) -> None:
        state = node.search
        assert state.climb is not None
        if state.climb.ranges.keys() & node.left_alone_s.keys():
            self._end(node, state.climb, "a knob is left alone from here on")
            return
        if state.values is None or state.settled_s is None or node.full_weight_since_s is None:
            return
        since_s = max(state.settled_s, node.full_weight_since_s)
        if now_s - since_s < self._measure_s or (cost_ms := node.cost_ms(since_s)) is None:
            return
        climb = state.climb = search.record(state.climb, state.values, cost_ms)
        log.info("%s: %s came to a p95 of %.1f ms", node.name, words(state.values), cost_ms)
        if climb.tries == 1 and climb.improved and self._remembered(node, climb.ranges) == climb.best_values:
            self._end(node, climb, "the best of an earlier search is the best again")
        else:
            self._try_next(node, climb)

    def _try_next(self, node: RetunedNode, climb: Climb) -> None:
        values = search.next_try(climb)
        if values is None:
            self._end(node, climb, "the best of all tries" if climb.improved else "nothing was better than without us")
            self._remember(node, climb.best_values)
            return
        node.search.values, node.search.settled_s = values, None
        node.search.status = f"try {climb.tries + 1} of a search; p95 so far: {measured(climb)}"

    def _end(self, node: RetunedNode, climb: Climb, why: str) -> None:
        state = node.search
        state.values, state.is_over, state.announces_end = climb.best_values, True, True
        tries = f"{climb.tries} {'try' if climb.tries == 1 else 'tries'}"
        state.status = f"search over after {tries}: {words(climb.best_values)}, {why}; p95: {measured(climb)}"
        log.info("%s: %s", node.name, state.status)

    def _remembered(self, node: RetunedNode, ranges: Mapping[str, Range]) -> dict[str, int] | None:
        """The best values of an earlier search for such a node; None where they were those without us."""
        known = self._best_values.get(_kind(node), node.search.severity)
        if known is None:
            return None
        own = {name: range_.baseline for name, range_ in ranges.items()}
        values = {name: known.get(name, value) for name, value in own.items()}
        return None if values == own else values

    def _remember(self, node: RetunedNode, values: dict[str, int]) -> None:
        self._best_values.put(_kind(node), node.search.severity, values)


def _kind(node: RetunedNode) -> str:
    return node.knobs.kind if node.knobs else ""


def words(values: Values) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def measured(climb: Climb) -> str:
    """All that was measured, in order."""
    return ", ".join(f"{words(climb.values(point))} {cost:.0f} ms" for point, cost in climb.costs.items())
