"""What is simulated: pool, load, noise, and the ways in which Samples come late or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater_lab.sim import episodes
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.episodes import Episode
from slackwater_lab.sim.server import processors_of

POLICIES = ("static", "slackwater", "slackwater-even", "slackwater-lb", "ice", "oracle", "oracle-split")
"""`slackwater-even` balances capacity in calm; `slackwater-lb` has no monitors, only what the balancer sees; `ice` is
Slackwater's detector with ICE's threshold law; `oracle` knows what is taken, and when; `oracle-split` too, which may
keep any split and not only drain."""
LAWS = {"slackwater": "optimal", "slackwater-even": "optimal", "slackwater-lb": "optimal", "ice": "ice"}
WITHOUT_MONITORS = frozenset({"slackwater-lb"})
WARM_UP_S = 30.0
"""Calm time before the first episode, by default: the detector learns what is normal."""


class SimulationError(ValueError):
    """A simulation that cannot be run; the text says which setting, and what was expected."""


@dataclass(frozen=True)
class Setup:
    """One simulation. Rates in requests per second, times in simulated seconds."""

    servers: int = 10
    load: float = 0.5
    """Share of the pool's capacity in calm."""
    capacity_rps: float = 250.0
    """Mean capacity of a server in calm."""
    spread: float = 0.0
    """Standard deviation of the servers' capacities over their mean."""
    sizes: tuple[float, ...] = ()
    """Capacity of each server over the mean, and with a quota its quota; empty: all alike, but for `spread`."""
    balance: str = "roundrobin"
    balancers: int = 1
    """Load balancers in front of the same servers, each with its share of the load and its own lbengine."""
    children: int = 4
    """Requests that a server works on at a time; the others wait outside its CPU's queue."""
    cost_cv2: float = 1.0
    """Variance of the requests' CPU time over its squared mean. 0: all alike, 1: exponential."""
    arrivals_cv2: float = 1.0
    """Squared coefficient of variation of the times between requests in an open loop. 0: a steady beat, 1: at random.
    """
    clients: int = 0
    """Number of clients of a closed loop, each sending its next request when the last is answered; 0: open loop."""
    quota_cores: float = 0.0
    """The servers are cgroups with this quota of CPU time in each `PERIOD_S`, kept on as many processors as it begins,
    as the lab's hosts are, and the neighbour spends of the same quota; 0: a neighbour slows a server down evenly."""
    machine_cores: int = 0
    """Processors that the servers are spread over in turn; 0: each has its own. With a quota only."""
    slice_ms: float = 0.0
    """Longest wait for a busy processor: the scheduler takes it from its user after this time. Only with
    `machine_cores`."""
    behind_share: float = 1.0
    """Share of the requests that wait when a neighbour has the processor. The others go first."""
    noisy: float = 0.1
    """Share of the servers that are noisy at a time."""
    noisy_servers: tuple[int, ...] = ()
    """The noisy servers where `episode_s` is 0; empty: drawn. It matters where servers share processors."""
    taken: float = 0.8
    """Share of a noisy server's speed that is gone; with a quota, while both it and the neighbour want the CPU."""
    episode_s: float = 30.0
    """Mean length of an episode; 0: the same servers are noisy all the time."""
    seconds: float = 120.0
    """Length after the warm-up."""
    warm_up_s: float = WARM_UP_S
    """Length of the warm-up, which is not measured."""
    period_s: float = 0.2
    """Time between two Samples of a server, and between two decisions."""
    delay_s: float = 0.02
    """Delay of a Sample from its period's end to the detector."""
    loss: float = 0.0
    """Share of the Samples that never come."""
    seed: int = 1

    def __post_init__(self) -> None:
        wrong = [
            ("servers", self.servers >= 1, "1 or more"),
            ("load", self.load > 0, "more than 0"),
            ("capacity_rps", self.capacity_rps > 0, "more than 0"),
            ("spread", 0 <= self.spread <= 0.5, "0 to 0.5"),
            ("sizes", len(self.sizes) in (0, self.servers) and all(size > 0 for size in self.sizes), "one a server"),
            ("balance", self.balance in BALANCERS, " or ".join(BALANCERS)),
            ("balancers", self.balancers >= 1, "1 or more"),
            (
                "balancers",
                self.balancers == 1 or not self.balance.startswith("prequal"),
                "1 with Prequal",
            ),
            ("children", self.children >= 1, "1 or more"),
            ("cost_cv2", self.cost_cv2 >= 0, "0 or more"),
            ("arrivals_cv2", self.arrivals_cv2 >= 0, "0 or more"),
            ("clients", self.clients >= 0, "0 or more"),
            ("machine_cores", self.machine_cores == 0 or self.quota_cores > 0, "0 for servers without a quota"),
            ("machine_cores", self.machine_cores % self._processors == 0, f"a multiple of {self._processors}"),
            ("slice_ms", self.slice_ms >= 0, "0 or more"),
            ("behind_share", 0 <= self.behind_share <= 1, "from 0 to 1"),
            ("warm_up_s", self.warm_up_s >= 0, "0 or more"),
            ("quota_cores", self.quota_cores >= 0, "0 or more"),
            ("noisy", 0 <= self.noisy <= 1 and (self.episode_s == 0 or self.noisy < 1), "0 to 1, below 1 for episodes"),
            (
                "noisy_servers",
                all(0 <= number < self.servers for number in self.noisy_servers),
                "numbers of servers, from 0",
            ),
            ("taken", 0 <= self.taken < 1, "0 or more and less than 1"),
            ("episode_s", self.episode_s >= 0, "0 or more"),
            ("seconds", self.seconds > 0, "more than 0"),
            ("period_s", self.period_s > 0, "more than 0"),
            ("delay_s", self.delay_s >= 0, "0 or more"),
            ("loss", 0 <= self.loss < 1, "0 or more and less than 1"),
        ]
        for name, right, expected in wrong:
            if not right:
                raise SimulationError(f"{name} {getattr(self, name)}: expected {expected}")

    @property
    def _processors(self) -> int:
        """Number of processors that each server is kept on; any number without a quota."""
        return max(1, processors_of(self.quota_cores))

    def neighbours_of(self, server: int) -> range:
        """The servers that are kept on the same processors as this server, itself among them."""
        if not self.machine_cores:
            return range(server, server + 1)
        places = self.machine_cores // self._processors
        return range(server % places, self.servers, places)

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(self.servers)]

    @property
    def end_s(self) -> float:
        return self.warm_up_s + self.seconds

    def capacities(self) -> Floats:
        """(servers,) requests per second that each can serve in calm; the same for the same seed."""
        dice = np.random.default_rng([self.seed, 1])
        around = np.clip(dice.normal(1.0, self.spread, self.servers), 0.3, 2.0)
        return np.asarray(self.capacity_rps * around * self.parts())

    def parts(self) -> Floats:
        """(servers,) `sizes` with a mean of 1."""
        sizes = np.array(self.sizes or [1.0] * self.servers)
        return np.asarray(sizes / sizes.mean())

    def quotas(self) -> Floats:
        """(servers,) each server's `quota_cores`."""
        return np.asarray(self.quota_cores * self.parts())

    def episodes(self) -> list[Episode]:
        """The episodes, which depend on the seed and not on the policy. A share below one server means one server."""
        dice = np.random.default_rng([self.seed, 2])
        if self.noisy == 0:
            return []
        if self.episode_s == 0:
            count = max(1, round(self.noisy * self.servers))
            drawn = dice.choice(self.servers, count, replace=False).tolist()
            return episodes.steady(self.noisy_servers or drawn, self.warm_up_s, self.end_s, self.taken)
        return episodes.coming_and_going(
            dice, self.servers, self.warm_up_s, self.end_s, self.noisy, self.episode_s, self.taken
        )
