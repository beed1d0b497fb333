"""Steady noise on the test site: is each neighbour one episode, with one fall and one rise of the weight?

    python -m tests.site.steady --data docs/results/steady.jsonl --page docs/results/steady.md --minutes 40

plays what of the plan the data file lacks, in an order drawn once, and writes the page. The same command goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core.files import replacing
from slackwater.detector.train.scores import share_interval
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.paths import LabError
from tests.site.controller import Slackwater
from tests.site.episodes import BASELINE, Episode, play
from tests.site.site import Shape, Site

BALANCES = ("leastconn", "roundrobin", "random")
APPS = ("burn", "events", "dokuwiki", "wait")
RATES = (5.0, 20.0, 60.0)
"""Requests per second of each server."""
MOST_RPS = {"wait": 20.0}
"""Debian's php-fpm has five processes: more pages of 150 ms than this wait for each other in calm."""
SECONDS, LONG_S = 30.0, 120.0
AFTER_S = 12.0
SEED = 49
SET_UP_S = 40.0
EACH_SHAPE = 6
"""Number of episodes before the site is built anew in another shape."""
FEW_FALLS = 2
GOAL = 0.95
"""Share of the episodes with at most one fall and one rise."""


class Row(msgspec.Struct, frozen=True):
    """One episode of the plan, and what came of it."""

    balance: str
    app: str
    kind: str
    rps: float
    seconds: float
    commit: str
    machine: str
    found: Episode


Cell = tuple[str, str, str, float, float]
"""Balance algorithm, application, kind of noise, requests per second of each server, seconds of noise."""


def plan() -> list[Cell]:
    """All episodes in the order in which they are played: every few in another shape of the site, the balance
    algorithms in turns."""
    chance = random.Random(SEED)
    blocks: dict[str, list[list[Cell]]] = {balance: [] for balance in BALANCES}
    for balance, app in itertools.product(BALANCES, APPS):
        rates = [rate for rate in RATES if rate <= MOST_RPS.get(app, max(RATES))]
        cells = [(balance, app, kind, rate, SECONDS) for kind, rate in itertools.product(NOISES, rates)]
        cells += [(balance, app, kind, rate, LONG_S) for kind, rate in zip(("cpu", "llcprobe"), rates, strict=False)]
        chance.shuffle(cells)
        blocks[balance] += [cells[start : start + EACH_SHAPE] for start in range(0, len(cells), EACH_SHAPE)]
    for of_balance in blocks.values():
        chance.shuffle(of_balance)
    in_turns = itertools.chain.from_iterable(zip(*blocks.values(), strict=True))
    return [cell for block in in_turns for cell in block]


def cell_of(row: Row) -> Cell:
    return row.balance, row.app, row.kind, row.rps, row.seconds


