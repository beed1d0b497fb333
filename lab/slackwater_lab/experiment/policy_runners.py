"""Who sets the weights of the real HAProxy during a run, by policy."""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slackwater.core.config import Law
from slackwater.core.messages import WSENGINE, Change, Mode, Sample, Verdict
from slackwater.detector.service import BASELINES
from slackwater.lbengine.decision.evenness import SEEN_S
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.bus import STATE_DIR, forget
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.controller import Controller, monitored, start_bus
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LAB_DIR
from slackwater_lab.cluster.peers import start
from slackwater_lab.experiment.agents import Agents
from slackwater_lab.experiment.decisions import INTERVAL_S, Decider, Look, Oracle, Seen
from slackwater_lab.experiment.scenarios import Scenario
from slackwater_lab.experiment.steady import WARM_UP_S, at_baseline, set_weights, stop_programs

READY_S = 15.0
MONITORS_LEARN_S = 8.0
"""A monitor sends Samples by event when it has seen what is usual for some ten seconds."""
BALANCE_STEP_S = 10.0
"""Time between two steps of weights in calm: an hour would be too long for a laboratory."""
MOST_STEPS = 6
"""Steps after which these weights stay."""
MONITOR = "slackwater-monitor of "


class PolicyRunner:
    """One run's policy. `begin` and `end` bracket the run, warm-up included; `end` also after a `begin` that failed.

    This one leaves everything to the balancer.
    """

    learns = False
    """It starts under load: what it learns of the calm pool decides what it does."""

    def __init__(self, lab: Lab, scenario: Scenario, line: str = "") -> None:
        """`line`: further words of each server's line in HAProxy's configuration."""
        self.lab, self.scenario = lab, scenario
        self.stack = contextlib.ExitStack()
        """Undoes what `begin` did, however far it came."""
        self.url: str | None = None
        """URL for the load; None: HAProxy's."""
        self.lines: Mapping[str, str] = {host.name: line for host in lab.hosts} if line else {}
        """Server -> further words of its line in HAProxy's configuration."""
        self.listener: BusListener | None = None
        self.judged: BusListener | None = None
        self.changes: BusListener | None = None
        self.working: Working | None = None
        """The thread of a policy that decides in the lab's own process."""

    @property
    def samples(self) -> Sequence[Sample]:
        """The Samples of the monitors, if there were any."""
        return list(self.listener.heard) if self.listener is not None else []

    @property
    def verdicts(self) -> Sequence[Verdict] | None:
        """The detector's Verdicts; None without a detector."""
        return list(self.judged.heard) if self.judged is not None else None

    @property
    def knob_changes(self) -> Sequence[Change]:
        """Changes that wsengines made."""
        return (
            [change for change in self.changes.heard if change.by == WSENGINE and change.applied]
            if self.changes
            else []
        )

    def listen(self) -> None:
        """Listens to monitors and detector until the end of the run."""
        self.listener = self.stack.enter_context(BusListener())
        self.judged = self.stack.enter_context(BusListener("verdict"))

    def begin(self) -> None:
        """Starts what the policy needs."""

    def learn_s(self, _demand: Demand) -> float:
        """Time under this load that it needs before its first run under it."""
        return 0.0

    def is_calm(self) -> bool:
        """Whether all weights are the usual ones, and each server was judged calm last."""
        return at_baseline(self.lab) and self.judges_calm()

    def judges_calm(self) -> bool:
        """Whether each server was judged calm last, if any is judged."""
        if self.judged is None:
            return True
        latest = {verdict.node: verdict.state for verdict in list(self.judged.heard)}
        return all(latest.get(host.name) == "calm" for host in self.lab.hosts)

    def noisy(self, lost: Mapping[int, float]) -> None:
        """Who has a neighbour from now on (hosts count from 0), and the share of the host that it takes; only oracles
        listen."""

    def check(self) -> None:
        """Raises LabError when it cannot go on."""
        for background in (self.listener, self.judged, self.changes, self.working):
            if background is not None:
                background.check()

    def end(self) -> None:
        self.stack.close()


class PeerRunner(PolicyRunner):
    """Another balancer in HAProxy's place; HAProxy is not asked meanwhile."""

    def __init__(self, lab: Lab, scenario: Scenario, name: str) -> None:
        super().__init__(lab, scenario)
        self.stack.callback(stop_programs, lab, name)
        _, self.url = start(lab, name)


class OracleRunner(PolicyRunner):
    """The oracle: it knows what every host can do, and what its neighbour takes of that."""

    def __init__(self, lab: Lab, scenario: Scenario, balance: str = "roundrobin", *, drains: bool = True) -> None:
        super().__init__(lab, scenario)
        self._decide = Oracle(balance, drains)

    def begin(self) -> None:
        self.noisy({})

    def noisy(self, lost: Mapping[int, float]) -> None:
        own = self.lab.settings.quota_cores
        quotas = self.scenario.quotas or [own] * len(self.lab.hosts)
        seen = [
            Seen(
                host.name,
                BASE_WEIGHT,
                noisy=number in lost,
                capacity=BASE_WEIGHT * quota / own * (1.0 - lost.get(number, 0.0)),
            )
            for number, (host, quota) in enumerate(zip(self.lab.hosts, quotas, strict=True))
        ]
        set_weights(self.lab, self._decide(Look(0.0, seen, self.scenario.load)).weights)


