"""`policy = "search"` over time: which node of a pool tries what, for how long it is measured, and what is kept.

All nodes get at once what is known. Then they search, one node of a pool at a time: another node's new values move the
load, and a measurement would be of that. What one node found is what the next one of its kind begins with; it is kept
without further tries when it is better than without us. Where the rest of the pool can carry a node's load there is
nothing to measure, so what is known stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from slackwater.retune import search
from slackwater.retune.best_values import BestValues
from slackwater.retune.knowledge import Knowledge, value_for
from slackwater.retune.node import Node
from slackwater.retune.search import Climb, Range, Values

log = logging.getLogger("retune")


class PoolSearch:
    """The searches of one pool. `measure_s` is how long each try is measured."""

    def __init__(self, knowledge: Knowledge, best_values: BestValues, measure_s: float) -> None:
        self._knowledge = knowledge
        self._best_values = best_values
        self._measure_s = measure_s
        self._quiet_since_s = 0.0
        """Since when no node has been searching or changing its values: nothing that we do moves the load."""
        self._room: bool | None = None
        self._room_since_s = 0.0
        self.active_node = ""
        """The node that is measured; it must keep its baseline weight, or the tries cannot be compared."""

    def step(self, nodes: Iterable[Node], now_s: float, busy: Callable[[Node], bool], room: bool) -> None:
        """Measures the values in force and chooses what is tried next.

        `busy`: its values are being changed, or are to be. `room`: the rest of the pool can carry its load.
        """
        nodes, self.active_node = list(nodes), ""
        if room != self._room:
            self._room, self._room_since_s = room, now_s
        for node in nodes:
            if node.searching and not busy(node):
                self._go_on(node, now_s)
            elif node.stage.entered and node.tried is None:
                self._take_up(node, now_s)
        if any(node.searching or busy(node) for node in nodes):
            self._quiet_since_s = now_s
            self.active_node = next((node.name for node in nodes if node.searching), "")
            return
        if room or now_s - self._room_since_s < self._measure_s:
            return
        for node in nodes:
            if node.stage.entered and node.climb is None and (ranges := node.ranges(self._knowledge, now_s)):
                self.active_node = node.name
                self._begin(node, ranges, now_s)
                return

    def left(self, node: Node) -> None:
        """The node's episode is over: what a search has found by then is not lost."""
        if node.searching and node.climb is not None and node.climb.improved:
            self._remember(node, node.climb.best_values)

    def _take_up(self, node: Node, now_s: float) -> None:
        """What is known helps at once; it is measured when the node's turn comes."""
        if ranges := node.ranges(self._knowledge, now_s):
            node.searched_at = node.stage.severity
            node.tried = self._remembered(node, ranges) or self._known(node, ranges, now_s)
            node.search_status = "what is known, not measured yet"

    def _begin(self, node: Node, ranges: Mapping[str, Range], now_s: float) -> None:
        """The values that are in force are measured first, while no other node changes."""
        node.searched_at = node.stage.severity
        if (known := self._remembered(node, ranges)) is not None and node.tried != known:
            node.tried = known  # found by another one meanwhile
            return
        begun_s = (self._quiet_since_s, node.full_weight_since_s or now_s, node.stage.since_s or now_s)
        if now_s - max(begun_s) < self._measure_s or (cost_ms := node.cost_ms(max(begun_s))) is None:
            return
        node.climb = search.begin(ranges, cost_ms, node.tried)
        log.info("%s: search begins with %s: a p95 of %.1f ms", node.name, words(node.climb.best_values), cost_ms)
        self._try_next(node, node.climb)

    def _go_on(self, node: Node, now_s: float) -> None:
        assert node.climb is not None
        if node.climb.ranges.keys() & node.left_alone.keys():
            self._end(node, node.climb, "a knob is left alone from here on")
            return
        if node.tried is None or node.settled_s is None or node.full_weight_since_s is None:
            return
        since_s = max(node.settled_s, node.full_weight_since_s)
        if now_s - since_s < self._measure_s or (cost_ms := node.cost_ms(since_s)) is None:
            return
        climb = node.climb = search.record(node.climb, node.tried, cost_ms)
        log.info("%s: %s came to a p95 of %.1f ms", node.name, words(node.tried), cost_ms)
        if climb.tries == 1 and climb.improved and self._remembered(node, climb.ranges) == climb.best_values:
            self._end(node, climb, "what was best before is best again")
            return
        self._try_next(node, climb)

    def _try_next(self, node: Node, climb: Climb) -> None:
        tried = search.next_try(climb)
        if tried is None:
            found = climb.improved
            self._end(node, climb, "the best that was found" if found else "nothing was better than without us")
            self._remember(node, climb.best_values)
            return
        node.tried, node.settled_s = tried, None
        node.search_status = f"try {climb.tries + 1} of a search; p95 so far: {measured(climb)}"

    def _end(self, node: Node, climb: Climb, why: str) -> None:
        node.tried, node.search_over, node.announce_search_end = climb.best_values, True, True
        tries = f"{climb.tries} {'try' if climb.tries == 1 else 'tries'}"
        node.search_status = f"search over after {tries}: {words(climb.best_values)}, {why}; p95: {measured(climb)}"
        log.info("%s: %s", node.name, node.search_status)

    # --- what is known before

    def _remembered(self, node: Node, ranges: Mapping[str, Range]) -> dict[str, int] | None:
        """What an earlier search found for such a node; that it found nothing is no knowledge."""
        known = self._best_values.get(_kind(node), node.searched_at)
        if known is None:
            return None
        start = {name: one.baseline for name, one in ranges.items()}
        values = {name: known.get(name, at) for name, at in start.items()}
        return None if values == start else values

    def _remember(self, node: Node, values: dict[str, int]) -> None:
        self._best_values.put(_kind(node), node.searched_at, values)

    def _known(self, node: Node, ranges: Mapping[str, Range], now_s: float) -> dict[str, int]:
        """The values of the knowledge base."""
        usable = node.usable(now_s)
        known = {
            name: value_for(self._knowledge[name], usable[name], node.searched_at)
            for name in ranges.keys() & usable.keys()
        }
        return {name: value for name, value in known.items() if isinstance(value, int)}


def _kind(node: Node) -> str:
    return node.knobs.kind if node.knobs else ""


def words(values: Values) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def measured(climb: Climb) -> str:
    """All that was measured, in order."""
    return ", ".join(f"{words(climb.values(point))} {cost:.0f} ms" for point, cost in climb.costs.items())
