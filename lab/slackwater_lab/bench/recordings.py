#!/usr/bin/env python3
"""Makes fresh recordings in the lab, trains a model on one set and scores it on the others (`make recordings`; root).

The second set has other seeds, another application, other loads and another balance than the first, and two kinds of
noise that the first lacks, so that its scores show what to expect elsewhere. The third is of virtual machines, which do
not see the time that a neighbour takes. Recordings without a neighbour are the longest, since false episodes are rare.
For a quiet machine: other programs are noisy neighbours too. What is recorded already is kept, so that a broken-off run
goes on where it was, and `--next` makes one recording only.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater_lab.bench.harness import options, table
from slackwater_lab.cluster.terminal import shown

OVERHEAD_S = 60.0
"""What each recording takes beside its own length: laying out the lab, starting virtual machines, measuring its
capacity, taking it down."""
TRAINED_KINDS = ("llcprobe", "dcopy", "cpu", "disk", "forks")
OTHER_KINDS = ("pagecache", "flood")
"""Only in the second set."""
APPS = ("events", "dokuwiki")


def _noises(kinds: tuple[str, ...], *intensities: float) -> str:
    return " ".join(
        [*(f"--noise {kind}" for kind in kinds), *(f"--intensity {intensity:g}" for intensity in intensities)]
    )


TRAIN_NOISES = _noises(TRAINED_KINDS, 0.6, 1.0)
FRESH_NOISES = _noises((*TRAINED_KINDS, *OTHER_KINDS), 0.7, 1.0)
CALM = "--swing --calm --disturbance all"
GUESTS = "--hosts uml --period-ms 10"
OTHER_GUESTS = "--hosts uml --period-ms 30"


@dataclass(frozen=True)
class Scene:
    """One recording: its set and name, and the options of `slackwater lab record`."""

    name: str
    options: str

    def seconds(self, noisy_s: float, calm_s: float) -> float:
        """Its length, which depends on whether it has neighbours."""
        return calm_s if "--calm" in self.options else noisy_s


JUDGED = {
    "shipped": ("fresh", ""),
    "new": ("fresh", "{model}"),
    "shipped-guests": ("guests", ""),
    "new-guests": ("guests", "{model}"),
    "shipped-on-first": ("train", ""),
}
"""Name in the files of scores -> the set, and what `slackwater detector evaluate --model` gets."""
SCENES = (  # in this order: who breaks off has a part of each set
    Scene("train/events-steady", f"--load 0.3 --seed 101 {TRAIN_NOISES}"),
    Scene("train/events-swing", f"--swing --seed 102 {TRAIN_NOISES}"),
    Scene("train/events-calm", f"{CALM} --seed 103"),
    Scene("fresh/dokuwiki-steady", f"--app dokuwiki --load 0.45 --seed 201 {FRESH_NOISES}"),
    Scene("fresh/events-other-load", f"--load 0.55 --seed 202 {FRESH_NOISES}"),
    Scene("fresh/dokuwiki-calm", f"--app dokuwiki {CALM} --seed 203"),
    Scene("fresh/events-calm", f"{CALM} --seed 205"),
    Scene("guests/steady", f"{OTHER_GUESTS} --load 0.45 --seed 206 {FRESH_NOISES}"),
    Scene("train/guests", f"{GUESTS} --swing --seed 106 {TRAIN_NOISES}"),
    Scene("train/guests-calm", f"{GUESTS} {CALM} --seed 107"),
    Scene("guests/swing", f"{OTHER_GUESTS} --swing --seed 207 {FRESH_NOISES}"),
    Scene("guests/calm", f"{OTHER_GUESTS} {CALM} --seed 208"),
    Scene("train/events-overload", f"--swing --overload --seed 105 {TRAIN_NOISES}"),
    Scene(
        "fresh/dokuwiki-leastconn-drain",
        f"--app dokuwiki --swing --drain --balance leastconn --seed 204 {FRESH_NOISES}",
    ),
    Scene("train/events-leastconn-drain", f"--swing --drain --balance leastconn --seed 104 {TRAIN_NOISES}"),
)


def call(argv: list[str], out: Path | None = None) -> None:
    """Runs a command, its output also into a file; ends this program when it fails."""
    print("$", shlex.join(argv), flush=True)
    if out is None:
        done = subprocess.run(argv, check=False)
    else:
        with out.open("w") as file:
            done = subprocess.run(argv, stdout=file, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(argv)}: ended with status {done.returncode}")


def missing(folder: Path) -> Iterator[tuple[Scene, Path]]:
    """The scenes that were not recorded yet, and where they go."""
    for scene in SCENES:
        out = folder / f"{scene.name}.parquet"
        if not out.exists():
            yield scene, out


def left_text(lengths_s: list[float]) -> str:
    minutes = sum(length_s + OVERHEAD_S for length_s in lengths_s) / 60
    return f"{len(lengths_s)} recordings to make: about {minutes:.0f} minutes"


def record(folder: Path, noisy_s: float, calm_s: float, only_next: bool) -> None:
    while todo := list(missing(folder)):
        scene, out = todo[0]
        seconds = scene.seconds(noisy_s, calm_s)
        print(left_text([scene.seconds(noisy_s, calm_s) for scene, _ in todo]), flush=True)
        begin_s = time.monotonic()
        out.parent.mkdir(parents=True, exist_ok=True)
        options = shlex.split(scene.options)
        call(["slackwater", "lab", "record", "--out", str(out), "--seconds", f"{seconds:g}", *options])
        print(f"{scene.name}: {time.monotonic() - begin_s:.0f} s", flush=True)
        if only_next:
            return


def train_and_score(folder: Path) -> None:
    """Trains on the first set, scores all judges, and compares the estimators of p95 on each application."""
    model = folder / "model.skops"
    call(["slackwater", "train", str(folder / "train"), "--out", str(model), "--report", str(folder / "report.html")])
    for name, (part, judge) in JUDGED.items():
        judged = [str(folder / part), "--model", judge.format(model=model), "--json"]
        call(["slackwater", "detector", "evaluate", *judged], folder / f"scores-{name}.json")
    for app in APPS:
        recordings = sorted(str(path) for path in folder.glob(f"*/{app}-*.parquet"))
        call(["slackwater", "detector", "tail", *recordings, "--json"], folder / f"tail-{app}.json")


def per_day_at_most(episodes: int, hours: float) -> float:
    """Upper end of the one-sided 95% confidence interval of a rate per day, for events that are counted (Poisson)."""
    from scipy.stats import chi2

    return float(chi2.ppf(0.95, 2 * episodes + 2)) / 2 / hours * 24


def page(folder: Path) -> str:
    """The scores as Markdown tables. Raises OSError when there are none yet."""
    scores = {name: json.loads((folder / f"scores-{name}.json").read_text()) for name in JUDGED}
    tails = {app: json.loads((folder / f"tail-{app}.json").read_text()) for app in APPS}
    parts = [judges(scores), *(kinds(name, scores[name]) for name in ("shipped", "new")), disturbances(scores)]
    return "\n\n".join("\n".join(part) for part in [*parts, estimators(tails)]) + "\n"


def judges(scores: dict[str, Any]) -> list[str]:
    """Each judge in a line."""
    rows = []
    for name, score in scores.items():
        felt, hours, false = score["felt"], score["calm_node_hours"], score["false_episodes"]
        rate = false, f"{hours:.2f}", f"{per_day_at_most(false, hours):.0f}"
        rows.append((name, felt["noises"], felt["missed"], *delays(felt), *rate))
    heads = ("judge", "felt", "missed", "delay median s", "delay p95 s", "false episodes", "calm node-hours")
    return table((*heads, "a day at most"), rows)


def kinds(name: str, score: dict[str, Any]) -> list[str]:
    """How a judge fares with each kind of noise, and with all that it was trained on, and all others."""
    rows = []
    for kind, its in score["by_kind"].items():
        felt, trained = its["felt"], "yes" if kind in score["trained_on"] else "no"
        harm = "-" if its["harm_median"] is None else f"{its['harm_median']:.1f}"
        counts = its["noises"], harm, felt["noises"], felt["noises"] - felt["missed"]
        rows.append((kind, trained, *counts, *delays(felt)))
    heads = (f"noise ({name})", "trained on", "noises", "p95 over calm, median", "felt", "found of those")
    return table((*heads, "median s", "p95 s"), rows)


def delays(noises: dict[str, Any]) -> tuple[str, str]:
    return shown(noises["detection_delay_median_s"], "g"), shown(noises["detection_delay_p95_s"], "g")


def disturbances(scores: dict[str, Any]) -> list[str]:
    """False episodes beside what is no neighbour, of each judge, and how long each lasted."""

    def cell(its: dict[str, Any] | None) -> str:
        return f"{its['node_s']:.0f}, {its['false_episodes']}" if its else "-"

    names = sorted({kind for score in scores.values() for kind in score["disturbances"]})
    rows = [(kind, *(cell(score["disturbances"].get(kind)) for score in scores.values())) for kind in names]
    return table(("no neighbour", *(f"{name}: node-seconds, false episodes" for name in scores)), rows)


def estimators(tails: dict[str, Any]) -> list[str]:
    """The estimators of p95 by application; the learning curve is PAAE by the share that was trained on."""
    shares = [f"{share:.0%}" for share, _, _ in tails[APPS[0]]["random forest"]["learning_curve"]]
    rows = []
    for app, by_name in tails.items():
        for name, figures in by_name.items():
            curve = [f"{error:.2f}" for _, error, _ in figures["learning_curve"]]
            rows.append((f"{app}, {name}", figures["rows"], f"{figures['paae']:.2f}", f"{figures['r2']:.2f}", *curve))
    return table(("application, estimator", "rows", "PAAE", "R2", *shares), rows)


OPTIONS = {
    "--out": (Path, Path("recordings"), "folder"),
    "--seconds": (float, 200.0, "length of a recording with neighbours"),
    "--calm-seconds": (float, 1800.0, "length of one without"),
    "--plan": (bool, False, "only print what is left to do, and how long it takes"),
    "--next": (bool, False, "make the next recording and no more"),
    "--scores": (bool, False, "train and score with what there is; print the tables"),
}


def main() -> None:
    asked = options(__doc__, OPTIONS).parse_args()
    if asked.plan:
        todo = list(missing(asked.out))
        print(left_text([scene.seconds(asked.seconds, asked.calm_seconds) for scene, _ in todo]))
        for scene, _ in todo:
            print(f"  {scene.name}: {scene.options}")
        return
    if not asked.scores:
        record(asked.out, asked.seconds, asked.calm_seconds, asked.next)
    if asked.scores or not (asked.next or list(missing(asked.out))):
        train_and_score(asked.out)
        print(page(asked.out))


if __name__ == "__main__":
    main()
