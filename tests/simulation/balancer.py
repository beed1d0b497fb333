"""The simulated HAProxy: a backend with weights, which takes its time, and knows who set what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Server, Snapshot
from tests.simulation.world import Process, World

BASELINE = 100
SERVERS = ("host1", "host2", "host3")


@dataclass
class Write:
    """One value that somebody set."""

    time_s: float
    by: Process
    server: str
    before: int
    after: int


@dataclass
class HAProxy:
    """One process, until `restart`; another has the weights of its configuration again."""

    world: World
    weights: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, BASELINE))
    written: Callable[[Write], object] = field(default=lambda _: None)
    pid: int = 1
    started_s: float = 0.0
    unreachable: set[str] = field(default_factory=set)
    """The machines that do not reach it."""
    slow_s: float = 0.0
    """Most that an answer takes longer than usual."""

    def restart(self) -> None:
        self.weights = dict.fromkeys(SERVERS, BASELINE)
        self.pid, self.started_s = self.pid + 1, self.world.now_s


class Connection(Balancer):
    """`HAProxy` as one process reaches it; its methods are called in an engine's thread."""

    def __init__(self, haproxy: HAProxy, process: Process, machine: str, timeout_s: float) -> None:
        self._haproxy, self._process, self._machine, self._timeout_s = haproxy, process, machine, timeout_s

    def read(self) -> Snapshot:
        self._go_to()
        haproxy = self._haproxy
        shown = Snapshot(
            balance="roundrobin",
            weights_mean="share",
            servers=[Server(name=name, weight=weight, configured=BASELINE) for name, weight in haproxy.weights.items()],
            pid=haproxy.pid,
            uptime_s=int(haproxy.world.now_s - haproxy.started_s),
        )
        self._go_to()
        return shown

    def set_weights(self, weights: Mapping[str, int]) -> None:
        self._process.check()
        if self._machine not in self._haproxy.unreachable:
            for name, weight in weights.items():  # commands in one line: nothing holds them up any more
                self._set(name, weight)
        self._go_to()
        wrong = [name for name, weight in weights.items() if self._haproxy.weights[name] != weight]
        self._go_to()
        if wrong:
            raise BalancerError(f"another weight than the one set: {', '.join(wrong)}")

    def _set(self, name: str, weight: int) -> None:
        haproxy = self._haproxy
        write = Write(haproxy.world.now_s, self._process, name, haproxy.weights[name], weight)
        haproxy.weights[name] = weight
        haproxy.written(write)

    def _go_to(self) -> None:
        """The time that half a question takes. Raises BalancerUnreachable."""
        haproxy, random = self._haproxy, self._haproxy.world.random
        self._process.check()
        if self._machine in haproxy.unreachable:
            self._process.sleep(self._timeout_s)
            raise BalancerUnreachable("the simulated HAProxy does not answer")
        if random.random() < 0.5 or haproxy.slow_s:
            self._process.sleep(0.003 * random.random() + haproxy.slow_s * random.random())