class SlackwaterRunner(PolicyRunner):
    """Slackwater itself: the real controller, with one of its laws.

    Without `monitors` servers are judged by what their balancer sees. With `balance_step_s` it balances capacity in
    calm, a step each time.
    """

    learns = True

    def __init__(
        self,
        lab: Lab,
        scenario: Scenario,
        law: Law = "optimal",
        *,
        mode: Mode = "act",
        monitors: bool = True,
        balance_step_s: float | None = None,
    ) -> None:
        super().__init__(lab, scenario)
        self._balance_step_s = balance_step_s
        self._law: Law = law
        self._mode: Mode = mode
        self._monitors = monitors

    def begin(self) -> None:
        forget()
        step_s = self._balance_step_s
        controller = Controller(self.lab, self._mode, self._law, monitors=self._monitors, balance_step_s=step_s)
        kept, own = self._learnt / BASELINES, STATE_DIR / BASELINES
        if kept.exists():
            shutil.copy(kept, own)
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(_keep, own, kept)
        self.stack.callback(controller.stop)
        controller.start()
        self.listen()

    def learn_s(self, demand: Demand) -> float:
        """The detector keeps its baselines until the lab's end, monitors what is usual until their own."""
        if self._balance_step_s is not None:
            return WARM_UP_S + SEEN_S + MOST_STEPS * self._balance_step_s
        known = self._learnt / f"{demand.rate_rps}-{demand.clients}"
        if known.exists():
            return MONITORS_LEARN_S if self._monitors else 0.0
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
        return WARM_UP_S

    def is_calm(self) -> bool:
        """As of any policy; balanced weights in calm are not the configured ones."""
        return super().is_calm() if self._balance_step_s is None else self.judges_calm()

    @property
    def _learnt(self) -> Path:
        """Folder of what this policy has learnt in this lab."""
        watched = "monitors" if self._monitors else "alone"
        words = self.lab.balancer.balance, self._law, self._mode, watched, *map(str, self.scenario.quotas)
        return LAB_DIR / "learnt" / "-".join(words)


def _keep(file: Path, place: Path) -> None:
    """Copies a file, if it is there."""
    if file.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


class Working(Background):
    """Does something in a thread; it gets an event that is set when it is to end."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        super().__init__(name)
        self._do = work

    def _run(self) -> None:
        self._do(self._end)


class SampleRunner(PolicyRunner):
    """A peer that decides once a second on the monitors' Samples; weights are set on HAProxy's admin socket."""

    def __init__(self, lab: Lab, scenario: Scenario, decide: Decider) -> None:
        super().__init__(lab, scenario)
        self._decide = decide

    def begin(self) -> None:
        self.stack.callback(stop_programs, self.lab, "nats-server")
        start_bus(self.lab)
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.listener = listener = self.stack.enter_context(monitored(self.lab))
        self.working = self.stack.enter_context(Working("the policy", partial(self._run, listener)))

    def _run(self, listener: BusListener, over: threading.Event) -> None:
        start = len(listener.heard)
        weights = {host.name: BASE_WEIGHT for host in self.lab.hosts}
        while not over.wait(INTERVAL_S):
            fresh = listener.heard[start:]
            start += len(fresh)
            look = look_of(time.monotonic(), fresh, weights)
            weights = self._decide(look).weights
            self._put(weights)

    def _put(self, weights: dict[str, int]) -> None:
        set_weights(self.lab, weights)


class AgentRunner(SampleRunner):
    """A peer whose weights HAProxy itself fetches, by `agent-check`: an agent for each host answers with a share."""

    def __init__(self, lab: Lab, scenario: Scenario, decide: Decider) -> None:
        super().__init__(lab, scenario, decide)
        self._agents = self.stack.enter_context(
            Agents([host.name for host in lab.hosts], inter_ms=round(1e3 * INTERVAL_S))
        )
        self.lines = self._agents.lines

    def _put(self, weights: dict[str, int]) -> None:
        self._agents.answer({server: round(100 * weight / BASE_WEIGHT) for server, weight in weights.items()})


def look_of(now_s: float, samples: Sequence[Sample], weights: dict[str, int]) -> Look:
    """A look made of one interval's Samples and of the present weights."""
    seen = []
    for server, weight in weights.items():
        of_server = [sample for sample in samples if sample.node == server]
        counts = [(sample.traffic.rps or 0.0) * sample.period_s if sample.traffic else 0.0 for sample in of_server]
        times = [sample.traffic.rt_mean_ms if sample.traffic else None for sample in of_server]
        timed = [(count, ms) for count, ms in zip(counts, times, strict=True) if ms is not None and count > 0]
        used = [
            sample.cpu.utilisation
            for sample in of_server
            if sample.cpu is not None and sample.cpu.utilisation is not None
        ]
        total = math.fsum(count for count, _ in timed)
        seen.append(
            Seen(
                server,
                BASE_WEIGHT,
                weight,
                requests=round(math.fsum(counts)),
                rt_mean_ms=math.fsum(count * ms for count, ms in timed) / total if total else None,
                cpu_idle=1.0 - math.fsum(used) / len(used) if used else None,
            )
        )
    return Look(now_s, seen)
