"""Puts the causes of Verdicts in words: the one place where the detector makes sentences, after all numbers are known.

Nearly all rows of a tick are calm, and are described together. Rows in which something happens are described one by
one.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import msgspec
import numpy as np

from slackwater.core.messages import State, Verdict
from slackwater.detector.classify.episodes import (
    ALL_SLOW,
    CALM,
    INTERFERENCE,
    OVERLOAD,
    SIGNS,
    TickEffect,
    TickStates,
    word_of,
)
from slackwater.detector.classify.failures import Failing
from slackwater.detector.classify.own_limit import Limits
from slackwater.detector.classify.pool_correlation import PoolCorrelation
from slackwater.detector.classify.rules import SIGNAL_WORDS, Outcome
from slackwater.detector.classify.tree import FeatureLimits, Tree
from slackwater.detector.estimator import MAX_SEVERITY
from slackwater.detector.features.calm_rate import AT_HIGHEST
from slackwater.detector.features.columns import Ints
from slackwater.detector.features.features import CAUSE, FEATURES, FELT, Frame
from slackwater.detector.features.signals import SIGNALS

NOTHING = "no signal is beyond what is usual"
NOT_VISIBLE = "the cause is not visible from the balancer"
NOT_IN_IT = "no cause is visible in the machine yet: something outside of it, or a program of its own"
RETURNED = "it came back after a time without answers, so its response times say nothing yet"
TAIL_ALONE = "only a few requests are slower than in calm: a client or a route may be slow, and not the server"
UNANSWERED = "nothing was answered for {:.0f} s, while requests waited or were refused"
OWN_LIMIT = "it gets {:.2g} CPUs and no more while work waits, whoever else is there: a limit of its own"
STEADY = (
    "its CPU time is steady at {:.2g} CPUs: a limit of its own (a larger machine, or credits, would help), or a steady"
    " neighbour"
)
OF_A_LIMIT: frozenset[State] = frozenset(("interference", "slow", "overload", "all_slow"))
LIMIT_ERROR = 0.1
"""Standard error of what a server answers at its limit, as a share."""
OWN, LENT = "its calm baseline", "its peers' calm baseline"
ONLY_REQUESTS = "only requests show whether it still does"
SIGN_WORDS = (*SIGNS, *SIGNAL_WORDS)
ALONE = 1.5
"""A value of so many times its peers' is not theirs too."""
SHOWN_SHARE = 0.05
"""The least share of the CPU at which other programs are mentioned."""


class Explainer:
    """Explains the rules' outcomes of one pool."""

    def __init__(self, trees: tuple[Tree, ...]) -> None:
        """`trees`: by kind of node, as in `Model`."""
        self._trees = trees
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> the reasons of the last tick that showed it."""

    def forget(self, slot: int) -> None:
        """Empties a slot, for another node."""
        self._last_shown.pop(slot, None)

    def reasons(self, frame: Frame, outcome: Outcome) -> list[list[str]]:
        """(M,) the reasons for each row's state."""
        looks, steps = outcome.pool.looks, outcome.steps
        reasons: list[list[str]] = [[] for _ in looks]
        for number, tree in enumerate(self._trees):
            rows = np.flatnonzero(outcome.answers.kind == number)
            for row, lines in zip(rows.tolist(), _paths(tree, frame, rows, outcome.answers.leaf), strict=True):
                reasons[row] = lines
        for words, excused in ((RETURNED, frame.returned), (TAIL_ALONE, frame.tail_alone)):
            for row in np.flatnonzero(excused & frame.users_wait & (steps.state == CALM)).tolist():
                reasons[row] = [*reasons[row], words]
        eventful = (looks != CALM) | (steps.state != CALM) | (steps.event != TickEffect.QUIET)
        for row in eventful.nonzero()[0].tolist():
            reasons[row] = self._eventful(frame, outcome, row, reasons[row])
        return reasons

    def _eventful(self, frame: Frame, outcome: Outcome, row: int, path: list[str]) -> list[str]:
        """The reasons for the state of a row in which something happens: the first for people, then the numbers.
        `path`: its path through the tree."""
        slot, state, looks = int(frame.slots[row]), int(outcome.steps.state[row]), int(outcome.pool.looks[row])
        if looks == OVERLOAD:
            path = [_own_load(frame, row)]
        elif looks == ALL_SLOW:
            path = [_shared_cause(outcome.pool, row), _describe(FELT, frame, np.array([row]))[0]]
        elif looks == INTERFERENCE and frame.unnamed[row]:
            waited_s = float(frame.unanswered_s[row])
            first = UNANSWERED.format(waited_s) if waited_s else plainly(FELT, frame, row)
            path = [first, *path, NOT_VISIBLE if frame.outside[row] else NOT_IN_IT]
        elif looks == INTERFERENCE:
            path = [plainly(CAUSE, frame, row), *path]
        reason = episode_reason(outcome.steps, row)
        if looks == state and int(outcome.steps.event[row]) in (TickEffect.BEGAN, TickEffect.GOES_ON):
            self._last_shown[slot] = path
            return [*path, reason]
        if state != CALM:  # the reason why it goes on comes first, since the evidence is old
            before = [f"before: {line}" for line in self._last_shown.get(slot, [])[:1]]
            return [reason, *proof_numbers(outcome.steps, row), *before]
        if looks != CALM:
            word = word_of(looks, bool(frame.unnamed[row]))
            return [*path, f"looks like {word}, but there is not enough evidence yet"]
        return [*path, reason] if reason else path


