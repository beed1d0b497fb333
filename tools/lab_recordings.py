#!/usr/bin/env python3
"""Makes fresh recordings in the lab, trains a model on one set and scores it on the other (`make recordings`; root).

The second set has other seeds, another application, other loads and another balance than the first, so that its scores
say what to expect elsewhere. For a quiet machine: other programs are noisy neighbours too. A recording that is there
already is kept, so that a broken-off run goes on where it was.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OVERHEAD_S = 45.0
"""What each recording takes beside its own length: laying out the lab, measuring its capacity, taking it down."""


@dataclass(frozen=True)
class Scene:
    """One recording: its name, its length over the usual one, and the options of `slackwater lab record`."""

    name: str
    length: float
    options: str


TRAINED = (
    Scene("events-steady", 1.0, "--load 0.3 --seed 101"),
    Scene("events-swing", 1.0, "--swing --seed 102"),
    Scene("events-swing-drain", 1.0, "--swing --drain --seed 103"),
    Scene("events-overload", 1.0, "--swing --overload --seed 104"),
    Scene("events-calm", 1.0, "--swing --calm --seed 105"),
    Scene("events-leastconn", 1.0, "--swing --drain --balance leastconn --seed 106"),
)
FRESH = (
    Scene("dokuwiki-steady", 1.0, "--app dokuwiki --load 0.45 --seed 201"),
    Scene("dokuwiki-swing", 1.0, "--app dokuwiki --swing --seed 202"),
    Scene("dokuwiki-leastconn-drain", 1.0, "--app dokuwiki --swing --drain --balance leastconn --seed 203"),
    Scene("dokuwiki-calm", 3.0, "--app dokuwiki --swing --calm --seed 204"),
    Scene("events-other-load", 1.0, "--load 0.55 --seed 205"),
    Scene("events-calm", 3.0, "--swing --calm --seed 206"),
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


def record(folder: Path, scenes: tuple[Scene, ...], seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        out = folder / f"{scene.name}.parquet"
        if not out.exists():
            length = f"{scene.length * seconds:g}"
            call(["slackwater", "lab", "record", "--out", str(out), "--seconds", length, *shlex.split(scene.options)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("recordings"), help="folder (default: recordings)")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of a usual recording (default 300)")
    parser.add_argument("--plan", action="store_true", help="only say what would be done, and how long it takes")
    options = parser.parse_args()
    total_s = sum(scene.length * options.seconds + OVERHEAD_S for scene in TRAINED + FRESH)
    print(f"{len(TRAINED)} recordings to train on, {len(FRESH)} to score on: about {total_s / 60:.0f} minutes")
    if options.plan:
        for scene in TRAINED + FRESH:
            print(f"  {scene.name}, {scene.length * options.seconds:g} s: {scene.options}")
        return
    train, fresh, model = options.out / "train", options.out / "fresh", options.out / "model.skops"
    record(train, TRAINED, options.seconds)
    record(fresh, FRESH, options.seconds)
    call(["slackwater", "train", str(train), "--out", str(model), "--report", str(options.out / "report.html")])
    for judge, name in ((str(model), "model"), ("thresholds", "thresholds")):
        scores = options.out / f"scores-{name}.json"
        call(["slackwater", "detector", "evaluate", str(fresh), "--model", judge, "--json"], scores)
        call(["slackwater", "detector", "evaluate", str(fresh), "--model", judge])
    call(["slackwater", "detector", "tail", str(train), str(fresh), "--json"], options.out / "tail.json")


if __name__ == "__main__":
    main()
