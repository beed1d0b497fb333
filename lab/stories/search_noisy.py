"""Scenario `search`: a neighbour in every host for long, and `policy = "search"` finds the servers' values by trying.

Each round is one episode, as long as the searches take: measured with the weights alone before them, and with what they
found after them. What a round found is remembered, so the next one is short. The clients are a closed loop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from lab.cluster.controller import STATE_DIR
from lab.cluster.lab import Lab
from lab.cluster.load import Demand, Requests
from lab.cluster.paths import LabError
from lab.stories.all_noisy import BEGIN_S, PHASES, Plan, RetuningController, ratio, run_rounds
from lab.stories.measure import Figures, figures
from lab.stories.scenario import at_baseline, shown
from slackwater.messages import PUT_BACK, Change

MEASURE_S = 10.0
"""Each try of a search."""
LEAVE_AFTER_S = 10.0
PIECE_S = 10.0
"""While nothing is measured the load comes in pieces of this length, and after each it is seen how far it is."""
SEARCHED_WITHIN_S = 400.0
BACK_WITHIN_S = 90.0


class Episode:
    """The load of one round, in pieces; `failed` counts over all of them."""

    def __init__(self, lab: Lab, clients: int) -> None:
        self._lab = lab
        self._demand = Demand(clients=clients)
        self.failed = 0

    def _ask(self, seconds: float) -> tuple[float, Requests]:
        load = self._lab.load(self._demand, seconds)
        requests = load.finish()
        self._lab.check()
        self.failed += int((requests.status >= 400).sum()) + requests.lost_count
        return load.begin_mono_s, requests

    def measure(self, seconds: float) -> Figures:
        begin_s, requests = self._ask(BEGIN_S + seconds)
        return figures(requests, begin_s + BEGIN_S, begin_s + BEGIN_S + seconds, None)

    def until(self, happened: Callable[[], bool], what: str, within_s: float) -> float:
        """Load until something has happened; the seconds that it took. Raises LabError."""
        begin_s = time.monotonic()
        while not happened():
            if (took_s := time.monotonic() - begin_s) > within_s:
                raise LabError(f"waited {took_s:.0f} s in vain for: {what}")
            self._ask(PIECE_S)
        return time.monotonic() - begin_s


def told(controller: RetuningController, since_unix_s: float) -> dict[str, Change]:
    """The Order of each node that says how its search ended."""
    found: dict[str, Change] = {}
    for order in controller.orders(since_unix_s):
        if order.cause == "search_over":
            found.setdefault(order.target, order)
    return found


def one_round(lab: Lab, controller: RetuningController, plan: Plan) -> dict[str, Any]:
    """One episode, from calm to calm."""
    episode = Episode(lab, plan.clients)
    episode.until(lambda: at_baseline(lab), "all weights at the baseline", BACK_WITHIN_S)
    phases = {"calm": episode.measure(plan.seconds)}
    most_s = 3 * plan.seconds + SEARCHED_WITHIN_S + 10 * PIECE_S
    noises = lab.noise_in(lab.hosts, plan.noise, plan.intensity, most_s)
    on_unix_s = time.time()
    phases["without"] = episode.measure(plan.seconds)

    def searched() -> bool:
        return len(told(controller, on_unix_s)) == len(lab.hosts)

    took_s = episode.until(searched, "the end of all searches", SEARCHED_WITHIN_S)
    phases["with"] = episode.measure(plan.seconds)
    for noise in noises:
        noise.stop()
    off_unix_s = time.time()

    def back() -> bool:
        turned = controller.turned(on_unix_s)
        return all(one.cause in PUT_BACK for one in turned.values())

    searches = {name: order.why for name, order in told(controller, on_unix_s).items()}
    episode.until(back, "all nodes put back", BACK_WITHIN_S)
    return {
        "phases": phases,
        "searches": searches,
        "search_s": took_s,
        "back_s": time.time() - off_unix_s,
        "failed": episode.failed,
        "ratio": ratio(phases),
    }


def run(lab: Lab, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON of the run."""
    controller = RetuningController(
        lab, BEGIN_S + plan.seconds + 1.0, policy="search", search_measure_s=MEASURE_S, leave_after_s=LEAVE_AFTER_S
    )
    found = run_rounds("search", lab, plan, controller, one_round, sentence, say)
    return {**found, "remembered": json.loads((STATE_DIR / "retune.json").read_text())["found"]}


def sentence(found: dict[str, Any]) -> str:
    """A round in a few lines."""
    p95 = ", ".join(f"{name} {shown(found['phases'][name]['p95_ms'])}" for name in PHASES)
    searches = "".join(f"\n  {name}: {why}" for name, why in sorted(found["searches"].items()))
    return (
        f"p95 ms {p95}; with/without {shown(found['ratio'], '.2f')}; failed {found['failed']}; "
        f"searched for {found['search_s']:.0f} s{searches}"
    )