def with_failures(verdicts: list[Verdict], failing: Failing, *, worded: bool) -> list[Verdict]:
    """The Verdicts of a tick, with the state `errors` where a server is in an episode of it; what else is known of such
    a server stands behind it. The state after it begins at its end, however long it stood behind it. `worded`: with
    reasons."""
    for row in np.flatnonzero(~failing.on & (failing.since_unix_s > 0.0)).tolist():
        since_unix_s = max(verdicts[row].since_unix_s, float(failing.since_unix_s[row]))
        verdicts[row] = msgspec.structs.replace(verdicts[row], since_unix_s=since_unix_s)
    for row in np.flatnonzero(failing.on).tolist():
        share, peers = float(failing.recent[row]), float(failing.peers_recent[row])
        path = (
            [f"{share:.0%} of its last requests failed, and {peers:.0%} of its peers'", ONLY_REQUESTS] if worded else []
        )
        verdicts[row] = msgspec.structs.replace(
            verdicts[row],
            state="errors",
            since_unix_s=float(failing.since_unix_s[row]),
            severity=min(share, 1.0),
            path=path,
            resource=None,
            shown=bool(failing.probability[row] >= 0.5),
            probability=float(failing.probability[row]),
            calm_shows_within_s=None,
        )
    return verdicts


def with_limits(verdicts: list[Verdict], limits: Limits, *, worded: bool) -> list[Verdict]:
    """The Verdicts of a tick, with the levels of servers that are not calm. One that is slow by itself can answer what
    its level allows. It is `slow`, as beside no neighbour, where that is proven to be its own limit. `worded`: with
    reasons."""
    for row in np.flatnonzero(limits.shown).tolist():
        verdict = verdicts[row]
        if verdict.state not in OF_A_LIMIT:
            continue
        cores, rps = float(limits.cores[row]), float(limits.rps[row])
        own: dict[str, Any] = {"own_limit_cores": cores}
        if limits.proven[row]:
            own["resource"] = "own limit"
        if worded:
            own["path"] = [(OWN_LIMIT if limits.proven[row] else STEADY).format(cores), *verdict.path]
        if verdict.state in ("interference", "slow"):
            own["state"] = "slow" if limits.proven[row] else verdict.state
            if verdict.capacity_rps and rps > 0.0:
                calm_rps = verdict.capacity_rps / max(1.0 - verdict.severity, 0.02)
                own |= {
                    "capacity_rps": rps,
                    "capacity_stderr_rps": LIMIT_ERROR * rps,
                    "severity": min(max(1.0 - rps / calm_rps, 0.0), MAX_SEVERITY),
                }
        verdicts[row] = msgspec.structs.replace(verdict, **own)
    return verdicts


def silence(for_s: float) -> str:
    """Why a node's state is not known."""
    return f"no Sample for {for_s:.1f} s"


def episode_reason(steps: TickStates, row: int) -> str:
    """Why a row's episode begins, goes on or ends; empty where nothing happened."""
    event, amount, episode = int(steps.event[row]), float(steps.amount[row]), steps.episode[row]
    if event == TickEffect.BEGAN:
        return (
            f"an episode begins: the evidence for a neighbour is {amount:.1f}, and {steps.threshold[row]:.1f} is enough"
        )
    if event == TickEffect.GOES_ON:
        return f"episode {episode}, for {amount:.1f} s"
    if event == TickEffect.BLIND:
        return "the episode goes on: without requests no sign would show that it is over"
    if event == TickEffect.WAITS:
        return "it looks quiet, but not yet for long enough to be sure"
    if event == TickEffect.TIMED_OUT:
        return f"episode {episode} ended: {amount:.0f} s without requests, and only requests can tell"
    return f"episode {episode} ended: calm is proven after {amount:.1f} s" if event == TickEffect.ENDED else ""


def proof_numbers(steps: TickStates, row: int, sign_words: tuple[str, ...] = SIGN_WORDS) -> list[str]:
    """How much of the proof of calm there is, where it is waited for."""
    if int(steps.event[row]) != TickEffect.WAITS:
        return []
    proof = steps.proof
    share = min(0.99, proof.evidence[row] / proof.needed[row])
    sign, calm, beside = sign_words[proof.sign[row]], proof.calm_share[row], proof.beside_share[row]
    return [f"calm is {share:.0%} proven: by the share of {sign} ({beside:.0%} in this episode, {calm:.0%} in calm)"]


