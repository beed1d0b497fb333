"""The guard holds for any sequence of verdicts."""

from __future__ import annotations

import math
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from lbengine import guard
from lbengine.baseline import Baseline
from lbengine.decide import View, decide
from lbengine.haproxy import Server, Snapshot
from lbengine.plan import LAWS
from lbengine.ramp import Position
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import State, Verdict

STATES: tuple[State, ...] = get_args(State)


def server(name: str, weight: int, available: bool = True) -> Server:
    return Server(name, "UP", available, False, weight, 100, 0, 0, 0, None, 0, False, False, "")


def snapshot(servers: list[Server], balance: str = "roundrobin") -> Snapshot:
    return Snapshot(1, 1, 1, "2.6", False, balance, "", tuple(servers))


def verdict(name: str, state: State, severity: float, capacity_rps: float | None) -> Verdict:
    return Verdict(
        v=1,
        node=name,
        pool="web",
        time_unix_s=0.0,
        state=state,
        since_unix_s=0.0,
        severity=severity,
        path=["because"],
        model="test",
        capacity_rps=capacity_rps,
    )


verdicts_of_a_turn = st.tuples(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.sampled_from(STATES)),
            st.floats(0.0, 1.0),
            st.one_of(st.none(), st.floats(0.0, 500.0)),
            st.sampled_from([True, True, True, False]),
        ),
        min_size=7,
        max_size=7,
    ),
    st.floats(0.0, 2.0),
    st.one_of(st.none(), st.floats(0.0, 3000.0)),
)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 7),
    st.floats(0.01, 1.0),
    st.sampled_from(sorted(LAWS)),
    st.sampled_from(["roundrobin", "leastconn"]),
    st.lists(verdicts_of_a_turn, min_size=1, max_size=12),
    st.lists(st.integers(1, 256), min_size=7, max_size=7),
)
def test_no_sequence_of_verdicts_breaks_the_bounds(
    count: int,
    max_mitigated: float,
    law: str,
    balance: str,
    turns: list[tuple[list[tuple[State | None, float, float | None, bool]], float, float | None]],
    baselines: list[int],
) -> None:
    pool = PoolSettings(name="web", backend="web", socket="/none", law=law, max_mitigated=max_mitigated)  # type: ignore[arg-type]
    stored = {f"host{n}": Baseline(baselines[n], baselines[n]) for n in range(count)}
    positions = {name: Position(baseline.weight) for name, baseline in stored.items()}
    now_s = 0.0
    for told, pause_s, total_rps in turns:
        now_s += pause_s
        names = list(stored)
        servers = [server(n, positions[n].weight, told[i][3]) for i, n in enumerate(names)]
        up = [s.name for s in servers if s.available]
        decisions = decide(
            View(
                snapshot=snapshot(servers, balance),
                baselines=stored,
                positions=positions,
                yielded=frozenset(),
                verdicts={
                    n: verdict(n, state, severity, capacity)
                    for n, (state, severity, capacity, _) in zip(names, told, strict=False)
                    if state is not None
                },
                waiting=False,
                rates=None,
                total_rps=total_rps,
                now_s=now_s,
            ),
            pool,
            LbengineSettings(),
        )
        assert set(decisions.servers) == set(up)
        positions |= {name: decision.position for name, decision in decisions.servers.items()}
        weights = {name: positions[name].weight for name in up}
        assert all(0 <= weight <= stored[name].weight for name, weight in weights.items())
        assert not up or sum(weights.values()) > 0
        reduced = [name for name in up if weights[name] < stored[name].weight]
        assert len(reduced) <= math.floor(len(up) * max_mitigated + 1e-9)
        assert len(up) != 1 or not reduced


def admit(
    states: dict[str, tuple[State, float]], max_mitigated: float = 0.5, reduced: tuple[str, ...] = ()
) -> guard.Admission:
    return guard.admit(states, list(states), max_mitigated, reduced)


def test_the_most_severe_servers_are_reduced_first() -> None:
    states: dict[str, tuple[State, float]] = {f"h{n}": ("calm", 0.0) for n in range(8)}
    states |= {"h1": ("interference", 0.3), "h2": ("interference", 0.9), "h3": ("interference", 0.6)}
    found = admit(states, 0.25)
    assert found.reduce == {"h2", "h3"}
    assert found.held_back == {"h1"}
    assert not found.panic


def test_two_servers_of_like_severity_do_not_take_turns() -> None:
    states: dict[str, tuple[State, float]] = {f"h{n}": ("calm", 0.0) for n in range(4)}
    states |= {"h1": ("interference", 0.55), "h2": ("interference", 0.5)}
    assert admit(states, 0.25, reduced=("h2",)).reduce == {"h2"}
    assert admit(states, 0.25, reduced=()).reduce == {"h1"}


def test_more_slow_servers_than_believable_is_panic() -> None:
    states: dict[str, tuple[State, float]] = {
        "h1": ("interference", 0.9),
        "h2": ("interference", 0.8),
        "h3": ("calm", 0.0),
    }
    found = admit(states)
    assert not found.reduce
    assert found.panic == "2 of 3 servers look slow, so it is no neighbour"


def test_all_slow_in_any_verdict_is_panic() -> None:
    assert admit({"h1": ("interference", 0.9), "h2": ("all_slow", 0.5), "h3": ("calm", 0.0)}).panic


def test_overload_alone_is_no_panic_and_no_reason_to_reduce() -> None:
    found = admit({"h1": ("overload", 0.2), "h2": ("overload", 0.2), "h3": ("calm", 0.0)})
    assert found == guard.Admission(frozenset())


def test_one_on_its_way_back_makes_room_for_one_that_is_slow_now() -> None:
    bounded = guard.bound({"h1": 40, "h2": 0, "h3": 100}, dict.fromkeys(("h1", "h2", "h3"), 100), {"h2"}, 0.5, {})
    assert bounded == {"h1": 100, "h2": 0, "h3": 100}


def test_the_last_server_that_takes_requests_keeps_its_weight() -> None:
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {}) == {"h1": 100}
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {"h2": 0}) == {"h1": 100}
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {"h2": 5}) == {"h1": 0}


def test_weights_stay_within_what_the_balancer_takes() -> None:
    assert guard.bound({"h1": 900, "h2": -3}, {"h1": 256, "h2": 100}, {"h2"}, 0.5, {}) == {"h1": 256, "h2": 0}
    large = guard.bound({"h1": 60000, "h2": 70000}, {"h1": 65535, "h2": 65535}, set(), 1.0, {}, 65535)
    assert large == {"h1": 60000, "h2": 65535}


def test_when_all_are_slow_alike_everything_is_given_back_at_once() -> None:
    names = ["web1", "web2", "web3"]
    states: dict[str, State] = {"web1": "interference", "web2": "all_slow", "web3": "all_slow"}
    found = decide(
        View(
            snapshot=snapshot([server("web1", 0), server("web2", 100), server("web3", 100)]),
            baselines={name: Baseline(100, 100) for name in names},
            positions={"web1": Position(0), "web2": Position(100), "web3": Position(100)},
            yielded=frozenset(),
            verdicts={name: verdict(name, state, 0.9 * (name == "web1"), 40.0) for name, state in states.items()},
            waiting=False,
            rates=dict.fromkeys(names, 80.0),
            total_rps=240.0,
            now_s=10.0,
        ),
        PoolSettings(name="web", backend="web", socket="/s", mode="act"),
        LbengineSettings(),
    )
    assert [found.servers[name].position for name in names] == [Position(100)] * 3
    assert "alike" in found.panic
