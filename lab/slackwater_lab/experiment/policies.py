"""The policies: one table, with who runs each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.peers import PEERS
from slackwater_lab.experiment.policy_runners import (
    BALANCE_STEP_S,
    OracleRunner,
    PeerRunner,
    PolicyRunner,
)
from slackwater_lab.experiment.policy_runners import SlackwaterRunner as Slackwater
from slackwater_lab.experiment.retuning import TwoStageRunner
from slackwater_lab.experiment.scenarios import Scenario


@dataclass(frozen=True)
class Policy:
    """The balance algorithm that a policy runs on, where it is from, and what runs it."""

    balance: str
    source: str
    runner: Callable[[Lab, Scenario], PolicyRunner]


EVEN = partial(Slackwater, balance_step_s=BALANCE_STEP_S)
ALONE = partial(Slackwater, monitors=False)
POLICIES: dict[str, Policy] = {
    "static": Policy("roundrobin", "HAProxy's `roundrobin` with its configured weights", PolicyRunner),
    "leastconn": Policy("leastconn", "HAProxy's `leastconn` with its configured weights", PolicyRunner),
    "slowstart-lc": Policy(
        "leastconn", "HAProxy's `leastconn` with `slowstart 30s`", partial(PolicyRunner, line="slowstart 30s")
    ),
    "random2": Policy("random(2)", "HAProxy's `random(2)`: the less loaded of two that are drawn", PolicyRunner),
    "bounded-random": Policy("bounded-random", "HAProxy's `random(2)` with `hash-balance-factor`", PolicyRunner),
    **{name: Policy("roundrobin", peer.source, partial(PeerRunner, name=name)) for name, peer in PEERS.items()},
    "ice": Policy("roundrobin", "ICE, ICAC 2015: threshold law and knobs", TwoStageRunner),
    "slackwater": Policy("roundrobin", "Slackwater as it comes, with monitors, on `roundrobin`", Slackwater),
    "slackwater-lc": Policy("leastconn", "Slackwater with monitors, on `leastconn`", Slackwater),
    "slackwater-random": Policy("random(2)", "Slackwater with monitors, on `random(2)`", Slackwater),
    "slackwater-even": Policy("roundrobin", "Slackwater that balances capacity, on `roundrobin`", EVEN),
    "slackwater-even-random": Policy("random(2)", "Slackwater that balances capacity, on `random(2)`", EVEN),
    "slackwater-even-lc": Policy("leastconn", "Slackwater that balances capacity, on `leastconn`", EVEN),
    "slackwater-lb": Policy("roundrobin", "Slackwater without monitors, on `roundrobin`", ALONE),
    "slackwater-lb-lc": Policy("leastconn", "Slackwater without monitors, on `leastconn`", ALONE),
    "slackwater-lb-random": Policy("random(2)", "Slackwater without monitors, on `random(2)`", ALONE),
    "observed-lc": Policy(
        "leastconn", "Slackwater in mode observe: what it costs", partial(Slackwater, mode="observe")
    ),
    "oracle": Policy("roundrobin", "knows when and where the noise is, and what each server can do", OracleRunner),
    "oracle-split": Policy("roundrobin", "the oracle that keeps any split", partial(OracleRunner, drains=False)),
    "oracle-split-lc": Policy(
        "leastconn",
        "the oracle that keeps any split, on `leastconn`",
        partial(OracleRunner, balance="leastconn", drains=False),
    ),
    "oracle-lc": Policy("leastconn", "the oracle on `leastconn`", partial(OracleRunner, balance="leastconn")),
}