def _shared_cause(pool: PoolCorrelation, row: int) -> str:
    """Why a row looks `all_slow`."""
    if pool.alike[row]:
        alike = f"{pool.alike[row]} of {pool.others[row]} other servers"
        return f"{alike} lose as much of their CPU, so no neighbour is the cause"
    return f"{pool.slow} of {pool.pool} servers are slow together, so no neighbour is the cause"


def _own_load(frame: Frame, row: int) -> str:
    """Why a row looks `overload`."""
    demand, others = float(frame.demand[row]), float(frame.others[row])
    if frame.outside[row]:
        return f"its own load explains it: its rate is {demand / AT_HIGHEST:.1f}x the highest rate of its calm"
    cost = f"{demand:.0%}" if math.isfinite(demand) else "an unknown share"
    beside = f", its other programs take {others:.0%}" if others >= SHOWN_SHARE else ""
    return f"its own load explains it: its requests cost {cost} of its CPU when calm{beside}"


def _paths(tree: Tree, frame: Frame, rows: Ints, leaves: Ints) -> list[list[str]]:
    """The paths through the tree, with values, of some rows of the frame. `rows`: (K,); `leaves`: (M,)."""
    paths: list[list[str]] = [[] for _ in rows]
    for leaf in set(leaves[rows].tolist()):
        places = np.flatnonzero(leaves[rows] == leaf)
        tested = [(limits.feature, _limits(limits)) for limits in tree.tested[leaf]]
        # The cause is named beside what users feel.
        if FELT in dict(tested) and CAUSE not in dict(tested) and not frame.outside[rows[places[0]]]:
            tested.insert(0, (CAUSE, ""))
        lines = [_describe(feature, frame, rows[places], after) for feature, after in tested]
        for place, path in zip(places.tolist(), zip(*lines, strict=True), strict=False):
            paths[place] = list(path)
    return paths


@cache
def _limits(limits: FeatureLimits) -> str:
    above = [f"> {limits.above:.3g}"] if limits.above is not None else []
    up_to = [f"<= {limits.up_to:.3g}"] if limits.up_to is not None else []
    return f" ({limits.feature} {', '.join(above + up_to)})"


def _describe(feature: str, frame: Frame, rows: Ints, after: str = "") -> list[str]:
    """A feature's value in some rows (K,), each followed by `after`: `run delay per CPU second 21.4 is 14.2x its calm
    baseline and 8.1x its peers'`."""
    lines = [("it is not known what users feel" if feature == FELT else NOTHING) + after] * len(rows)
    columns = frame.columns_of(feature)[rows]
    known = ~np.isnan(frame.values[rows, columns])
    if feature != FELT:
        known &= frame.matrix[rows, FEATURES.index(feature)] > 0.0
    for column in set(columns[known].tolist()):
        places = np.flatnonzero(known & (columns == column))
        for place, line in zip(places.tolist(), describe_signal(column, frame, rows[places], after), strict=True):
            lines[place] = line
    return lines


def plainly(feature: str, frame: Frame, row: int) -> str:
    """A feature's value in a row for people: `its p95 is 38 ms, 19 times as long as usual, unlike on the other
    servers`."""
    column = int(frame.columns_of(feature)[row])
    signal, value = SIGNALS[column], float(frame.values[row, column])
    own, peers = float(frame.own[row, column]), float(frame.peers[row, column])
    times = peers if math.isnan(own) else own
    if math.isnan(value) or math.isnan(times) or not signal.plain:
        return _describe(feature, frame, np.array([row]))[0]
    lent = bool(frame.borrowed[row])
    usual = "as on the other servers" if math.isnan(own) else "as usual on the other servers" if lent else "as usual"
    text = signal.plain.format(times=f"{_rounded(times)} times", usual=usual, value=f"{value:.3g}{signal.unit}")
    return f"{text}, unlike on the other servers" if usual == "as usual" and peers >= ALONE else text


def _rounded(times: float) -> str:
    return f"{times:.0f}" if times >= 10 else f"{times:.2g}"


def describe_signal(column: int, frame: Frame, rows: Ints, after: str = "") -> list[str]:
    """A signal's value in some rows (K,), as `_describe`."""
    name, unit = SIGNALS[column].words, SIGNALS[column].unit
    values = frame.values[rows, column].tolist()
    own, peers = frame.own[rows, column].tolist(), frame.peers[rows, column].tolist()
    lent = frame.borrowed[rows].tolist()
    lines = []
    for value, over_own, over_peers, borrowed in zip(values, own, peers, lent, strict=True):
        # The usual case of `_times` is written out: a call for each node and tick would cost too much.
        line = f"{name} {value:.3g}{unit}"
        if over_own == over_own:
            line += f" is {f'{over_own:.2g}x' if over_own < 10 else _times(over_own)} {LENT if borrowed else OWN}"
        if over_peers == over_peers:
            ratio = f"{over_peers:.2g}x" if over_peers < 10 else _times(over_peers)
            line += f"{' and' if over_own == over_own else ' is'} {ratio} its peers'"
        lines.append(f"{line}{after}")
    return lines


def _times(value: float) -> str:
    """A ratio of at least 10: 14.2x, 120x."""
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x"
