"""What must hold whatever is injected; each is one class in one table, judged from looks alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from tests.chaos.look import Failed, Look, Move, Recorded, Usage
from tests.chaos.schedule import Injection

BASE_WEIGHT = 100
LEASE_S = 3.0
"""`lbengine.lease_s`, its default."""
HUNG_FOR_S = 5.0
"""Within this time after the lease the baseline weights are back, also when lbengine hangs."""
SLACK_S = 4.0
"""The lab's machine is shared by all of its hosts: what should happen at once may take this long."""
ORDER_SLACK_S = 25.0
"""A wsengine that was down at the end of a lease comes back, waits for its reload interval, and puts the knob back."""
MIB = 1024 * 1024


class Excuses(Protocol):
    """What the faults that are at work explain by themselves."""

    def requests(self, kind: str) -> bool:
        """Whether requests fail by this fault without Slackwater."""

    def balancer(self, kind: str) -> bool:
        """Whether HAProxy does not answer, or forgets weights, by this fault."""

    def journal(self, kind: str) -> bool:
        """Whether nothing can be written down while it is at work."""

    def web_server(self, kind: str) -> bool:
        """Whether a host or its wsengine cannot do anything."""


class Invariant(ABC):
    """Judges look after look; gives what is broken, in words, or None."""

    name: ClassVar[str]

    @abstractmethod
    def judge(self, look: Look) -> str | None: ...


def lowered(look: Look) -> dict[str, int]:
    """The weights that are not at the baseline, without servers that are drained for a reload."""
    return {
        name: weight
        for name, weight in (look.weights or {}).items()
        if weight != BASE_WEIGHT and look.at_s > look.drained_until_s.get(name, 0.0) + SLACK_S
    }


def _one_of(active: Sequence[Injection], excused: object) -> bool:
    return any(callable(excused) and excused(injection.kind) for injection in active)


class RequestsAnswered(Invariant):
    """No request fails because of us: those that fail while HAProxy or a web server was hurt are theirs."""

    name = "requests"

    def __init__(self, excuses: Excuses) -> None:
        self._excuses = excuses
        self._past: deque[Injection] = deque(maxlen=50)

    def judge(self, look: Look) -> str | None:
        for injection in look.active:
            if injection not in self._past and self._excuses.requests(injection.kind):
                self._past.append(injection)
        for failed in look.failed:
            if not any(self._explains(injection, failed) for injection in self._past):
                return f"{failed.count} requests of {failed.begin_s:.0f} to {failed.end_s:.0f} s failed: {failed.how}"
        return None

    @staticmethod
    def _explains(injection: Injection, failed: Failed) -> bool:
        # A request may wait for 30 s before it fails.
        return injection.at_s <= failed.end_s and failed.begin_s <= injection.end_s + 30.0


class WeightsInBounds(Invariant):
    """Every weight is between 0 and the baseline, and never are all 0."""

    name = "bounds"

    def judge(self, look: Look) -> str | None:
        if not look.weights:
            return None
        outside = {name: weight for name, weight in look.weights.items() if not 0 <= weight <= BASE_WEIGHT}
        if outside:
            return f"weights outside 0 to {BASE_WEIGHT}: {_pairs(outside)}"
        if not any(look.weights.values()):
            return "all weights are 0"
        return None


class BaselineWithoutDecisions(Invariant):
    """Weights are at the baseline within the lease when nobody decides: no Verdicts, or no lbengine.

    On a full disk nats-server's store hangs, and lbengine's connection with it, until `serve` has noticed: that no
    Cycle is heard then does not show that nobody decides.
    """

    name = "baseline"
    limit_s = LEASE_S + HUNG_FOR_S + SLACK_S

    def __init__(self, excuses: Excuses) -> None:
        self._excuses = excuses
        self._away_s = 0.0
        self._mute_s = 0.0

    def judge(self, look: Look) -> str | None:
        if look.weights is None or _one_of(look.active, self._excuses.balancer):
            self._away_s = look.at_s
            return None
        if not (below := lowered(look)):
            return None
        if _one_of(look.active, self._excuses.journal):
            self._mute_s = look.at_s
        for who, heard_s in (("Verdict", look.verdict_s or 0.0), ("Cycle", max(look.cycle_s or 0.0, self._mute_s))):
            silent_s = look.at_s - max(heard_s, self._away_s)
            if silent_s > self.limit_s:
                return f"{_pairs(below)} although no {who} was heard for {silent_s:.1f} s (limit {self.limit_s:g} s)"
        return None


class KnobsHaveLeases(Invariant):
    """No knob stays set without a lease."""

    name = "knobs"

    def __init__(self, excuses: Excuses) -> None:
        self._excuses = excuses
        self._could_s: dict[str, float] = {}

    def judge(self, look: Look) -> str | None:
        hurt = {injection.target for injection in look.active if self._excuses.web_server(injection.kind)}
        for host in look.knobs_set:
            if any(target.endswith(host) for target in hurt):
                self._could_s[host] = look.at_s
            until_s = max(look.leases_until_s.get(host, 0.0), self._could_s.get(host, 0.0))
            if look.at_s > until_s + ORDER_SLACK_S:
                return f"{host} has a knob set {look.at_s - until_s:.0f} s after the last Order's lease"
        return None


