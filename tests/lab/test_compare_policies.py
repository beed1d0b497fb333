"""The oracle, and the table of the policies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slackwater.lbengine.laws.laws import optimal
from slackwater_lab.experiment.decisions import Look, Oracle, Seen
from slackwater_lab.experiment.policies import POLICIES

ORACLES = {"oracle": Oracle(), "oracle-lc": Oracle("leastconn")}


def pool(*capacities: float | None, noisy: Sequence[str] = ("a",)) -> list[Seen]:
    return [Seen(name, noisy=name in noisy, capacity=each) for name, each in zip("abc", capacities, strict=False)]


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
    keeps, drains = (Oracle(drains=drains)(Look(servers, load=0.5)) for drains in (False, True))
    assert drains["host1"] == 0
    best = optimal([50.0, 100.0, 120.0], 150.0)
    assert keeps == {server: round(100 * weight / max(best)) for server, weight in zip(keeps, best, strict=True)}
    calm = [Seen("host1", capacity=50.0), Seen("host2", capacity=100.0)]
    assert Oracle(drains=False)(Look(calm, load=0.5))["host1"] < 50, "uneven hosts, also in calm"


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_drains_at_the_onset_and_leaves_calm_alone(name: str) -> None:
    beside = pool(50.0, None, None)
    assert ORACLES[name](Look(beside, 0.5)) == {"a": 0, "b": 100, "c": 100}
    assert ORACLES[name](Look(beside, 0.8))["a"] > 0, "the others cannot carry it"
    assert ORACLES[name](Look(pool(None, None, None, noisy=()), 0.5)) == {"a": 100, "b": 100, "c": 100}


def test_an_oracle_that_does_not_know_the_load_drains_the_noisy_ones_but_never_all() -> None:
    servers = [Seen("a", noisy=True, capacity=50.0), Seen("b"), Seen("c")]
    assert Oracle()(Look(servers)) == {"a": 0, "b": 100, "c": 100}
    every = [Seen(name, noisy=True, capacity=50.0) for name in "abc"]
    assert Oracle()(Look(every)) == {"a": 100, "b": 100, "c": 100}


def test_an_oracle_that_cannot_drain_splits_by_what_each_server_can_do() -> None:
    """70% of a pool of three, with one server at 30%: the two others alone cannot carry it."""
    servers = [Seen("a", noisy=True, capacity=30.0), *(Seen(x, capacity=100.0) for x in "bc")]

    def weights(name: str, load: float) -> dict[str, int]:
        return ORACLES[name](Look(servers, load))

    wanted = optimal([30.0, 100.0, 100.0], 0.7 * 300.0)
    assert weights("oracle", 0.7) == {"a": round(100 * wanted[0] / wanted[1]), "b": 100, "c": 100}
    held = [rate / (mu - rate) for rate, mu in zip(wanted, (30.0, 100.0, 100.0), strict=True)]
    assert weights("oracle-lc", 0.7) == {"a": round(100 * held[0] / held[1]), "b": 100, "c": 100}
    assert 0 < weights("oracle", 0.7)["a"] < 30 < weights("oracle-lc", 0.7)["a"]
    for name in ("oracle", "oracle-lc"):
        assert weights(name, 0.6) == {"a": 0, "b": 100, "c": 100}, "the others can carry it"
    assert POLICIES["oracle-lc"].balance == "leastconn"


def test_oracles_know_that_hosts_differ_and_that_all_may_be_noisy() -> None:
    oracle = ORACLES["oracle"]
    uneven = [Seen("a", capacity=75.0), Seen("b", noisy=True, capacity=50.0), Seen("c", capacity=125.0)]
    wanted = optimal([75.0, 0.0, 125.0], 150.0)
    assert oracle(Look(uneven, 0.5)) == {"a": round(100 * wanted[0] / wanted[2]), "b": 0, "c": 100}
    alike = [Seen(name, noisy=True, capacity=50.0) for name in "abc"]
    assert oracle(Look(alike, 0.5)) == {"a": 100, "b": 100, "c": 100}
    nothing = [Seen(name, noisy=True, capacity=0.0) for name in "abc"]
    assert oracle(Look(nothing, 0.5)) == {"a": 100, "b": 100, "c": 100}
    calm = [Seen("a", capacity=75.0), Seen("b", capacity=125.0)]
    assert oracle(Look(calm, 0.5)) == {"a": 100, "b": 100}
