"""The mechanisms of the decision, and how each is switched off: one line in a table each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.lbengine.decision import split
from slackwater_lab.ablate import instead
from slackwater_lab.ablate.seams import Seam, as_it_came

EVERYTHING = "everything"
BALANCES = {"leastconn": "leastconn", "random": "random2", "roundrobin": "roundrobin"}
"""HAProxy's word -> the simulator's."""
CONCURRENCY = frozenset({"leastconn"})
DECISION = "slackwater.lbengine.decision."


@dataclass(frozen=True)
class Mechanism:
    """One row: `off` says in words what is off, `seams` how."""

    name: str
    off: str
    seams: tuple[Seam, ...]
    balances: frozenset[str] = frozenset(BALANCES)
    """Under the others it decides nothing."""
    goes: tuple[str, ...] = ()
    """Modules and functions that nothing else needs."""
    guards: str = ""
    """Its purpose where drawn scenarios cannot show it."""


DECIDE, SPLIT = f"{DECISION}decide:", f"{DECISION}split:"
_BELIEF = as_it_came(f"{DECISION}belief:believed", "load")
_ALIKE = as_it_came(f"{DECISION}alike:weighed", "verdicts")
_GIVEN_BACK = Seam(f"{DECISION}room:Room.give_back", instead.nothing_given_back)
_SETTLE = Seam(f"{DECISION}position:settle", instead.down_at_once)
_TRIED = Seam(f"{DECISION}position:tried", instead.never_tried)
_LIES = "a node that lies, or is wrong for long"
_SILENT = "an episode that nothing else would end"

MECHANISMS: dict[str, Mechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        Mechanism(
            "given-back",
            "a lowered server gets nothing back when the others get too full",
            (_GIVEN_BACK,),
            goes=(f"{DECISION}room:Room.give_back", f"{DECISION}position:given_back"),
            guards="load that rises, or a server that fails, in an episode; baselines of 1 to 10",
        ),
        Mechanism(
            "settle",
            "small falls are made at once",
            (_SETTLE,),
            goes=(f"{DECISION}position:settle",),
            guards="servers that answer each other's moves",
        ),
        Mechanism(
            "no-rise",
            "within an episode a weight follows the split up too",
            (Seam(f"{DECISION}position:settle", instead.up_and_down),),
        ),
        Mechanism(
            "tried",
            "a server that shows nothing is not tried with requests",
            (_TRIED,),
            goes=(f"{DECISION}position:tried", f"{DECIDE}_requests"),
            guards=_SILENT,
        ),
        Mechanism(
            "caution",
            "the law takes capacities as they are, and not lower by their doubt",
            (Seam(f"{DECISION}loads:CAUTION", 0.0),),
        ),
        Mechanism(
            "in-flight",
            "weights of `leastconn` are shares of the requests, and not of those in flight",
            (Seam(f"{SPLIT}concurrency_weights", instead.by_requests),),
            CONCURRENCY,
            (f"{SPLIT}concurrency_weights",),
        ),
        Mechanism(
            "law",
            "no law: a slow server keeps what is left of its capacity",
            (Seam(f"{SPLIT}_by_law", instead.what_is_left),),
            goes=("slackwater.lbengine.laws.laws",),
        ),
        Mechanism(
            "drain",
            "no law: slow servers are drained, as many as the guard allows",
            (Seam(f"{SPLIT}_by_law", instead.drained),),
            goes=("slackwater.lbengine.laws.laws",),
        ),
        Mechanism(
            "law-ice",
            "the law is `ice`, and not `optimal`",
            (Seam(f"{SPLIT}LAWS", {**split.LAWS, "optimal": split.LAWS["ice"]}),),
        ),
        Mechanism(
            "alike",
            "that all are slow alike is believed, whatever the balancer counts",
            (_ALIKE,),
            goes=("slackwater.lbengine.decision.alike", "slackwater.lbengine.decision.calm"),
            guards=_LIES,
        ),
        Mechanism(
            "belief",
            "the balancer's own counts change nothing of what is believed of a server",
            (_BELIEF,),
            goes=("slackwater.lbengine.decision.belief", f"{DECISION}calm:Calm.speed"),
            guards=_LIES,
        ),
        Mechanism(
            "calm-speed",
            "the speed of calm servers is not learnt: each works at its capacity",
            (Seam(f"{DECISION}calm:Calm.speed", instead.at_its_capacity),),
            goes=(f"{DECISION}calm:Calm.speed",),
        ),
        Mechanism(
            "bare",
            "the law alone, without belief, alike, given-back, settle and tried",
            (_BELIEF, _ALIKE, _GIVEN_BACK, _SETTLE, _TRIED),
        ),
    )
}


def named(names: Sequence[str], balance: str) -> list[Mechanism]:
    """The mechanisms with these names (none: all) that decide something under this balance, in the table's order."""
    return [
        mechanism
        for mechanism in MECHANISMS.values()
        if (not names or mechanism.name in names) and balance in mechanism.balances
    ]
