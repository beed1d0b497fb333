"""All balancers of the simulator, by name."""

from __future__ import annotations

from slackwater_lab.sim.balancers.base import Balancer
from slackwater_lab.sim.balancers.haproxy import BoundedRandom, LeastConn, Random2, RoundRobin
from slackwater_lab.sim.balancers.knapsack import Knapsack
from slackwater_lab.sim.balancers.nginx_least_time import NginxLeastTime
from slackwater_lab.sim.balancers.peak_ewma import PeakEwma, PeakEwma2
from slackwater_lab.sim.balancers.prequal import Prequal, Prequal60
from slackwater_lab.sim.balancers.traefik_least_time import TraefikLeastTime

BALANCERS: dict[str, type[Balancer]] = {
    "roundrobin": RoundRobin,
    "leastconn": LeastConn,
    "random2": Random2,
    "bounded-random": BoundedRandom,
    "peak-ewma": PeakEwma,
    "peak-ewma-2": PeakEwma2,
    "prequal-60": Prequal60,
    "prequal-84": Prequal,
    "nginx-least-time": NginxLeastTime,
    "traefik-least-time": TraefikLeastTime,
    "knapsack": Knapsack,
}
