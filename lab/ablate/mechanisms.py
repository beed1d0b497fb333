"""The mechanisms of the decision, and how each is switched off: one line in a table each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lab.ablate import instead
from lab.ablate.seams import Seam, as_it_came
from lbengine.decision import law_weights, prediction

EVERYTHING = "everything"
BALANCES = {"leastconn": "leastconn", "random": "random2", "roundrobin": "roundrobin"}
"""HAProxy's word -> the simulator's."""
CONCURRENCY, DRAWS = frozenset({"leastconn"}), frozenset({"random"})
DECISION = "lbengine.decision."


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
    """What it is there for that drawn scenarios do not have."""


def _other_law(name: str) -> Seam:
    return Seam("lbengine.decision.law_weights:LAWS", {**law_weights.LAWS, "optimal": law_weights.LAWS[name]})


_CHOICE = Seam("lbengine.decision.decide:choose", instead.law_alone)
_SPEED = Seam("lbengine.decision.calm:Calm.speed", property(lambda _: 1.0))
_COUNTS = as_it_came("lbengine.decision.queueing:believed", "load")
_SUSPECTED = as_it_came("lbengine.decision.queueing:_suspected", "load")
_CALLED_CALM = as_it_came("lbengine.decision.queueing:_called_calm", "load")
_ALIKE = as_it_came("lbengine.decision.alike:weighed", "verdicts")
_HEADROOM = Seam("lbengine.decision.decide:_make_room", instead.nothing_given_back)
_RESIDUAL = Seam("lbengine.decision.residual:give_back", instead.not_given_back)
_WATCHED = as_it_came("lbengine.decision.position:watched", "position")
_TRIED = Seam("lbengine.decision.position:tried", instead.never_tried)
_SETTLE = Seam("lbengine.decision.position:settle", instead.down_at_once)
_DRAINED = Seam("lbengine.decision.choice:_drained", instead.baseline)
_HALFWAY = Seam("lbengine.decision.choice:_halfway", instead.as_the_law)
_SPARED = Seam("lbengine.decision.choice:wanted_weights", instead.law_spares)
_CHOICE_GOES = ("lbengine.decision.choice", "lbengine.decision.prediction", "lbengine.decision.two_choices")
_COUNTS_GO = ("lbengine.decision.queueing",)
_LIES = "a node that lies, or is wrong for long"
_SILENT = "an episode that nothing else would end"

MECHANISMS: dict[str, Mechanism] = {
    one.name: one
    for one in (
        Mechanism(
            "choice",
            "no choice among predicted splits: the law's split is set",
            (_CHOICE,),
            goes=_CHOICE_GOES,
            guards="no worse than the baseline weights with a confidence of 90%",
        ),
        Mechanism(
            "two-choices",
            "`random(2)` is predicted as one draw by weight",
            (Seam("lbengine.decision.choice:_models", instead.one_draw),),
            DRAWS,
            ("lbengine.decision.two_choices",),
        ),
        Mechanism(
            "one-queue",
            "`leastconn` is predicted as queues of their own alone",
            (Seam("lbengine.decision.choice:_models", instead.only(prediction.own_queues)),),
            CONCURRENCY,
            (f"{DECISION}prediction:one_queue", f"{DECISION}prediction:_limited", f"{DECISION}prediction:_few"),
        ),
        Mechanism(
            "own-queues",
            "`leastconn` is predicted as one queue alone",
            (Seam("lbengine.decision.choice:_models", instead.only(prediction.one_queue)),),
            CONCURRENCY,
            (f"{DECISION}prediction:own_queues",),
        ),
        Mechanism(
            "calm-speed",
            "the speed of calm servers is not learnt: each works at its capacity",
            (_SPEED,),
            goes=(f"{DECISION}calm:Calm.speed", f"{DECISION}choice:held_in_calm"),
        ),
        Mechanism(
            "counts",
            "the balancer's own counts change nothing of what is believed of a server",
            (_COUNTS,),
            goes=_COUNTS_GO,
            guards=_LIES,
        ),
        Mechanism(
            "counts-of-slow",
            "reports of a neighbour are not weighed against requests in flight",
            (_SUSPECTED,),
            goes=(f"{DECISION}queueing:_suspected", f"{DECISION}queueing:_prior", f"{DECISION}queueing:_grid"),
            guards=_LIES,
        ),
        Mechanism(
            "counts-of-calm",
            "a server called calm that holds very many requests does not count as full",
            (_CALLED_CALM,),
            goes=(f"{DECISION}queueing:_called_calm",),
        ),
        Mechanism(
            "recourse",
            "a possible pool in which a split fills servers counts without a bound",
            (Seam("lbengine.decision.choice:RECOURSE", math.inf),),
        ),
        Mechanism(
            "confidence",
            "the split with the fewest requests on average wins, however unsure",
            (Seam("lbengine.decision.choice:CONFIDENCE", 0.0),),
            guards="no worse than the baseline weights with a confidence of 90%",
        ),
        Mechanism(
            "kept",
            "what is set has no advantage over a better split",
            (Seam("lbengine.decision.choice:KEPT", 2.0),),
        ),
        Mechanism(
            "uncertainty",
            "one pool is predicted, the likely one, and not 20 possible ones",
            (
                Seam("lbengine.decision.choice:_draw", instead.likely),
                Seam("lbengine.decision.choice:_normal", instead.certain),
            ),
            goes=(f"{DECISION}choice:_draw", f"{DECISION}choice:_normal", f"{DECISION}choice:_no_worse"),
        ),
        Mechanism(
            "doubt",
            "a server that is called calm has no neighbour in any possible pool",
            (Seam("lbengine.decision.choice:UNLIKELY", 2.0),),
        ),
        Mechanism("halfway", "no candidate half of the way to the law's split", (_HALFWAY,)),
        Mechanism("drains", "no candidate that drains one, two or three servers", (_DRAINED,)),
        Mechanism("unspared", "no candidate that gives load to slow servers that keep their weight", (_SPARED,)),
        Mechanism(
            "one-candidate",
            "the law's split is the only candidate, at three cautions",
            (_HALFWAY, _DRAINED, _SPARED),
            goes=(f"{DECISION}choice:_halfway", f"{DECISION}choice:_drained"),
        ),
        Mechanism(
            "drain-or-leave",
            "the only candidates are drains",
            (Seam("lbengine.decision.choice:wanted_weights", instead.drain), _HALFWAY),
            goes=("lbengine.laws.laws", "lbengine.laws.tail", "lbengine.laws.percentile", "lbengine.laws.rounding"),
        ),
        Mechanism(
            "headroom",
            "a lowered server gets nothing back at once when the others get too full",
            (_HEADROOM,),
            goes=(f"{DECISION}decide:_make_room", f"{DECISION}position:given_back"),
            guards="load that rises, or a server that fails, in an episode",
        ),
        Mechanism(
            "residual",
            "the law's split is not raised where the others would be too full",
            (_RESIDUAL,),
            goes=(f"{DECISION}residual:give_back",),
        ),
        Mechanism("headroom-residual", "neither of the two", (_HEADROOM, _RESIDUAL)),
        Mechanism(
            "settle",
            "small falls are made at once",
            (_SETTLE,),
            goes=(f"{DECISION}position:settle",),
            guards="servers that answer each other's moves",
        ),
        Mechanism(
            "no-rise",
            "within an episode a weight follows the choice up too",
            (Seam("lbengine.decision.position:settle", instead.up_and_down),),
        ),
        Mechanism(
            "watched",
            "a drained server that shows nothing gets no request a second",
            (_WATCHED,),
            goes=(f"{DECISION}position:watched", f"{DECISION}decide:_Turn._watched"),
            guards=_SILENT,
        ),
        Mechanism(
            "tried",
            "a server that shows nothing for 6 s is not tried with its baseline weight",
            (_TRIED,),
            goes=(f"{DECISION}position:tried",),
            guards=_SILENT,
        ),
        Mechanism("watched-tried", "neither of the two", (_WATCHED, _TRIED), guards=_SILENT),
        Mechanism(
            "caution",
            "the law takes capacities as they are, and not a standard error low",
            (Seam("lbengine.decision.law_weights:CAUTION", 0.0),),
        ),
        Mechanism(
            "in-flight",
            "weights of `leastconn` are shares of the requests, and not of those in flight",
            (Seam("lbengine.decision.law_weights:_by_concurrency", instead.by_requests),),
            CONCURRENCY,
            (f"{DECISION}law_weights:_by_concurrency",),
        ),
        Mechanism(
            "rounding",
            "weights are rounded one by one",
            (Seam("lbengine.decision.law_weights:closest", instead.one_by_one),),
            goes=("lbengine.laws.rounding",),
        ),
        Mechanism(
            "law",
            "no law: a slow server keeps what is left of its capacity, halves of that and drains are candidates",
            (Seam("lbengine.decision.choice:wanted_weights", instead.severity_alone),),
            goes=("lbengine.laws.laws", "lbengine.laws.tail", "lbengine.laws.percentile", "lbengine.laws.rounding"),
        ),
        Mechanism("law-equalise", "the law is `equalise`, and not `optimal`", (_other_law("equalise"),)),
        Mechanism("law-tail", "the law is `tail`", (_other_law("tail"),)),
        Mechanism("law-ice", "the law is `ice`", (_other_law("ice"),)),
        Mechanism(
            "alike",
            "that all are slow alike is believed, whatever the balancer counts",
            (_ALIKE,),
            goes=("lbengine.decision.alike",),
            guards=_LIES,
        ),
        Mechanism(
            "choice-counts",
            "the law alone, without the balancer's counts",
            (_CHOICE, _COUNTS),
            goes=_CHOICE_GOES + _COUNTS_GO,
        ),
        Mechanism(
            "choice-calm-speed",
            "the law alone, without the speed of calm servers",
            (_CHOICE, _SPEED),
            goes=(*_CHOICE_GOES, f"{DECISION}calm:Calm.speed"),
        ),
        Mechanism(
            "choice-counts-calm-speed",
            "the law alone, without either",
            (_CHOICE, _COUNTS, _SPEED),
            goes=(*_CHOICE_GOES, *_COUNTS_GO, f"{DECISION}calm:Calm.speed"),
        ),
        Mechanism(
            "bare",
            "the law alone, without counts, calm speed, alike, headroom, settle, watched and tried",
            (_CHOICE, _COUNTS, _SPEED, _ALIKE, _HEADROOM, _SETTLE, _WATCHED, _TRIED),
        ),
    )
}


def named(names: Sequence[str], balance: str) -> list[Mechanism]:
    """Those of these names, or all without any, that decide something under this balance; in the table's order."""
    return [one for one in MECHANISMS.values() if (not names or one.name in names) and balance in one.balances]
