"""What `balance random(2)` is predicted to do, against the Markov chain played, the simulator and theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_lab.sim.requests import Simulation
from slackwater_lab.sim.setup import Setup
from slackwater_lab.sim.two_choices import Alike, queues

Pool = list[tuple[int, float]]
"""Weight and capacity in requests per second of each server."""
EVEN: Pool = [(100, 250.0)] * 3
SLOW: Pool = [(100, 250.0), (100, 250.0), (100, 60.0)]
REDUCED: Pool = [(100, 250.0), (100, 250.0), (20, 60.0)]
HARDLY: Pool = [(100, 250.0), (100, 250.0), (5, 60.0)]
DRAINED: Pool = [(100, 250.0), (100, 250.0), (0, 60.0)]
EIGHT: Pool = [(100, 250.0)] * 6 + [(30, 60.0)] * 2
STEPS = 300_000


def groups(pool: Pool) -> list[Alike]:
    return [Alike(1, weight, mu) for weight, mu in pool]


def predicted_shares(pool: list[Alike], total_rps: float) -> list[float]:
    """Share of the requests that a server of each group gets; the sum over all servers is 1."""
    filled = iter(queues(tuple(group for group in pool if group.weight), total_rps))
    rates = [group.capacity_rps * next(filled).filled if group.weight else 0.0 for group in pool]
    whole = sum(group.count * rate for group, rate in zip(pool, rates, strict=True))
    return [rate / whole for rate in rates]


def played(pool: Pool, total_rps: float) -> list[float]:
    """Share of the requests by server: a chain of arrivals and ends, as HAProxy draws."""
    dice = np.random.default_rng(3)
    weights, capacity = np.array(pool).T
    happens = np.append(capacity, total_rps)
    events = dice.choice(len(happens), size=STEPS, p=happens / happens.sum()).tolist()
    drawn = dice.choice(len(pool), size=(STEPS, 2), p=weights / weights.sum()).tolist()
    held, got = [0] * len(pool), [0] * len(pool)
    for event, (one, other) in zip(events, drawn, strict=True):
        if event == len(pool):
            chosen = one if held[other] * weights[one] > held[one] * weights[other] else other
            held[chosen] += 1
            got[chosen] += 1
        elif held[event]:
            held[event] -= 1
    return [requests / sum(got) for requests in got]


@pytest.mark.parametrize("pool", [EVEN, SLOW, REDUCED, HARDLY, DRAINED, EIGHT])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_shares_and_queues_are_those_of_the_markov_chain(pool: Pool, load: float) -> None:
    total_rps = load * sum(mu for weight, mu in pool if weight)
    shares = played(pool, total_rps)
    assert predicted_shares(groups(pool), total_rps) == pytest.approx(shares, abs=0.015)


@pytest.mark.parametrize("load", [0.4, 0.6, 0.75])
def test_shares_are_those_of_the_simulator(load: float) -> None:
    """One of four servers has lost 70%; nobody moves a weight."""
    setup = Setup(
        servers=4,
        load=load,
        balance="random2",
        noisy_servers=(0,),
        noisy=0.25,
        taken=0.7,
        episode_s=0.0,
        seconds=120.0,
        warm_up_s=0.0,
        children=1000,
    )
    run = Simulation(setup, "static", None)
    run.run()
    got = run.balancers[0].requests
    pool = [(100, 75.0), *[(100, 250.0)] * 3]
    predicted = predicted_shares(groups(pool), load * 1000.0)
    assert predicted == pytest.approx([one / sum(got) for one in got], abs=0.015)
    assert abs(predicted[0] - 0.25) > 0.05, "it is not what the weights alone would give"


def test_alike_servers_hold_what_mitzenmacher_says() -> None:
    """The share with k requests or more is u^(2^k - 1)."""
    (queue,) = queues((Alike(10_000, 100.0, 1.0),), 9_000.0)
    assert queue.beyond[:6] == pytest.approx([0.9 ** (2**k - 1) for k in range(6)], rel=0.02)


def test_a_full_server_still_gets_what_it_is_drawn_twice_for() -> None:
    """A ninth of the requests, more than it can carry."""
    slow, other = queues((Alike(1, 100.0, 10.0), Alike(2, 100.0, 250.0)), 360.0)
    assert slow.filled * 10.0 == pytest.approx(40.0, rel=0.1)
    assert slow.held > 20.0 > other.held
    assert slow.filled * 10.0 + 2 * other.filled * 250.0 == pytest.approx(360.0, rel=0.01)


@given(
    st.lists(st.builds(Alike, st.integers(1, 9), st.sampled_from([0.0, 1.0, 37.0, 100.0]), st.floats(1.0, 1e3))),
    st.floats(1e-3, 3.0),
)
def test_all_requests_go_somewhere(others: list[Alike], load: float) -> None:
    some = [Alike(1, 100.0, 250.0), *others]
    shares = predicted_shares(some, load * sum(one.count * one.capacity_rps for one in some))
    assert sum(one.count * share for one, share in zip(some, shares, strict=True)) == pytest.approx(1.0)
    assert all((share == 0.0) == (one.weight == 0.0) for one, share in zip(some, shares, strict=True))
