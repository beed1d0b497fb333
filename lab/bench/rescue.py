#!/usr/bin/env python3
"""What the pool's setting `rescue` gains and costs: Slackwater with it and without, under both algorithms (root).

Runs a comparison in the lab (scenario `one-severe`) that goes on where it was interrupted, and prints one table: the
response times of the first seconds beside the neighbour, how many requests were sent twice, and what the other servers
had to do. Example: python -m lab.bench.rescue --out rescue --rounds 2 --write docs/results/rescue.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lab.bench.harness import Report, machine
from lab.cluster.lab import LabSettings
from lab.cluster.paths import LabError
from lab.compare import compare, comparison
from lab.experiment import recording
from lab.experiment.recording import ExperimentError, Recorded

SCENARIO = "one-severe"
POLICIES = ("slackwater", "slackwater-rescue", "slackwater-lc", "slackwater-rescue-lc")
FIRST_S = 3.0
"""Of the time beside the neighbour."""
TITLES = (
    "p99, first 3 s, ms",
    "p99, whole time, ms",
    "mean, first 3 s, ms",
    "errors",
    "sent twice",
    "CPU of the others, cores",
)


def figures(one: Recorded) -> tuple[float, ...]:
    """A run's, in the order of TITLES; shares in percent."""
    marks, answered = one.marks, one.status > 0
    first = answered & (one.due_s >= marks.on_s) & (one.due_s < marks.on_s + FIRST_S)
    whole = answered & (one.due_s >= marks.on_s) & (one.due_s < marks.off_s)
    noisy = {neighbour["host"] for neighbour in one.facts["neighbours"]}
    others = [used for host, used in one.facts["cpu"].items() if host not in noisy]
    asked = len(one.due_s) + one.lost
    return (
        1000.0 * float(np.percentile(one.seconds[first], 99)),
        1000.0 * float(np.percentile(one.seconds[whole], 99)),
        1000.0 * float(one.seconds[first].mean()),
        100.0 * (one.lost + int((one.status >= 500).sum())) / asked,
        100.0 * one.facts["retries"] / asked,
        statistics.fmean(used["vm_s"] / used["loud_s"] for used in others),
    )


FORMS: Sequence[Callable[[float], str]] = (
    "{:.0f}".format,
    "{:.0f}".format,
    "{:.1f}".format,
    "{:.3f}%".format,
    "{:.2f}%".format,
    "{:.3f}".format,
)


def page(folder: Path, made: comparison.Comparison, report: Report) -> None:
    """The table of what is recorded so far."""
    runs = [recording.read(folder, run) for run in made.runs if recording.done(folder, run)]
    rows = []
    for policy in POLICIES:
        if not (found := [figures(one) for one in runs if one.run.policy == policy]):
            continue
        cells = [
            f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"
            for form, values in zip(FORMS, zip(*found, strict=True), strict=True)
        ]
        rows.append([f"`{policy}`", len(found), *cells])
    commits = sorted({str(one.facts["commit"]) for one in runs})
    report.add(f"Machine: {machine()}; HAProxy `{made.haproxy}`; commit {', '.join(commits)}. Median, and range.")
    report.add()
    report.table(("policy", "runs", *TITLES), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--rounds", type=int, default=2, help="[default: 2]")
    parser.add_argument("--minutes", type=float, help="begin nothing that would end later; go on another time")
    parser.add_argument("--haproxy", default="haproxy-3", help="3.0 or later [default: haproxy-3]")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table at the end of this page")
    given = parser.parse_args()
    report = Report()
    try:
        asked = comparison.planned((SCENARIO,), POLICIES, given.rounds, 1, LabSettings(haproxy=given.haproxy))
        made = compare.begin(given.out, asked)
        until_s = time.monotonic() + 60.0 * given.minutes if given.minutes else float("inf")
        compare.run(given.out, made, lambda text: print(text, file=sys.stderr, flush=True), until_s)
        page(given.out, comparison.load(given.out), report)
    except (LabError, ExperimentError) as error:
        print(f"rescue: {error}", file=sys.stderr)
        return 1
    if given.write:
        head = given.write.read_text().split("\nMachine: ")[0] if given.write.exists() else "# The rescue\n"
        given.write.write_text(head + "\n" + "\n".join(report.lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
