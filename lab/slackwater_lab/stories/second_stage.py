"""Scenarios `all-noisy` and `search`: a neighbour in every host, so that no weight helps; the second stage then retunes
the servers.

Each round measures the same noise twice: with the weights alone, and after the second stage has done its work, by its
knowledge base or, in `search`, by trying values. What a search found is remembered, so the next one is short. The
clients are a closed loop. php-fpm's children are as many as serve best in calm.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slackwater.core.messages import PUT_BACK
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.bus import POOL, STATE_DIR
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Stream
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.retunable import make_keys, start_wsengines
from slackwater_lab.cluster.terminal import shown
from slackwater_lab.experiment.measures import Figures, figures
from slackwater_lab.experiment.retuning import RetuningController
from slackwater_lab.experiment.steady import WARM_UP_S, at_baseline, stay, wait_for

CALM_CHILDREN = 2
CHILDREN = "php_fpm.max_children"
KNOBS = {
    CHILDREN: "[1, 32]",
    "apache.max_request_workers": "[64, 512]",
    "apache.keepalive_timeout": "[1, 120]",
}
"""Knobs that can be set, with the bounds that the hosts' wsengines get."""
BEGIN_S = 2.0
"""Pause before a phase is measured."""
PIECE_S = 10.0
"""The load comes in pieces of this length."""
RETUNED_WITHIN_S = {"all-noisy": 240.0, "search": 400.0}
"""Scenario -> time within which all nodes must be retuned."""
BACK_WITHIN_S = 180.0
"""Longer than a node takes that still looks affected, until its recheck (`slackwater/retune/stage.py`)."""
SEARCH: dict[str, Any] = {"policy": "search", "search_measure_s": 10.0, "leave_after_s": 10.0}
"""Settings of `[retune]`, for the scenario `search`."""
PHASES = ("calm", "without", "with")


@dataclass(frozen=True)
class SecondStageTest:
    """The test; `seconds` is the measured length of each phase."""

    scenario: str
    noise: str
    seconds: float
    rounds: int
    clients: int
    knobs: Sequence[str] = (CHILDREN,)
    """The knobs that the hosts' wsengines may set."""


class Round:
    """One episode, from calm to calm."""

    def __init__(self, lab: Lab, controller: RetuningController, test: SecondStageTest) -> None:
        self._lab, self._controller, self._test = lab, controller, test
        self._noises: list[Noise] = []
        self._since_unix_s = 0.0

    def _retuned(self) -> dict[str, str]:
        """The nodes that are done, with the value that was set or how their search ended."""
        if self._test.scenario == "all-noisy":
            return {
                name: str(change.after) for name, change in self._controller.knob_changes(self._since_unix_s).items()
            }
        orders = [order for order in self._controller.orders(self._since_unix_s) if order.cause == "search_over"]
        return {order.target: order.why for order in reversed(orders)}

    def _all_retuned(self) -> bool:
        done = len(self._retuned()) == len(self._lab.hosts)
        return done and (self._test.scenario == "search" or at_baseline(self._lab))

    def _put_back(self) -> bool:
        changes = self._controller.knob_changes(self._since_unix_s)
        return all(change.cause in PUT_BACK for change in changes.values())

    def _wait(self, happened: Callable[[], bool], awaited: str, within_s: float, load: Stream) -> float:
        begin_s = time.monotonic()
        if not wait_for(self._lab, happened, within_s, load):
            raise LabError(f"waited {within_s:g} s in vain for: {awaited}")
        return time.monotonic() - begin_s

    def _phase(self, load: Stream) -> tuple[float, float]:
        """Goes on for a phase; gives its begin and end, without what is not measured."""
        begin_s = time.monotonic() + BEGIN_S
        stay(self._lab, begin_s + self._test.seconds, load)
        return begin_s, begin_s + self._test.seconds

    def run(self) -> dict[str, Any]:
        """Gives the round of the JSON. Raises LabError."""
        lab, test, within_s = self._lab, self._test, RETUNED_WITHIN_S[self._test.scenario]
        marks = {}
        with Stream(lambda seconds: lab.load(Demand(clients=test.clients), seconds), PIECE_S) as load:
            self._wait(lambda: at_baseline(lab), "all weights at the baseline", BACK_WITHIN_S, load)
            marks["calm"] = self._phase(load)
            noises = lab.noise_in(lab.hosts, test.noise, 1.0, 3 * (test.seconds + BEGIN_S) + within_s)
            self._since_unix_s = time.time()
            marks["without"] = self._phase(load)
            took_s = self._wait(self._all_retuned, "all nodes retuned", within_s, load)
            values = self._retuned()
            marks["with"] = self._phase(load)
            for noise in noises:
                noise.stop()
            back_s = self._wait(self._put_back, "all nodes put back", BACK_WITHIN_S, load)
            requests = load.finish()
        phases = {name: figures(requests, requests.due_mono_s, *mark) for name, mark in marks.items()}
        failed = int((requests.status >= 400).sum()) + requests.lost_count
        return {
            "phases": phases,
            "values": values,
            "retuned_s": took_s,
            "back_s": back_s,
            "failed": failed,
            "ratio": ratio(phases),
        }


