"""Measures the time back: how soon all weights are at the baseline again when a neighbour has gone, kind by kind."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.cluster import machine
from lab.cluster.balancer import BASE_WEIGHT, Snapshot
from lab.cluster.bus import POOL
from lab.cluster.commit import commit
from lab.cluster.controller import Controller
from lab.cluster.lab import Lab
from lab.cluster.load import Demand, Stream
from lab.cluster.paths import LabError
from lab.experiment.balancer_watch import (
    BalancerWatch,
    back_for_good,
    first_reduction,
    first_rise,
    lowered,
    share,
    steps,
    weights_at,
)
from lab.experiment.measures import figures
from lab.experiment.run import MARGIN_S
from lab.experiment.steady import SETTLE_S, WARM_UP_S, at_baseline, capacity_rps, shown, stay, wait_for
from slackwater.journal.journal import StateSpan

CALM_S = 5.0
"""With all weights at the baseline and every server judged calm, before the noise begins."""

CALM_WAIT_S = 60.0
"""How long a round waits for that; then Slackwater is started anew."""

BACK_WITHIN_S = 90.0
STAY_S = 3.0
"""The weights are back for good when they stay so long."""

PIECE_S = 10.0
"""The load's results come in pieces of this length, so a round takes up to so much longer."""

COLUMNS = (
    *("first change s", "drained", "trial s", "episode over s", "back s", "back in", "cut after"),
    *("errors / requests", "p95 noise ms", "p95 after ms"),
)
COUNTS = ("requests", "errors")


@dataclass(frozen=True)
class TimeBackTest:
    """`seconds` is how long each noise lasts; `load` is a share of the pool's capacity, used without a `demand`."""

    kinds: tuple[str, ...]
    rounds: int
    seconds: float
    neighbours: int
    demand: Demand | None
    load: float | None = None


def watched(history: Sequence[Snapshot], noisy: Mapping[str, float], off_s: float) -> dict[str, Any]:
    """What the balancer showed of a round; `noisy` has the instant at which each noisy server's noise began.

    Those of stress-ng begin one after the other, all end by `off_s`.
    """
    at_end = weights_at(history, off_s)
    back_s = back_for_good(history, BASE_WEIGHT, off_s, STAY_S)
    end_s = history[-1].mono_s if back_s is None else off_s + back_s
    late = lowered(history, off_s, end_s)
    servers = {}
    for name, on_s in noisy.items():
        first_s = first_reduction(history, name, on_s)
        servers[name] = {
            "detection_s": first_s if first_s is not None and first_s <= off_s - on_s else None,
            "drained": at_end[name] == 0,
            "cut_after": name in late,
            "trial_s": first_rise(history, name, off_s),
        }
    return {
        "noisy": servers,
        "back_s": back_s,
        "lowered": lowered(history, min(noisy.values()), end_s),
        "cut_after": [name for name in late if name not in noisy],
        "weights": [{"after_s": one.mono_s - off_s, **one.weight} for one in steps(history)],
    }


def episode(spans: Sequence[StateSpan], node: str, on_unix_s: float, off_unix_s: float) -> dict[str, Any]:
    """How many episodes the node had since the noise began, and how long after its end the last one was over.

    None: there was none, or it is not over.
    """
    own = [span for span in spans if span.node == node and span.last_unix_s >= on_unix_s]
    episodes = [span.since_unix_s for span in own if span.state == "interference"]
    last = max(episodes, default=None)
    calm = [span.since_unix_s for span in own if last is not None and span.state == "calm" and span.since_unix_s > last]
    return {"episodes": len(episodes), "episode_over_s": max(0.0, min(calm) - off_unix_s) if calm else None}


class Rounds:
    """The lab with Slackwater acting, and what the rounds share."""

    def __init__(self, lab: Lab, test: TimeBackTest, demand: Demand, progress: Callable[[str], None]) -> None:
        self.lab, self.test, self.demand, self.progress = lab, test, demand, progress
        self.controller = Controller(lab, "act")
        warm = lab.load(demand, WARM_UP_S)
        self.controller.start()
        warm.finish()

    def calm(self) -> bool:
        states = {verdict.state for verdict in self.controller.verdicts().values()}
        return states == {"calm"} and at_baseline(self.lab)

    def one_round(self, kind: str) -> dict[str, Any]:
        """From calm to calm; gives the round of the JSON."""
        with Stream(lambda seconds: self.lab.load(self.demand, seconds), PIECE_S) as load:
            return {"kind": kind, **self._measured(kind, load)}

    def _measured(self, kind: str, load: Stream) -> dict[str, Any]:
        test, lab = self.test, self.lab
        loud = lab.hosts[: test.neighbours]
        stay(lab, time.monotonic() + SETTLE_S, load)
        if not wait_for(lab, self.calm, CALM_WAIT_S, load):
            self.progress(f"not calm within {CALM_WAIT_S:g} s: Slackwater is started anew")
            self.controller.restart("act")
            if not wait_for(lab, self.calm, CALM_WAIT_S, load):
                raise LabError(f"not calm within {CALM_WAIT_S:g} s after Slackwater was started anew")
        with BalancerWatch(lab.balancer.snapshot) as watch:
            calm_s = time.monotonic()
            stay(lab, calm_s + CALM_S, load)
            noises = lab.noise_in(loud, kind, 1.0, test.seconds + MARGIN_S)
            on_s, on_unix_s = noises[0].on_mono_s, noises[0].on_unix_s
            stay(lab, time.monotonic() + test.seconds, load, noises)
            for noise in noises:
                noise.stop()
            off_s, off_unix_s = noises[-1].off_mono_s, noises[-1].off_unix_s
            assert off_s is not None
            assert off_unix_s is not None
            wait_for(
                lab,
                lambda: back_for_good(watch.history, BASE_WEIGHT, off_s, STAY_S) is not None,
                BACK_WITHIN_S + STAY_S,
                load,
            )
            end_s = time.monotonic()
        found = watched(watch.history, {noise.host: noise.on_mono_s for noise in noises}, off_s)
        requests = load.finish()
        phases = {
            name: figures(
                requests, requests.due_mono_s, begin, end, lost, share(watch.history, lab.noisy.name, begin, end)
            )
            for name, begin, end, lost in (
                ("calm", calm_s, on_s, 0),
                ("noise", on_s, off_s, 0),
                ("after", off_s, end_s, requests.lost_count),
            )
        }
        spans = self.controller.journal.states(POOL, on_unix_s) if self.controller.journal else []
        for name, one in found["noisy"].items():
            one.update(episode(spans, name, on_unix_s, off_unix_s))
        return {**found, "phases": phases}


