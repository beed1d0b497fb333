#!/usr/bin/env python3
"""Compares the dashboard's estimate of static weights with what static weights gave (root, quiet, 20 minutes).

Each scenario runs twice in the lab with the same load and the same noise: once with static weights, where the load
generator measures what users felt, and once with Slackwater acting, whose journal gives the estimate by the function
that the page of an episode calls. Runs that are there already are kept, and `--next` makes one scenario only; without
missing runs the table is printed from what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.cluster.commit import commit
from lab.cluster.controller import CONTROLLER_FILE, JOURNAL_FILE, POOL
from lab.cluster.lab import Lab, LabSettings
from lab.cluster.load import Demand
from lab.cluster.machine import cpu_model
from lab.stories.one_policy import PolicyTest, run
from slackwater.config import load as load_settings
from slackwater.journal.journal import Journal
from slackwater.views.why import episodes, with_changes
from web.content import episodes as pages

SECONDS = 12.0
NOISY = "host1"
ASKED_FOR = 1.5
"""The factor between estimate and measurement that is asked for, at the median."""


@dataclass(frozen=True)
class Scenario:
    app: str
    noise: str
    load: float

    @property
    def name(self) -> str:
        return f"{self.app}-{self.noise}-{self.load:g}"


SCENARIOS = (
    *(Scenario("events", noise, load) for noise in ("llcprobe", "stress-cpu", "cpu") for load in (0.3, 0.5)),
    Scenario("dokuwiki", "cpu", 0.3),
    Scenario("dokuwiki", "llcprobe", 0.5),
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(scenario: Scenario, folder: Path) -> None:
    """Both runs; leaves NAME.sqlite (the journal), NAME.toml (the controller's file) and NAME.json in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"commit": commit()}
    demand = None
    for policy in ("static", "slackwater"):
        test = PolicyTest(policy, scenario.noise, 1.0, SECONDS, 1, demand, None if demand else scenario.load)
        with Lab(LabSettings(app=scenario.app), say) as lab:
            results[policy] = run(lab, test, say)
            if policy == "slackwater":
                keep_journal(folder / f"{scenario.name}.sqlite")
                (folder / f"{scenario.name}.toml").write_text(CONTROLLER_FILE.read_text())
        demand = Demand(rate_rps=results["static"]["settings"]["rate_rps"])
    (folder / f"{scenario.name}.json").write_text(json.dumps(results, indent=2) + "\n")


def keep_journal(place: Path) -> None:
    place.unlink(missing_ok=True)
    with closing(sqlite3.connect(JOURNAL_FILE)) as journal, closing(sqlite3.connect(place)) as kept:
        journal.backup(kept)


def estimated(scenario: Scenario, folder: Path) -> tuple[float | None, str]:
    """What the page says of the noisy host's first episode in ms, or why it says nothing."""
    settings = load_settings(folder / f"{scenario.name}.toml")
    pool = settings.the_pool(POOL)
    with Journal.open(folder / f"{scenario.name}.sqlite", read_only=True) as journal:
        found = [one for one in episodes(journal, POOL, 0.0) if one.node == NOISY]
        if not found:
            return None, "no episode was found"
        told = with_changes(journal, found[0], pool.servers)
        page = pages.page(journal, settings, pool, told, found[0].since_unix_s + 60.0)
        return page.static_ms, page.static_note


def shown(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.1f}"


def table(folder: Path) -> str:
    """The scenarios that were measured, one a row, and the median of the factors."""
    lines = ["| scenario | requests/s | measured ms | estimate ms | factor | with Slackwater ms | note |"]
    lines.append("|---|---|---|---|---|---|---|")
    factors = []
    for scenario in SCENARIOS:
        place = folder / f"{scenario.name}.json"
        if not place.exists():
            continue
        results = json.loads(place.read_text())
        static, acting = (results[policy]["rounds"][0]["phases"]["noise"] for policy in ("static", "slackwater"))
        estimate_ms, note = estimated(scenario, folder)
        factor = None if estimate_ms is None else max(estimate_ms / static["p95_ms"], static["p95_ms"] / estimate_ms)
        factors += [] if factor is None else [factor]
        cells = [
            f"`--app {scenario.app} --noise {scenario.noise} --load {scenario.load:g}`",
            f"{results['static']['settings']['rate_rps']:g}",
            shown(static["p95_ms"]),
            shown(estimate_ms),
            "-" if factor is None else f"{factor:.2f}",
            shown(acting["p95_ms"]),
            note if estimate_ms is None else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if factors:
        lines += ["", f"Median factor: {statistics.median(factors):.2f} (asked for: at most {ASKED_FOR:g})."]
    return "\n".join(lines) + "\n"


def facts(folder: Path) -> str:
    """When, where and by which commit it was measured."""
    commits = {json.loads(place.read_text())["commit"] or "unknown" for place in sorted(folder.glob("*.json"))}
    now = datetime.now(UTC).date().isoformat()
    cpu = cpu_model(Path("/proc/cpuinfo").read_text())
    return (
        f"{now}; {cpu}, {os.cpu_count()} cores; runs of commit {', '.join(sorted(commits))}, estimate of {commit()}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Example: python -m lab.bench.static_weights_estimate --next"
    )
    parser.add_argument("--runs", type=Path, default=Path("target/static-weights"), help="where the runs are kept")
    parser.add_argument("--next", action="store_true", help="measure one scenario only, then print the table")
    parser.add_argument("--table", action="store_true", help="measure nothing, only print the table")
    options = parser.parse_args()
    missing = [one for one in SCENARIOS if not (options.runs / f"{one.name}.json").exists()]
    for scenario in [] if options.table else missing[:1] if options.next else missing:
        say(f"{scenario.name}: static weights, then Slackwater")
        measure(scenario, options.runs)
    print(facts(options.runs))
    print(table(options.runs), end="")


if __name__ == "__main__":
    main()
