"""The sentences of decisions: from a cause and its numbers to words for people. Nothing is decided here. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import DecisionCause, Verdict
from slackwater.lbengine.decision.evenness import Full
from slackwater.lbengine.decision.position import Stage
from slackwater.lbengine.decision.split import Share


@dataclass(frozen=True)
class Reason:
    """Why a server is to have its weight: a cause, with the numbers and the requests that led there."""

    cause: DecisionCause
    verdict: Verdict | None = None
    share: Share | None = None
    """What the split gives the server; None where it was not asked, or the server is alone."""
    others_filled: float | None = None
    """How full the fullest other server would be (1 is full), where that decided."""
    others_wait: bool = False
    """More requests wait at the others than the server would hold, and that decided."""
    panic: str = ""
    """Why no Verdict is believed."""
    fails: str = ""
    """Which server fails well above its peers."""
    request: str = ""
    """What a person or the second stage asked for: a pin, a drain, or a hold."""
    keeps: int = 0
    """The weight that it keeps although it is to get less, since the others had no room for its requests."""
    stage: Stage = "few"
    """Of its trial."""
    full: Full | None = None
    """The weight in calm that is not the baseline."""
    is_coarse: bool = False
    """The weight is too small for a warm-up."""
    limit: str = ""
    """Who asked for a lower `maxconn`, and why; empty where that is set already."""


STAYS = "its weight stays, as `causes_off` names this cause"
STILL = {"slow": "it is still slow", "errors": "it still fails"}
"""What a trial is to show, by the state. In `interference` it is the neighbour."""
LOWEST = "its weight goes no lower"
JUDGED = "its few requests are judged now"
TRIED = "its few requests do not show that it is well"
Words = tuple[str, tuple[str, ...]]
"""A sentence, and the same in short phrases, the most important first."""


def words(reason: Reason, pool: PoolSettings, settings: LbengineSettings) -> Words:
    """The reason in words."""
    why, short = _by_cause(reason, pool, settings)
    return (f"{why}; {reason.limit}" if reason.limit else why), short


def _by_cause(reason: Reason, pool: PoolSettings, settings: LbengineSettings) -> Words:
    match reason.cause:
        case "waiting":
            return _same("not judged yet")
        case "panic":
            return f"{reason.panic}: baseline weights", ("panic",)
        case "measured":
            return _same(reason.request)
        case "no_verdict":
            return _same(f"nothing new is known of it for {settings.lease_s:g} s: back to the baseline")
        case "bounded" | "not_drained":
            few = (
                f"at most {pool.max_mitigated:.0%} of the pool may be drained at a time",
                "and never its last server",
            )
            return _listed(f"not drained: {few[0]}" if reason.cause == "not_drained" else few[0], few[1])
        case "pinned":
            return _same(reason.request + _warning(reason, pool))
        case "drained":
            return _drained(reason, pool)
        case "peer_fails":
            return _listed(_state(reason), f"but {reason.fails}, so no load is moved to it")
        case "not_shown":
            return _listed(_state(reason), f"but nothing shows it now: {_seen(reason)}")
        case "tried":
            tried = {"judged": JUDGED, "over": TRIED}.get(reason.stage, _trials(_state(reason)))
            return f"{_state(reason)}: {tried}", (_state(reason), tried)
        case "fast":
            well = "answered" if _state(reason) == "errors" else "fast"
            fast = f"its few requests were {well}, so it gets its full weight on trial"
            return f"{_state(reason)}: {fast}", (_state(reason), fast)
        case "away":
            return _listed("it takes no requests now", "and will begin with a few, as its caches may be cold")
        case "warm_up":
            if reason.is_coarse:
                return _listed("it came up", "and gets its weight at once: weights of 1, 2, 5 and 10 have no warm-up")
            return _listed("it came up", "and gets more requests as long as it answers them quickly")
        case "no_gain":
            stays = _no_gain(reason.share)
            return f"{_state(reason)}: {_seen(reason)}; {stays}", (_state(reason), stays)
        case "errors":
            return _errors(reason, pool)
        case "own_limit" if reason.cause in pool.causes_off:
            return f"{_state(reason)}: {_seen(reason)}; {STAYS}", (_state(reason), _seen(reason))
        case "interference" | "slow" | "own_limit":
            return _slow_alone(reason)
        case "calm" | "limited":
            return _same("calm")
        case "capacity":
            return _same(_capacity(reason.full))
        case "unknown":
            return f"unknown: {_seen(reason)}", ("unknown", _seen(reason))
        case state:
            return _same(f"{state}: {_seen(reason)}")


def _same(why: str) -> Words:
    return why, (why,)


def _listed(*short: str) -> Words:
    return ", ".join(short), short


def _seen(reason: Reason) -> str:
    """The most important sign that the detector gives."""
    return reason.verdict.path[0] if reason.verdict is not None and reason.verdict.path else "no reason given"


def _state(reason: Reason) -> str:
    """The word for a server that is slow by itself."""
    return "interference" if reason.verdict is None else reason.verdict.state


def _slow_alone(reason: Reason) -> Words:
    seen, state = _seen(reason), _state(reason)
    if no_lower := _no_lower(reason):
        return f"{state}: {seen}; {LOWEST}, since {no_lower}", (state, LOWEST, no_lower)
    if reason.share is None:
        stays = "its weight stays until it is surely calm"
        return f"{state}: {seen}; {stays}", (state, stays)
    severity = reason.verdict.severity if reason.verdict is not None else 0.0
    return (
        f"{state}: {seen}; {_share(reason.share, severity)}",
        (state, f"at most {severity:.0%} of capacity lost", seen),
    )


def _no_lower(reason: Reason) -> str:
    """Why its weight goes no lower; empty where nothing keeps it from that."""
    if reason.others_filled is not None:
        return f"another server would be {reason.others_filled:.0%} full otherwise"
    if reason.others_wait:
        return "more requests wait at the others than at it"
    return "the others had no room for its requests" if reason.keeps else ""


def _errors(reason: Reason, pool: PoolSettings) -> Words:
    if _no_lower(reason):
        return _slow_alone(reason)
    done = STAYS if "errors" in pool.causes_off else _trials("errors")
    return f"errors: {_seen(reason)}; {done}", ("errors", _seen(reason))


def _trials(state: str) -> str:
    cause = STILL.get(state, "the neighbour is still there")
    return f"it gets a few requests now and then, to see whether {cause}"


def _share(share: Share, severity: float) -> str:
    kept = "; its weight is higher than that, since no more servers may be drained at a time" if share.is_kept else ""
    if share.basis != "capacities":
        missing = "the pool's rate is not known" if share.basis == "no_rate" else "no server's capacity is known"
        return f"{missing}, so it keeps {1.0 - severity:.0%} of its weight{kept}"
    if share.weight == 0:
        return f"it gets no requests: the others can carry all {share.total_rps:.0f} requests/s"
    return (
        f"it gets {share.rps:.0f} of {share.total_rps:.0f} requests/s; it can still carry {share.capacity_rps:.0f}, and"
        f" the others {share.others_rps:.0f}{kept}"
    )


def _no_gain(share: Share | None) -> str:
    if share is None:
        return "no other server can take its load"
    if share.basis == "capacities":
        return "it keeps its weight, as the others would not answer its requests sooner"
    return "it keeps its weight, as it is not known to answer less than usual"


def _drained(reason: Reason, pool: PoolSettings) -> Words:
    if reason.keeps == 0:
        return _same(reason.request)
    below = f"below {pool.u_threshold:.0%} of their capacity"
    too_full = f"with that load too the others would not stay {below}"
    return f"{reason.request}; it keeps weight {reason.keeps}: {too_full}", (reason.request,)


def _warning(reason: Reason, pool: PoolSettings) -> str:
    if reason.others_filled is None:
        return ""
    return f"; warning: the others are predicted to be {reason.others_filled:.0%} full, above {pool.u_threshold:.0%}"


def _capacity(full: Full | None) -> str:
    if full is None:
        return "calm"
    weight = f"so its weight in calm is {full.weight} instead of {full.baseline}"
    if full.carries is None:
        return f"it carries less per unit of weight than other servers did, {weight}"
    return f"it carries {full.carries:.2f} of what {full.strongest} carries per unit of weight, {weight}"
