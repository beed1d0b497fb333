"""Scenarios drawn from a seed, and their players: every balancer, Slackwater's own decision code, the oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from slackwater.detector.classify.tree import Model
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.requests import Simulation
from slackwater_lab.sim.setup import Setup
from slackwater_lab.sim.tally import Felt, felt_of

SECONDS = 15.0
WARM_UP_S = 12.0
"""Little more than a run in the lab has; KnapsackLB tries its weights in it."""
CAPACITY_RPS = 100.0
QUOTA_CORES = 0.4
PROCESSORS_PER_SERVER = 2 / 3
"""The same as in the lab: three hosts on two processors."""
TICK_MS = 4.0
BEHIND_SHARE = 0.6
"""Assumed: earlier fits on the lab were 0.6 and 0.8, of another model."""
REFERENCE = "leastconn"
PLAYERS: dict[str, tuple[str, str]] = {
    **{("static" if name == "roundrobin" else name): ("static", name) for name in BALANCERS},
    "slackwater": ("slackwater", "roundrobin"),
    "slackwater-lc": ("slackwater", "leastconn"),
    "slackwater-random2": ("slackwater", "random2"),
    "slackwater-lb": ("slackwater-lb", "roundrobin"),
    "slackwater-lb-lc": ("slackwater-lb", "leastconn"),
    "slackwater-lb-random": ("slackwater-lb", "random2"),
    "oracle-lc": ("oracle", "leastconn"),
    "oracle-split": ("oracle-split", "roundrobin"),
    "oracle-split-lc": ("oracle-split", "leastconn"),
}
"""Name -> policy and balance of a setup."""


def alone(player: str) -> str:
    """The player that is this one's balance without Slackwater or an oracle; itself if it is such a one."""
    balance = PLAYERS[player][1]
    return next(name for name, played in PLAYERS.items() if played == ("static", balance))


def scenario(seed: int, number: int) -> Setup:
    """The scenario with this number, from 0: another for each seed, the same for the same.

    Drawn are the servers, how many have neighbours at a time, the share that these take, how long they stay, the load,
    the servers' capacities, how much the requests' costs differ, and of which kind the hosts are: evenly slowed down,
    or with the quota of the lab's hosts, on processors of their own or on shared ones.
    """
    dice = np.random.default_rng([seed, number])
    servers = int(dice.integers(3, 9))
    steady = bool(dice.random() < 0.3)
    kind = int(dice.integers(3))
    quota, shared = kind > 0, kind == 2
    return Setup(
        servers=servers,
        load=float(dice.uniform(0.2, 0.85)),
        capacity_rps=CAPACITY_RPS,
        spread=float(dice.choice([0.0, 0.0, 0.15, 0.3])),
        cost_cv2=float(dice.choice([0.1, 0.5, 1.0, 2.0])),
        arrivals_cv2=float(dice.choice([0.1, 1.0])),
        noisy=float(dice.integers(1, servers)) / servers,
        taken=float(dice.uniform(0.2, 0.9)),
        episode_s=0.0 if steady else float(np.exp(dice.uniform(np.log(1.0), np.log(15.0)))),
        seconds=SECONDS,
        warm_up_s=WARM_UP_S,
        seed=int(dice.integers(2**31)),
        quota_cores=QUOTA_CORES if quota else 0.0,
        machine_cores=math.ceil(servers * PROCESSORS_PER_SERVER) if shared else 0,
        slice_ms=TICK_MS if shared else 0.0,
        behind_share=BEHIND_SHARE if shared else 1.0,
    )


def play(setup: Setup, players: Sequence[str], model: Model | None) -> dict[str, Any]:
    """Plays a scenario with each player: response times, and answers to the episodes; for JSON."""
    result = {}
    for name in players:
        policy, balance = PLAYERS[name]
        run = Simulation(replace(setup, balance=balance), policy, model)
        outcome = run.run()
        result[name] = {
            **felt(run),
            "unanswered_share": outcome.felt["failed_share"],
            "moves": outcome.moves,
            "missed": outcome.missed,
            "false_reductions": outcome.false_reductions,
        }
    return {"setup": asdict(setup), "players": result}


def felt(run: Simulation) -> Felt:
    """The response times of a run that was played."""
    return felt_of(*run.waited())
