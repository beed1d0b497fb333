"""Scenario `all-noisy`: a neighbour in every host, so that no weight helps; then the second stage retunes the servers.

Each round measures the same noise twice: with the weights alone, and after the second stage has done its work. The
clients are a closed loop. php-fpm's children are as many as serve best in calm.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.cluster import machine
from lab.cluster.controller import BUS_LISTEN, CONTROLLER_FILE, POOL, Controller
from lab.cluster.lab import Lab
from lab.cluster.load import Demand
from lab.cluster.paths import LabError
from lab.cluster.retunable import KEY_FILE, make_keys, start_wsengines
from lab.cluster.spawn import wait_until
from lab.stories.measure import Figures, figures
from lab.stories.scenario import at_baseline, shown, stay
from slackwater.config import Law
from slackwater.messages import PUT_BACK, Change, Mode

CALM_CHILDREN = 2
CHILDREN = "php_fpm.max_children"
KNOBS = {
    CHILDREN: "[1, 32]",
    "apache.max_request_workers": "[64, 512]",
    "apache.keepalive_timeout": "[1, 120]",
}
"""Knobs that this scenario can turn, with the bounds that the hosts' wsengines get."""
WARM_UP_S = 10.0
BEGIN_S = 2.0
"""After the noise begins, and after the last node is retuned, before it is measured."""
RETUNED_WITHIN_S = 60.0
BACK_WITHIN_S = 90.0
LEAVE_AFTER_S = 5.0
PHASES = ("calm", "without", "with")
MANY = 1_000_000


@dataclass(frozen=True)
class Plan:
    """`seconds` is the length of what is measured in each phase."""

    noise: str
    intensity: float
    seconds: float
    rounds: int
    clients: int
    knobs: Sequence[str] = (CHILDREN,)
    """Those that the hosts' wsengines may turn."""


class RetuningController(Controller):
    """The controller in `act` mode, with the second stage; it enters after the phase without it has been measured."""

    def __init__(self, lab: Lab, no_room_after_s: float, law: Law = "optimal", **settings: str | float) -> None:
        """`settings` are further ones of `[retune]`."""
        rows: dict[str, str | float] = {
            "mode": "act",
            "order_key": str(KEY_FILE),
            "no_room_after_s": no_room_after_s,
            "long_after_s": no_room_after_s,
            "leave_after_s": LEAVE_AFTER_S,
            "lease_s": 20.0,
            "reload_min_interval_s": 3.0,
            **settings,
        }
        self._retune = "\n[retune]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rows.items())
        super().__init__(lab, "act", law)

    def write(self, mode: Mode) -> None:
        super().write(mode)
        with CONTROLLER_FILE.open("a") as file:
            file.write(self._retune)

    def turned(self, since_unix_s: float) -> dict[str, Change]:
        """The last Change of each node's wsengine since then."""
        if self.journal is None:
            return {}
        found = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return {change.target: change for change in found if change.by == "wsengine" and change.applied}

    def orders(self, since_unix_s: float) -> list[Change]:
        """The second stage's Orders since then, the first one first."""
        if self.journal is None:
            return []
        found = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return [change for change in found if change.by == "retune" and change.what.startswith("order ")]


