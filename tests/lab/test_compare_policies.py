"""Each policy does what its source says, on looks that were recorded in the lab."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from slackwater.lbengine.laws.laws import optimal
from slackwater_lab.experiment.decisions import (
    KNOBS,
    AgentCheck,
    Answer,
    Decider,
    Look,
    Oracle,
    Outlier,
    Seen,
    WebServerOnly,
)
from slackwater_lab.experiment.policies import POLICIES
from tests.support.recorded_looks import looks

BASE = {"host1": 100, "host2": 100, "host3": 100}


DECIDERS: dict[str, Callable[[], Decider]] = {
    "agent-check": AgentCheck,
    "outlier": Outlier,
    "wsengine-only": WebServerOnly,
    "oracle": Oracle,
    "oracle-lc": lambda: Oracle("leastconn"),
}
NOISY = [look.servers[0].noisy for look in looks()]
JUDGED = [look.verdict is not None and look.verdict.state == "interference" for look in (x.servers[0] for x in looks())]


def answers(name: str, load: float = 0.5) -> list[Answer]:
    decide = DECIDERS[name]()
    actions = []
    weights = dict(BASE)
    for look in looks(load):
        servers = [replace(seen, weight=weights[seen.server]) for seen in look.servers]
        actions.append(decide(replace(look, servers=servers)))
        weights = actions[-1].weights
    return actions


def host1(name: str, load: float = 0.5) -> list[int]:
    return [answer.weights["host1"] for answer in answers(name, load)]


def test_every_policy_names_its_source_and_the_balance_that_it_runs_on() -> None:
    assert all(policy.source for policy in POLICIES.values())
    balances = {
        name: POLICIES[name].balance for name in ("static", "leastconn", "random2", "slackwater-lc", "oracle-lc")
    }
    assert balances == {
        "static": "roundrobin",
        "leastconn": "leastconn",
        "random2": "random(2)",
        "slackwater-lc": "leastconn",
        "oracle-lc": "leastconn",
    }


def test_the_oracle_that_may_keep_any_split_drains_nobody_whom_the_load_needs() -> None:
    servers = [Seen("host1", noisy=True, capacity=50.0), Seen("host2", capacity=100.0), Seen("host3", capacity=120.0)]
    keeps, drains = (Oracle(drains=drains)(Look(0.0, servers, load=0.5)).weights for drains in (False, True))
    assert drains["host1"] == 0
    best = optimal([50.0, 100.0, 120.0], 150.0)
    assert keeps == {server: round(100 * weight / max(best)) for server, weight in zip(keeps, best, strict=True)}
    calm = [Seen("host1", capacity=50.0), Seen("host2", capacity=100.0)]
    assert Oracle(drains=False)(Look(0.0, calm, load=0.5)).weights["host1"] < 50, "uneven hosts, also in calm"


def test_the_calm_is_left_alone_except_by_the_agents() -> None:
    for name in DECIDERS.keys() - {"agent-check"}:
        assert answers(name)[2] == Answer(BASE), name


def test_an_oracle_that_does_not_know_the_load_drains_the_noisy_ones_but_never_all() -> None:
    servers = [Seen("a", noisy=True, capacity=50.0), Seen("b"), Seen("c")]
    assert Oracle()(Look(0.0, servers)).weights == {"a": 0, "b": 100, "c": 100}
    every = [Seen(name, noisy=True, capacity=50.0) for name in "abc"]
    assert Oracle()(Look(0.0, every)).weights == {"a": 100, "b": 100, "c": 100}


def test_agents_set_the_share_of_the_weight_that_is_idle() -> None:
    actions = answers("agent-check")
    assert actions[0].weights == {"host1": 49, "host2": 48, "host3": 49}
    # The guest does not see who takes its CPU: beside the neighbour it looks as idle as the others, or more so.
    loud = [answer.weights for answer, noisy in zip(actions, NOISY, strict=True) if noisy]
    assert statistics.fmean(weights["host1"] for weights in loud) > statistics.fmean(
        weights["host2"] for weights in loud
    )


def test_agents_never_leave_no_server_at_all() -> None:
    decide = DECIDERS["agent-check"]()
    busy = Look(0.0, [Seen("a", cpu_idle=0.0), Seen("b", cpu_idle=-0.1), Seen("c", cpu_idle=None)])
    assert decide(busy).weights == {"a": 1, "b": 1, "c": 100}


def test_an_outlier_is_ejected_for_a_time_that_grows_with_its_ejections() -> None:
    # Out in the first second of the noise for 5 s, then, as slow as before, at once for 10 s, and again for 15 s.
    assert host1("outlier") == [100] * 6 + [0] * 24
    assert all(answer.weights["host2"] == answer.weights["host3"] == 100 for answer in answers("outlier"))


def test_an_ejected_host_that_behaves_has_a_short_ejection_the_next_time() -> None:
    decide = Outlier(base_ejection_s=2.0)

    def weight_at(now_s: float, slow: bool) -> int:
        times = (50.0 if slow else 3.0, 3.1, 3.2)
        servers = [Seen(f"host{n}", requests=50, rt_mean_ms=rt) for n, rt in enumerate(times, 1)]
        return decide(Look(now_s, servers)).weights["host1"]

    assert [weight_at(now, slow=True) for now in (0, 1, 2, 3)] == [0, 0, 0, 0], "two seconds, then four"
    assert [weight_at(now, slow=False) for now in (4, 5, 6, 7, 8)] == [0, 0, 100, 100, 100]
    assert [weight_at(now, slow=True) for now in (9, 10)] == [0, 0]
    assert weight_at(11, slow=False) == 100, "it had been good for as many intervals as it had ejections"


def test_outliers_need_hosts_volume_and_a_real_distance() -> None:
    def out(*times: float, requests: int = 50) -> list[str]:
        servers = [Seen(f"h{n}", requests=requests, rt_mean_ms=rt) for n, rt in enumerate(times)]
        return [name for name, weight in Outlier()(Look(0.0, servers)).weights.items() if weight == 0]

    assert out(3.0, 3.1, 90.0) == ["h2"]
    assert out(3.0, 90.0) == [], "three hosts at least"
    assert out(3.0, 3.1, 90.0, requests=5) == [], "too few requests"
    assert out(3.0, 3.1, 5.0) == [], "not twice the median"
    assert out(3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 70.0, 90.0) == ["h7"], "1.9 deviations in larger pools, as documented"
    assert len(out(3.0, 3.0, 3.0, 80.0, 90.0, 85.0)) <= 3


def test_half_of_the_hosts_at_most_are_ejected_and_one_always() -> None:
    decide = Outlier(max_share=0.1)
    servers = [Seen("a", requests=50, rt_mean_ms=90.0), *(Seen(x, requests=50, rt_mean_ms=3.0) for x in "bc")]
    assert decide(Look(0.0, servers)).weights == {"a": 0, "b": 100, "c": 100}


def test_the_oracle_drains_at_the_onset_and_returns_at_the_end_if_the_others_can_carry_it() -> None:
    assert host1("oracle") == host1("oracle-lc") == [0 if noisy else 100 for noisy in NOISY]
    assert host1("oracle", load=0.8) == [100] * len(NOISY)


def test_an_oracle_that_cannot_drain_splits_by_what_each_server_can_do() -> None:
    """70% of a pool of three, with one server at 30%: the two others alone cannot carry it."""
    servers = [Seen("a", noisy=True, capacity=30.0), *(Seen(x, capacity=100.0) for x in "bc")]

    def weights(name: str, load: float) -> dict[str, int]:
        return DECIDERS[name]()(Look(0.0, servers, load)).weights

    wanted = optimal([30.0, 100.0, 100.0], 0.7 * 300.0)
    assert weights("oracle", 0.7) == {"a": round(100 * wanted[0] / wanted[1]), "b": 100, "c": 100}
    held = [rate / (mu - rate) for rate, mu in zip(wanted, (30.0, 100.0, 100.0), strict=True)]
    assert weights("oracle-lc", 0.7) == {"a": round(100 * held[0] / held[1]), "b": 100, "c": 100}
    assert 0 < weights("oracle", 0.7)["a"] < 30 < weights("oracle-lc", 0.7)["a"]
    for name in ("oracle", "oracle-lc"):
        assert weights(name, 0.6) == {"a": 0, "b": 100, "c": 100}, "the others can carry it"
    assert POLICIES["oracle-lc"].balance == "leastconn"


def test_oracles_know_that_hosts_differ_and_that_all_may_be_noisy() -> None:
    oracle = DECIDERS["oracle"]()
    uneven = [Seen("a", capacity=75.0), Seen("b", noisy=True, capacity=50.0), Seen("c", capacity=125.0)]
    wanted = optimal([75.0, 0.0, 125.0], 150.0)
    assert oracle(Look(0.0, uneven, 0.5)).weights == {"a": round(100 * wanted[0] / wanted[2]), "b": 0, "c": 100}
    alike = [Seen(name, noisy=True, capacity=50.0) for name in "abc"]
    assert oracle(Look(0.0, alike, 0.5)).weights == {"a": 100, "b": 100, "c": 100}
    nothing = [Seen(name, noisy=True, capacity=0.0) for name in "abc"]
    assert oracle(Look(0.0, nothing, 0.5)).weights == {"a": 100, "b": 100, "c": 100}
    calm = [Seen("a", capacity=75.0), Seen("b", capacity=125.0)]
    assert oracle(Look(0.0, calm, 0.5)).weights == {"a": 100, "b": 100}


def test_web_server_only_turns_knobs_and_no_weights() -> None:
    actions = answers("wsengine-only")
    assert all(answer.weights == BASE for answer in actions)
    # Kept for five looks after the last sign, whatever the Verdicts say between.
    kept = [any(JUDGED[max(0, tick - 4) : tick + 1]) for tick in range(len(JUDGED))]
    assert [bool(answer.knobs) for answer in actions] == kept
    assert actions[10].knobs == {"host1": {name: values[1] for name, values in KNOBS.items()}}
    assert KNOBS["apache.max_request_workers"][1] < KNOBS["apache.max_request_workers"][0]
    assert KNOBS["php_fpm.max_children"][1] > KNOBS["php_fpm.max_children"][0]
    assert KNOBS["apache.keepalive_timeout"][1] > KNOBS["apache.keepalive_timeout"][0]


def test_knobs_are_not_turned_to_and_fro_by_a_verdict_between_two_others() -> None:
    decide = DECIDERS["wsengine-only"]()
    sign = next(look for look, judged in zip(looks(), JUDGED, strict=True) if judged)
    none = replace(sign, servers=[replace(seen, verdict=None) for seen in sign.servers])
    turned = [
        bool(decide(replace(look, now_s=second)).knobs) for second, look in enumerate([sign, none, sign, *[none] * 6])
    ]
    assert turned == [True] * 7 + [False] * 2