def allowed(knobs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Section -> name -> bounds, for the hosts' wsengines."""
    sections: dict[str, dict[str, str]] = {}
    for knob in knobs:
        section, name = knob.split(".")
        sections.setdefault(section, {})[name] = KNOBS[knob]
    return sections


def ratio(phases: Mapping[str, Figures]) -> float | None:
    """p95 with the second stage over p95 without."""
    with_ms, without_ms = phases["with"]["p95_ms"], phases["without"]["p95_ms"]
    return None if with_ms is None or not without_ms else with_ms / without_ms


def run(lab: Lab, test: SecondStageTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON of the run."""
    searching = test.scenario == "search"
    more: dict[str, Any] = SEARCH if searching else {}
    controller = RetuningController(lab, BEGIN_S + test.seconds + 1.0, **more)
    facts = machine.describe(lab)
    make_keys()
    warm = lab.load(Demand(clients=test.clients), WARM_UP_S)
    controller.start()
    start_wsengines(lab, POOL, allowed(test.knobs))
    warm.finish()
    rounds = []
    for number in range(1, test.rounds + 1):
        rounds.append(Round(lab, controller, test).run())
        progress(f"round {number} of {test.rounds}: {sentence(rounds[-1])}")
    settings = {**asdict(test), "php_children": lab.settings.php_children, "cpus": lab.settings.cpus}
    result = {"machine": facts, "settings": settings, "rounds": rounds, "ratio": median_ratio(rounds)}
    if searching:
        result["remembered"] = json.loads((STATE_DIR / "retune.json").read_text())["values"]
    return result


COLUMNS = {
    "requests": "d",
    "errors": "d",
    "rps": ".1f",
    "mean_ms": ".1f",
    "p50_ms": ".1f",
    "p95_ms": ".1f",
    "p99_ms": ".1f",
}
"""Column of the table -> format."""


def medians(rounds: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows of the table: a phase a row, medians over the rounds (requests and errors: the sum)."""
    rows = []
    for name in PHASES:
        row = [name]
        for key, form in COLUMNS.items():
            values = [result["phases"][name][key] for result in rounds if result["phases"][name][key] is not None]
            value = (sum(values) if form == "d" else statistics.median(values)) if values else None
            row.append(shown(value, form))
        rows.append(row)
    return rows


def median_ratio(rounds: Sequence[dict[str, Any]]) -> float | None:
    ratios = [result["ratio"] for result in rounds if result["ratio"] is not None]
    return statistics.median(ratios) if ratios else None


def sentence(result: dict[str, Any]) -> str:
    """A round's figures, for the terminal."""
    p95 = ", ".join(f"{name} {shown(result['phases'][name]['p95_ms'])}" for name in PHASES)
    values = "".join(f"\n  {name}: {value}" for name, value in sorted(result["values"].items()))
    return (
        f"p95 ms {p95}; with/without {shown(result['ratio'], '.2f')}; failed {result['failed']}; "
        f"retuned within {result['retuned_s']:.0f} s{values}"
    )