def one_round(lab: Lab, controller: RetuningController, plan: Plan) -> dict[str, Any]:
    """Calm, noise without and with the second stage, and the way back."""
    wait_until(lambda: at_baseline(lab), "all weights at the baseline", BACK_WITHIN_S, watch=lab.programs)
    most_s = 3 * plan.seconds + 2 * BEGIN_S + RETUNED_WITHIN_S
    load = lab.load(Demand(clients=plan.clients), BEGIN_S + most_s)
    calm_s = load.begin_mono_s + BEGIN_S
    stay(lab, calm_s + plan.seconds, load)
    noises = lab.noise_in(lab.hosts, plan.noise, plan.intensity, most_s)
    on_unix_s, on_s = time.time(), time.monotonic()
    stay(lab, on_s + BEGIN_S + plan.seconds, load)

    def retuned() -> bool:
        turned = controller.turned(on_unix_s)
        return len(turned) == len(lab.hosts) and at_baseline(lab)

    wait_until(retuned, "all nodes retuned", RETUNED_WITHIN_S, watch=lab.programs)
    with_s = time.monotonic() + BEGIN_S
    values = {name: change.after for name, change in controller.turned(on_unix_s).items()}
    stay(lab, with_s + plan.seconds, load)
    for noise in noises:
        noise.stop()
    off_unix_s = time.time()

    def back() -> bool:
        turned = controller.turned(off_unix_s)
        return len(turned) == len(lab.hosts) and all(one.cause in PUT_BACK for one in turned.values())

    wait_until(back, "all nodes put back", BACK_WITHIN_S, watch=lab.programs)
    requests = load.finish()
    marks = {
        "calm": (calm_s, calm_s + plan.seconds),
        "without": (on_s + BEGIN_S, on_s + BEGIN_S + plan.seconds),
        "with": (with_s, with_s + plan.seconds),
    }
    phases: dict[str, Figures] = {name: figures(requests, *marks[name], None) for name in PHASES}
    failed = int((requests.status >= 400).sum()) + requests.lost_count
    return {"phases": phases, "values": values, "failed": failed, "ratio": ratio(phases)}


def allowed(knobs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Section -> name -> bounds, for the hosts' wsengines."""
    sections: dict[str, dict[str, str]] = {}
    for knob in knobs:
        section, name = knob.split(".")
        sections.setdefault(section, {})[name] = KNOBS[knob]
    return sections


def ratio(phases: dict[str, Figures]) -> float | None:
    """p95 with the second stage over p95 without."""
    with_ms, without_ms = phases["with"]["p95_ms"], phases["without"]["p95_ms"]
    return None if with_ms is None or not without_ms else with_ms / without_ms


def run(lab: Lab, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON of the run."""
    controller = RetuningController(lab, BEGIN_S + plan.seconds + 1.0)
    return run_rounds("all-noisy", lab, plan, controller, one_round, sentence, say)


def run_rounds(
    scenario: str,
    lab: Lab,
    plan: Plan,
    controller: RetuningController,
    one_round: Callable[[Lab, RetuningController, Plan], dict[str, Any]],
    sentence: Callable[[dict[str, Any]], str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All rounds of a scenario with the second stage; gives the JSON of the run."""
    if not lab.settings.retunable:
        raise LabError("this scenario needs a lab whose hosts can be retuned")
    facts = machine.describe(lab)
    make_keys()
    warm = lab.load(Demand(clients=plan.clients), WARM_UP_S)
    controller.start()
    start_wsengines(lab, POOL, BUS_LISTEN, allowed(plan.knobs))
    warm.finish()
    rounds = []
    for number in range(1, plan.rounds + 1):
        rounds.append(one_round(lab, controller, plan))
        say(f"round {number} of {plan.rounds}: {sentence(rounds[-1])}")
    settings = {"scenario": scenario, **plan.__dict__, "php_children": lab.settings.php_children}
    return {"machine": facts, "settings": settings, "rounds": rounds, "ratio": median_ratio(rounds)}


def median_ratio(rounds: list[dict[str, Any]]) -> float | None:
    ratios = [one["ratio"] for one in rounds if one["ratio"] is not None]
    return statistics.median(ratios) if ratios else None


def sentence(found: dict[str, Any]) -> str:
    """A round in a line."""
    p95 = ", ".join(f"{name} {shown(found['phases'][name]['p95_ms'])}" for name in PHASES)
    values = ", ".join(f"{name} {value}" for name, value in sorted(found["values"].items()))
    return f"p95 ms {p95}; with/without {shown(found['ratio'], '.2f')}; failed {found['failed']}; turned to {values}"