MOST: Mapping[str, Usage] = {
    "monitor": Usage(128 * MIB, 640, 32),
    "wsengine": Usage(256 * MIB, 256, 128),
    "nats-server": Usage(512 * MIB, 512, 128),
    "controller": Usage(1024 * MIB, 256, 128),
}
"""As the packages' units limit them. The monitor keeps at most 512 threads' files open (`monitor/src/threads.rs`).
`controller` is each process of it."""


class UsageBounded(Invariant):
    """Memory, descriptors, threads and the journal's size stay bounded."""

    name = "usage"

    def __init__(self, journal_most_bytes: int) -> None:
        self._journal_most_bytes = journal_most_bytes

    def judge(self, look: Look) -> str | None:
        for name, used in look.usage.items():
            most = MOST[next((part for part in MOST if part in name), "controller")]
            for resource in ("rss_bytes", "descriptors", "threads"):
                if getattr(used, resource) > getattr(most, resource):
                    return f"{name}: {resource} {getattr(used, resource)}, most {getattr(most, resource)}"
        if look.journal_bytes > self._journal_most_bytes:
            return f"the journal has {look.journal_bytes} bytes, most {self._journal_most_bytes}"
        return None


class MovesRecorded(Invariant):
    """Every weight that moved has its Change with the right author, soon before or soon after."""

    name = "changes"
    before_s = 10.0
    after_s = 20.0

    def __init__(self, excuses: Excuses, authors: frozenset[str]) -> None:
        """`authors` are those who may move weights."""
        self._excuses = excuses
        self._authors = authors
        self._last: Mapping[str, int] | None = None
        self._waiting: list[Move] = []
        self._recorded: deque[Recorded] = deque(maxlen=5000)
        self._no_journal_s = -1e9

    def judge(self, look: Look) -> str | None:
        self._recorded.extend(look.recorded)
        if _one_of(look.active, self._excuses.journal):
            self._no_journal_s = look.at_s
        self._notice(look)
        overdue = [move for move in self._waiting if look.at_s - move.at_s > self.after_s]
        self._waiting = [move for move in self._waiting if move not in overdue]
        for move in overdue:
            fitting = [change for change in self._recorded if self._fits(change, move)]
            if any(change.by in self._authors for change in fitting):
                continue
            if fitting:
                return f"{move.server} moved {move.before} -> {move.after}; its only Change is by {fitting[-1].by!r}"
            if look.at_s - self._no_journal_s > self.after_s:
                return f"{move.server} moved {move.before} -> {move.after} at {move.at_s:.1f} s without a Change"
        return None

    def _notice(self, look: Look) -> None:
        if look.weights is None:
            return
        forgotten = _one_of(look.active, self._excuses.balancer)
        for server, after in look.weights.items():
            before = (self._last or {}).get(server, after)
            if before != after and not (forgotten and after == BASE_WEIGHT):
                self._waiting.append(Move(look.at_s, server, before, after))
        self._last = look.weights

    def _fits(self, change: Recorded, move: Move) -> bool:
        within = move.at_s - self.before_s <= change.at_s <= move.at_s + self.after_s
        return within and change.server == move.server and change.after == move.after


class ComesRight(Invariant):
    """At the end of a time without faults every node is judged and every weight is at the baseline.

    A server that is drained for a reload may take longer: its wsengine's answer is waited for, and may never come.
    """

    name = "recovery"

    def __init__(self, calm: Sequence[tuple[float, float]], nodes: frozenset[str]) -> None:
        self._calm = deque(calm)
        self._nodes = nodes
        self._right = False

    def judge(self, look: Look) -> str | None:
        if not self._calm or look.at_s < self._calm[0][0]:
            return None
        begin_s, end_s = self._calm[0]
        at_baseline = bool(look.weights) and not lowered(look)
        self._right = self._right or (at_baseline and look.judged >= self._nodes)
        if look.at_s < end_s:
            return None
        self._calm.popleft()
        right, self._right = self._right, False
        if right:
            return None
        lacks = ", ".join(sorted(self._nodes - look.judged)) or "none"
        return (
            f"{end_s - begin_s:g} s without faults, and still weights {_pairs(look.weights or {})}, not judged: {lacks}"
        )


def invariants(
    excuses: Excuses,
    journal_most_bytes: int,
    calm: Sequence[tuple[float, float]],
    nodes: frozenset[str],
    authors: frozenset[str],
) -> list[Invariant]:
    """All of them, fresh."""
    return [
        RequestsAnswered(excuses),
        WeightsInBounds(),
        BaselineWithoutDecisions(excuses),
        KnobsHaveLeases(excuses),
        UsageBounded(journal_most_bytes),
        MovesRecorded(excuses, authors),
        ComesRight(calm, nodes),
    ]


def _pairs(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in sorted(weights.items()))
