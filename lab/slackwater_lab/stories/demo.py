"""The demo, shown as it happens: calm, a noisy neighbour with static weights, the same neighbour with Slackwater beside
the balancer alone, and with monitors on the web servers too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.table import Table

from slackwater.core.journal.journal import JournalError
from slackwater.core.messages import Change
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.controller import Controller
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Load
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.terminal import console, shown
from slackwater_lab.experiment.balancer_watch import BalancerWatch, first_at, first_reduction, share
from slackwater_lab.experiment.measures import Figures, figures
from slackwater_lab.experiment.steady import (
    SETTLE_S,
    WARM_UP_S,
    at_baseline,
    capacity_rps,
    default_demand,
    stay,
    wait_for,
)

KIND, INTENSITY = "llcprobe", 1.0
CALM_SHARE = 0.5
"""Length of the calm act as a share of the others'."""
BETWEEN_S = 12.0
RECOVERY_S = 6.0
BACK_WITHIN_S = 20.0
"""Time after the load within which the weights should be the baseline again."""
MARGIN_S = 3.0
GOAL = 0.5
"""With Slackwater p95 must be below this share of that with static weights."""

LOOK_AT = (
    "all servers calm, with equal weights and nearly equal p95.",
    "{noisy} is `slow` and its p95 rises; weights stay, changes are only recorded (`would set`).",
    "{noisy}'s weight falls within a second. A few requests every few seconds show whether it is still slow.",
    "{noisy} is in state `interference` with its cause; its weight falls, and is back soon after the neighbour left.",
)
"""The things to look at on the page in each act."""

TOO_OLD_S = 60.0
LAG_S = 0.8


@dataclass
class Act:
    """The figures of an act."""

    title: str
    figures: Figures
    detection_s: float | None = None
    restored_s: float | None = None


def worth_showing(change: Change, last: dict[tuple[str, str], int]) -> bool:
    """Whether to show a Change: of a ramp only the first and the last, and none of a trial with a few requests.

    `last` keeps the direction of each value (what it is, and whose).
    """
    if change.cause == "tried":
        return False
    if not isinstance(change.before, (int, float)) or not isinstance(change.after, (int, float)):
        return True
    direction = 1 if change.after > change.before else -1
    known = last.get((change.what, change.target))
    last[change.what, change.target] = direction
    return direction != known or change.after == BASE_WEIGHT


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass
class Narrator:
    """Shows what the controller found and did, from its journal, in the order in which it happened."""

    controller: Controller
    progress: Callable[[str], None]
    begin_unix_s: float = field(default_factory=time.time)
    states: dict[str, str] = field(default_factory=dict)
    """Each node's last state, also by a controller that was started again since or had other sources."""
    shown_ids: set[str] = field(default_factory=set)
    last: dict[tuple[str, str], int] = field(default_factory=dict)
    pending: list[tuple[float, str]] = field(default_factory=list)

    def look(self) -> None:
        """Looks once. What happened is shown a little later, since the journal's writers are not in step."""
        for node, verdict in sorted(self.controller.verdicts().items()):
            before = self.states.get(node, "calm")
            if verdict.state != before:
                self.add(verdict.since_unix_s, f"{node}: {before} -> {verdict.state}: {'; '.join(verdict.path)}")
            self.states[node] = verdict.state
        for change in reversed(self._changes()):
            if change.id not in self.shown_ids and worth_showing(change, self.last):
                verb = change.what if change.applied else f"would set {change.what}"
                moved = f"{_shown(change.before)} -> {_shown(change.after)}"
                self.add(change.time_unix_s, f"{change.target}: {verb} {moved} ({change.why})")
            self.shown_ids.add(change.id)
        self.flush(time.time() - LAG_S)

    def _changes(self) -> list[Change]:
        try:
            journal = self.controller.journal
            return journal.changes(POOL, 200, time.time() - TOO_OLD_S) if journal else []
        except JournalError:  # it is being made anew
            return []

    def add(self, time_unix_s: float, text: str) -> None:
        self.pending.append((time_unix_s, text))

    def flush(self, until_unix_s: float) -> None:
        self.pending.sort()
        while self.pending and self.pending[0][0] <= until_unix_s:
            at_unix_s, text = self.pending.pop(0)
            self.progress(f"  {at_unix_s - self.begin_unix_s:6.1f} s  {text}")


def keep(lab: Lab, until_mono_s: float, story: Narrator, load: Load, noise: Noise | None = None) -> None:
    """Waits for an instant and shows the story meanwhile."""
    while (left := until_mono_s - time.monotonic()) > 0:
        stay(lab, time.monotonic() + min(left, 0.1), load, [noise] if noise else [])
        story.look()


def quiet_act(lab: Lab, title: str, seconds: float, demand: Demand, story: Narrator) -> Act:
    with BalancerWatch(lab.balancer.snapshot) as watch:
        load = lab.load(demand, SETTLE_S + seconds)
        begin_s = load.begin_mono_s + SETTLE_S
        end_s = begin_s + seconds
        keep(lab, end_s, story, load)
        requests = load.finish()
    part = share(watch.history, lab.noisy.name, begin_s, end_s)
    measured = figures(requests, requests.due_mono_s, begin_s, end_s, noisy_share=part)
    return Act(title, measured)


