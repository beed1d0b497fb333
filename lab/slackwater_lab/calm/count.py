"""Counts node-time that counts, and what began in it. Pure: who calls says what time it is and what was heard."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from slackwater.core.messages import State, Verdict
from slackwater.detector.train.scores import felt_in
from slackwater.detector.train.slow_alone import Felt, was_slow
from slackwater_lab.calm.data import NOTHING, Began
from slackwater_lab.calm.machine_load import SliceLoad

FRESH_S = 2.0
"""A node is judged while its last Verdict is younger than this; each node has at least one Verdict a second."""
QUIET: tuple[State, ...] = ("calm", "unknown")
MOST_FELT = 2000
"""Verdicts of a node whose response times are kept: a few minutes of a busy one."""


@dataclass(frozen=True)
class Change:
    """A state other than calm that began."""

    mono_s: float
    verdict: Verdict


class States:
    """Each node's state, Verdict by Verdict, by the receiver's clock: a node's own clock may be stepped."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, State]] = {}
        self.changes: list[Change] = []
        self._felt: dict[str, dict[str, deque[Felt]]] = defaultdict(
            lambda: defaultdict(partial(deque, maxlen=MOST_FELT))
        )
        """Pool -> node -> what its users felt, oldest first."""

    def hear(self, mono_s: float, verdict: Verdict) -> None:
        before = self._last.get(verdict.node)
        if verdict.state not in QUIET and before is not None and before[1] != verdict.state:
            self.changes.append(Change(mono_s, verdict))
        self._last[verdict.node] = (mono_s, verdict.state)
        if (felt := felt_in(verdict, mono_s)) is not None:
            self._felt[verdict.pool][verdict.node].append(felt)

    def was_slow(self, change: Change) -> bool:
        """Whether a server that was called `slow` was slow by itself, as far as was heard since."""
        verdict = change.verdict
        felt = {node: list(of_node) for node, of_node in list(self._felt[verdict.pool].items())}
        return verdict.state == "slow" and was_slow(verdict.node, change.mono_s, felt)

    def judged(self, mono_s: float) -> set[str]:
        """The nodes with a fresh Verdict that is not `unknown`."""
        return {
            node for node, (at_s, state) in list(self._last.items()) if state != "unknown" and mono_s - at_s <= FRESH_S
        }


@dataclass
class Slice:
    """Some seconds of the fleet, which count as a whole or not."""

    begin_s: float
    end_s: float
    load: SliceLoad
    node_s: Counter[str]
    counts: bool


@dataclass
class Tally:
    """A minute: its slices, and what began in them."""

    slices: list[Slice] = field(default_factory=list)
    unjudged_node_s: float = 0.0
    _node_s: Counter[str] = field(default_factory=Counter)
    _carried: bool = True
    """The machine carried the slice before."""

    def look(self, seconds: float, nodes: Sequence[str], judged: set[str], beside: Mapping[str, str]) -> None:
        """Counts seconds that have passed. `beside`: node -> kind of the disturbance that is done to it."""
        for node in nodes:
            if node in judged:
                self._node_s[beside.get(node, NOTHING)] += seconds  # type: ignore[assignment]
            else:
                self.unjudged_node_s += seconds

    def end_slice(self, begin_s: float, end_s: float, load: SliceLoad) -> None:
        self.slices.append(Slice(begin_s, end_s, load, self._node_s, load.carried and self._carried))
        self._node_s, self._carried = Counter(), load.carried

    def next_minute(self) -> Tally:
        """An empty one after this."""
        return Tally(_carried=self._carried)

    def node_s(self) -> dict[str, float]:
        """Kind of disturbance, or `nothing` -> seconds of nodes that count."""
        total_s: Counter[str] = Counter()
        for part in self.slices:
            if part.counts:
                total_s.update(part.node_s)
        return {kind: round(float(seconds), 1) for kind, seconds in sorted(total_s.items())}

    def overloaded_node_s(self) -> float:
        return round(float(sum(sum(part.node_s.values()) for part in self.slices if not part.counts)), 1)

    def began(
        self,
        changes: Sequence[Change],
        begin_s: float,
        beside: Callable[[str, float], str | None],
        slow: Callable[[Change], bool],
    ) -> list[Began]:
        """The states that began in the slices. `beside` gives the disturbance of a node at a time, `slow` whether a
        server was slow by itself (`States.was_slow`)."""
        states = []
        for change in changes:
            inside = next((part for part in self.slices if part.begin_s <= change.mono_s < part.end_s), None)
            if inside is not None:
                verdict = change.verdict
                states.append(
                    Began(
                        node=verdict.node,
                        state=verdict.state,
                        after_s=round(change.mono_s - begin_s, 2),
                        beside=beside(verdict.node, change.mono_s) or NOTHING,
                        counts=inside.counts,
                        severity=round(verdict.severity, 3),
                        why=verdict.path,
                        was_slow=slow(change),
                    )
                )
        return states
