"""Who sets the weights of the real HAProxy during a run, by policy."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slackwater.core.config import Law
from slackwater.core.messages import WSENGINE, Change, Mode, Sample, Verdict
from slackwater.detector.service import BASELINES
from slackwater.lbengine.decision.evenness import SEEN_S
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.bus import STATE_DIR, forget
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.controller import Controller
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LAB_DIR
from slackwater_lab.cluster.peers import start
from slackwater_lab.experiment.decisions import Look, Oracle, Seen
from slackwater_lab.experiment.scenarios import Scenario
from slackwater_lab.experiment.steady import WARM_UP_S, at_baseline, set_weights, stop_programs

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
        for background in (self.listener, self.judged, self.changes):
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
        set_weights(self.lab, self._decide(Look(seen, self.scenario.load)))


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