def loud_act(lab: Lab, title: str, seconds: float, demand: Demand, story: Narrator) -> Act:
    """A neighbour for some seconds, and the time after it until the weights are back."""
    name = lab.noisy.name
    with BalancerWatch(lab.balancer.snapshot) as watch:
        load = lab.load(demand, SETTLE_S + seconds + RECOVERY_S)
        keep(lab, load.begin_mono_s + SETTLE_S, story, load)
        noise = lab.noise(lab.noisy, KIND, INTENSITY, seconds + MARGIN_S)
        story.add(noise.on_unix_s, f"the neighbour in {name} begins")
        end_s = noise.on_mono_s + seconds
        keep(lab, end_s, story, load, noise)
        noise.stop()
        off_s = time.monotonic()
        story.add(time.time(), f"the neighbour in {name} ends")
        keep(lab, load.begin_mono_s + load.seconds - 0.2, story, load)
        requests = load.finish()
        story.flush(time.time())
        wait_for(lab, lambda: at_baseline(lab), BACK_WITHIN_S)  # the table shows if they did not come back
        time.sleep(0.2)  # for the watch to see it too
    noisy_share = share(watch.history, name, noise.on_mono_s, end_s)
    measured = figures(requests, requests.due_mono_s, noise.on_mono_s, end_s, requests.lost_count, noisy_share)
    return Act(
        title,
        measured,
        first_reduction(watch.history, name, noise.on_mono_s),
        first_at(watch.history, name, BASE_WEIGHT, off_s),
    )


def between(lab: Lab, change: Callable[[], None], demand: Demand, story: Narrator) -> None:
    """Load goes on while Slackwater is changed, and learns what calm is."""
    load = lab.load(demand, BETWEEN_S)
    change()
    keep(lab, load.begin_mono_s + load.seconds - 0.2, story, load)
    load.finish()


def table(acts: list[Act]) -> Table:
    shape = Table(
        "act", "p50 ms", "p95 ms", "p99 ms", "errors", "share of host1", "first change s", "back s", title="Demo"
    )
    for act in acts:
        shape.add_row(
            act.title,
            *(shown(act.figures[key]) for key in ("p50_ms", "p95_ms", "p99_ms")),
            str(act.figures["errors"]),
            shown(act.figures["noisy_share"], ".2f"),
            shown(act.detection_s, ".2f"),
            shown(act.restored_s, ".2f"),
        )
    return shape


def judge(static: Act, *acting: Act) -> str | None:
    """A sentence about an outcome that missed the demo's goal; None when p95 fell enough in each act."""
    before = static.figures["p95_ms"]
    for act in acting:
        after = act.figures["p95_ms"]
        if before is None or after is None:
            return "an act without a single answered request"
        if after >= GOAL * before:
            return (
                f"p95 is {after:.1f} ms in the act `{act.title}`, not below half of {before:.1f} ms without Slackwater"
            )
    return None


def run(lab: Lab, seconds: float, linger: bool, progress: Callable[[str], None]) -> str | None:
    """Plays the demo on a fresh lab; gives what is wrong with the outcome, if anything."""
    rate_rps, share = default_demand(lab.settings)
    if share is not None:
        rate_rps = round(share * capacity_rps(lab), 1)
    demand = Demand(rate_rps=rate_rps)
    controller = Controller(lab, "observe", monitors=False)
    warm = lab.load(demand, WARM_UP_S)
    progress(f"\nOpen {controller.dashboard} now (it answers in some seconds). Four acts follow.")
    progress(f"The web pages under load: {lab.balancer.url}{lab.app.paths[0]}")
    controller.start()
    warm.finish()
    story = Narrator(controller, progress)
    noisy, calm_s = lab.noisy.name, CALM_SHARE * seconds

    def announce(number: int, words: str) -> None:
        progress(f"\nAct {number}: {words}")
        progress(f"  Look at: {LOOK_AT[number - 1].format(noisy=noisy)}")

    announce(
        1, f"{calm_s:g} s of calm, {rate_rps:g} requests/s over {len(lab.hosts)} hosts; nothing of ours runs there"
    )
    acts = [quiet_act(lab, "calm", calm_s, demand, story)]
    announce(2, f"{seconds:g} s of a neighbour ({KIND}) in {noisy}, static weights; Slackwater only observes")
    acts.append(loud_act(lab, "neighbour, static weights", seconds, demand, story))
    progress("\nBetween the acts: Slackwater is started again, now in mode `act`")
    between(lab, lambda: controller.restart("act"), demand, story)
    announce(3, f"{seconds:g} s of the same neighbour; Slackwater acts by what the balancer sees")
    acts.append(loud_act(lab, "neighbour, balancer alone", seconds, demand, story))
    progress("\nBetween the acts: each host gets a monitor")
    between(lab, controller.add_monitors, demand, story)
    announce(4, f"{seconds:g} s of the same neighbour; Slackwater acts by what the monitors see")
    acts.append(loud_act(lab, "neighbour, monitors", seconds, demand, story))
    console().print(table(acts))
    wrong = judge(*acts[1:])
    progress(
        f"not as it should be: {wrong}" if wrong else "p95 beside the neighbour was brought down to less than half"
    )
    if linger:
        progress(f"it stays up with load and dashboard ({controller.dashboard}) until Ctrl-C")
        try:
            while True:
                load = lab.load(demand, 60.0)
                keep(lab, load.begin_mono_s + 59.8, story, load)
                load.finish()
        except KeyboardInterrupt:
            progress("going down")
    return wrong