def machine() -> str:
    """The processor of this machine, for the page."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(models)} cores, {models[0] if models else platform.machine()}"


def read(data: Path) -> list[Row]:
    """The episodes that were played. Raises msgspec.ValidationError for what is none."""
    lines = data.read_text().splitlines() if data.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines if line]


def run(data: Path, until_s: float, say: Callable[[str], None]) -> None:
    """Plays what is missing, as long as it ends before `until_s`. Raises LabError."""
    done = {cell_of(row) for row in read(data)}
    left = [cell for cell in plan() if cell not in done]
    for (balance, app), group in itertools.groupby(left, key=lambda cell: cell[:2]):
        block = list(group)
        if time.monotonic() + SET_UP_S + block[0][4] + AFTER_S + 12.0 > until_s:
            return
        with ExitStack() as stack:
            site = stack.enter_context(Site(Shape(balance, app), say))
            slackwater = stack.enter_context(Slackwater(site))
            slackwater.set_up()
            slackwater.command("mode", "act", "--why", "episodes")
            for cell in block:
                _, _, kind, rps, seconds = cell
                if time.monotonic() + seconds + AFTER_S + 12.0 > until_s:
                    return
                episode = play(site, slackwater, "act", kind, seconds, rps * len(site.webs), AFTER_S)
                row = Row(*cell, commit() or "not known", machine(), episode)
                with data.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
                say(f"{balance} {app} {kind} {rps:g}/s {seconds:g} s: {episode.weights[episode.noisy]}")


def turns(row: Row) -> tuple[int, int]:
    """Falls and rises of all weights, before, beside and after the noise."""
    return sum(row.found.falls.values()), sum(row.found.rises.values())


def is_one(row: Row) -> bool:
    """Whether there was at most one fall and one rise."""
    falls, rises = turns(row)
    return falls <= 1 and rises <= 1


def table(rows: Sequence[Row], name: str, key: Callable[[Row], Any]) -> list[str]:
    """A table of the page: a line for each value of `key`."""
    lines = [
        f"| {name} | episodes | lowered | at most one fall and one rise | more than two falls | lowered after s"
        " | back s | calm server held at most s | mean ms, calm | mean ms, beside the noise |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for value in sorted({key(row) for row in rows}, key=str):
        lines.append(f"| {value} | {' | '.join(_cells([row for row in rows if key(row) == value]))} |")
    return lines


def _cells(rows: Sequence[Row]) -> list[str]:
    episodes = [row.found for row in rows]
    held = [max(episode.held_calm_s.values()) for episode in episodes]
    return [
        str(len(rows)),
        str(sum(episode.first_fall_s is not None for episode in episodes)),
        str(sum(map(is_one, rows))),
        str(sum(turns(row)[0] > FEW_FALLS for row in rows)),
        _spread(episode.first_fall_s for episode in episodes),
        _spread(episode.back_s for episode in episodes),
        f"{max(held):.1f}",
        _spread(episode.calm.mean for episode in episodes),
        _spread(episode.noisy_times.mean for episode in episodes),
    ]


def _spread(figures: Iterable[float | None]) -> str:
    """Median and range."""
    known = [figure for figure in figures if figure is not None]
    return f"{statistics.median(known):.1f} ({min(known):.1f} to {max(known):.1f})" if known else "none"


def _how_sure(steady: int, rows: Sequence[Row]) -> str:
    low, high = share_interval(steady, len(rows)) or (0.0, 1.0)
    return (
        f"Of all such episodes it is between {100 * low:.0f} and {100 * high:.0f} of 100 (95% interval;"
        f" {len(rows)} of {len(plan())} planned episodes, drawn at random)."
    )


def page(rows: Sequence[Row]) -> str:
    """The results page."""
    steady, most = sum(map(is_one, rows)), max((turns(row)[0] for row in rows), default=0)
    is_reached = steady >= GOAL * len(rows) and most <= FEW_FALLS
    machines = ", ".join(sorted({row.machine for row in rows}))
    commits = ", ".join(sorted({row.commit for row in rows}))
    lines = [
        "# Steady noise on a site that nobody tuned",
        "",
        f"{steady} of {len(rows)} episodes of steady noise have at most one fall and one rise of all weights together;"
        f" the most falls in an episode are {most}. The goal, {GOAL:.0%} and never more than {FEW_FALLS} falls, is"
        f" {'reached' if is_reached else '**NOT reached**'}. {_how_sure(steady, rows)}",
        "",
        *table(rows, "balance", lambda row: row.balance),
        "",
        *table(rows, "requests/s a server", lambda row: f"{row.rps:g}"),
        "",
        *table(rows, "application", lambda row: row.app),
        "",
        *table(rows, "noise", lambda row: row.kind),
        "",
        *table(rows, "noise lasts s", lambda row: f"{row.seconds:g}"),
        "",
        f"Medians and ranges. `back` counts from the end of the noise until the weight is {BASELINE} for good. A fall"
        " begins at the baseline and a rise ends there, so a trial with a few requests is neither. An episode is not"
        " lowered where users hardly feel the noise.",
        "",
        "## How it was measured",
        "",
        "The site is that of the tests (`tests/site`): three web servers of 0.3 core with Debian's Apache, php-fpm and"
        " HAProxy as they come, monitors and controller as `slackwater init` sets them up, mode act. The"
        f" noise is beside the first server, for {SECONDS:g} s or {LONG_S:g} s. Machine: {machines}. Commits:"
        f" {commits}. Each episode is a line of [steady.jsonl](steady.jsonl).",
        "",
        "```sh",
        "python -m tests.site.steady --data docs/results/steady.jsonl --page docs/results/steady.md --minutes 40",
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a JSON line for each episode; what is there stays")
    parser.add_argument("--page", type=Path, help="Markdown, written anew")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing that would end later")
    words = parser.parse_args()
    try:
        run(words.data, time.monotonic() + 60.0 * words.minutes, lambda line: print(line, flush=True))
    except LabError as error:
        print(f"steady: {error}", file=sys.stderr)
        return 1
    rows = read(words.data)
    if words.page is not None and rows:
        with replacing(words.page) as draft:
            draft.write_text(page(rows))
    print(json.dumps({"episodes": len(rows), "one": sum(map(is_one, rows)), "planned": len(plan())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