def run(
    lab: Lab, test: TimeBackTest, progress: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All rounds; gives the JSON, and hands it to `keep` after each round. Progress goes to `progress`."""
    demand = test.demand
    if demand is None:
        capacity = capacity_rps(lab)
        demand = Demand(rate_rps=round((test.load or 0.3) * capacity, 1))
        progress(f"capacity {capacity:.0f} requests/s in calm; the load is {demand.rate_rps:g} requests/s")
    result: dict[str, Any] = {
        "machine": machine.describe(lab),
        "commit": commit(),
        "settings": {
            "kinds": test.kinds,
            "rounds": test.rounds,
            "seconds": test.seconds,
            "neighbours": test.neighbours,
            "load": test.load,
            "rate_rps": demand.rate_rps,
        },
        "rounds": [],
    }
    progress(f"warming up for {WARM_UP_S:g} s")
    measured = Rounds(lab, test, demand, progress)
    total = test.rounds * len(test.kinds)
    for _ in range(test.rounds):
        for kind in test.kinds:
            found = measured.one_round(kind)
            result["rounds"].append(found)
            result["summary"] = summary(result["rounds"])
            keep(result)
            progress(f"round {len(result['rounds'])} of {total}: {sentence(found)}")
    return result


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over the rounds in which a weight was lowered: the times back, how many came back, healthy servers cut after."""
    moved = [one for one in rounds if one["lowered"]]
    back = [one["back_s"] for one in moved if one["back_s"] is not None]
    return {
        "median_s": statistics.median(back) if back else None,
        "worst_s": max(back, default=None),
        "back": len(back),
        "of": len(moved),
        "untouched": len(rounds) - len(moved),
        "cut_after": sum(len(one["cut_after"]) for one in rounds),
    }


def summary_line(found: dict[str, Any]) -> str:
    """The summary in a line."""
    untouched = f"; no weight moved in {found['untouched']}" if found["untouched"] else ""
    return (
        f"back: median {shown(found['median_s'])} s, worst {shown(found['worst_s'])} s, "
        f"{found['back']} of {found['of']}{untouched}; healthy servers cut after the noise: {found['cut_after']}"
    )


def slowest(found: dict[str, Any], key: str) -> float | None:
    """The longest time over the noisy servers that have one."""
    return max((one[key] for one in found["noisy"].values() if one[key] is not None), default=None)


def drained(found: dict[str, Any]) -> int:
    return sum(one["drained"] for one in found["noisy"].values())


def sentence(found: dict[str, Any]) -> str:
    """A round in a line."""
    if not found["lowered"]:
        return f"{found['kind']}: no weight moved"
    back = "not back" if found["back_s"] is None else f"back after {found['back_s']:.1f} s"
    cut = f"; healthy servers cut after the noise: {', '.join(found['cut_after'])}" if found["cut_after"] else ""
    return (
        f"{found['kind']}: first change after {shown(slowest(found, 'detection_s'), '.2f')} s, "
        f"{drained(found)} drained, tried again after {shown(slowest(found, 'trial_s'))} s, "
        f"episode over after {shown(slowest(found, 'episode_over_s'))} s, {back}{cut}"
    )


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Rows of the table: a kind a row, medians over its rounds, sums of what is counted."""

    def middle(values: Sequence[float | None], form: str = ".1f") -> str:
        known = [value for value in values if value is not None]
        return shown(statistics.median(known) if known else None, form)

    made = []
    for kind in result["settings"]["kinds"]:
        own = [one for one in result["rounds"] if one["kind"] == kind]
        found = summary(own)
        requests, errors = (sum(part[key] for one in own for part in one["phases"].values()) for key in COUNTS)
        made.append(
            [
                *(kind, middle([slowest(one, "detection_s") for one in own], ".2f")),
                *(f"{sum(map(drained, own))} of {sum(len(one['noisy']) for one in own)}",),
                *(middle([slowest(one, key) for one in own]) for key in ("trial_s", "episode_over_s")),
                *(shown(found["median_s"]), f"{found['back']} of {found['of']}", str(found["cut_after"])),
                f"{errors}/{requests}",
                *(middle([one["phases"][name]["p95_ms"] for one in own]) for name in ("noise", "after")),
            ]
        )
    return made
