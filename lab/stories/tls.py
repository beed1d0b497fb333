"""Compares what the sniffer times on encrypted connections, turns, with HAProxy's `Tr` and the load generator.

HAProxy asks Apache over TLS. `Tr` is the time from the end of the request to the end of the response's headers at the
server (HAProxy configuration guide, 8.4), in whole milliseconds; the load generator's time begins when a request was
due, so it has queueing and the connection too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.cluster import machine
from lab.cluster.commit import commit
from lab.cluster.lab import Lab
from lab.cluster.load import Demand
from lab.cluster.paths import BIN, LAB_DIR
from lab.experiment.run import MARGIN_S
from lab.experiment.steady import SETTLE_S, capacity_rps, shown, stay

PERCENTILES = (50, 95, 99)
MARK = "measured"
LOG = (
    "log stdout format raw local0",
    rf"log-format {MARK}\ %Ts.%ms\ %Tr\ %ST",
)
CLOSES = "option httpclose"
COLUMNS = ("turns / requests", *(f"{who} p{at} ms" for at in PERCENTILES for who in ("sniffer", "Tr", "oha")))


@dataclass(frozen=True)
class TlsTest:
    """`shares` of the capacity over kept connections; each phase lasts `seconds`."""

    shares: tuple[float, ...]
    seconds: float
    noise: str
    intensity: float


def percentiles(milliseconds: Iterable[float]) -> dict[str, float | None]:
    found = np.fromiter(milliseconds, float)
    return {f"p{at}_ms": float(np.percentile(found, at)) if len(found) else None for at in PERCENTILES}


def turns_ms(lines: Iterable[str], from_unix_s: float, until_unix_s: float) -> list[float | None]:
    """Of the sniffer's lines of exchanges: the time of each whose request ended then; None where it has none."""
    rows = (json.loads(line) for line in lines if line.startswith("{") and '"seconds"' in line)
    return [
        None if row["seconds"] is None else row["seconds"] * 1000.0
        for row in rows
        if from_unix_s <= row["time_unix_s"] < until_unix_s
    ]


def tr_ms(lines: Iterable[str], from_unix_s: float, until_unix_s: float) -> list[float]:
    """Of HAProxy's log: `Tr` of each request that came then and was answered."""
    rows = (line.split()[1:] for line in lines if line.startswith(MARK))
    return [float(tr) for at, tr, _ in rows if from_unix_s <= float(at) < until_unix_s and float(tr) >= 0]


def measure(lab: Lab, test: TlsTest, demand: Demand, loud: bool) -> dict[str, Any]:
    """One phase."""
    total_s = SETTLE_S + test.seconds
    noises = [lab.noise(lab.noisy, test.noise, test.intensity, total_s + MARGIN_S)] if loud else []
    load = lab.load(demand, total_s)
    from_s = load.begin_mono_s + SETTLE_S
    unix_s = time.time() - time.monotonic()
    stay(lab, load.begin_mono_s + total_s, load, noises)
    for noise in noises:
        noise.stop()
    requests = load.finish()
    window = from_s + unix_s, from_s + unix_s + test.seconds
    turns = [
        ms for host in lab.hosts for ms in turns_ms((host.folder / "sniffer.log").read_text().splitlines(), *window)
    ]
    at_balancer = tr_ms((LAB_DIR / "haproxy.log").read_text().splitlines(), *window)
    counted = (requests.due_mono_s >= from_s) & (requests.due_mono_s < from_s + test.seconds)
    return {
        "requests": len(at_balancer),
        "turns": len(turns),
        "turns_without_time": turns.count(None),
        "sniffer": percentiles(ms for ms in turns if ms is not None),
        "haproxy_tr": percentiles(at_balancer),
        "oha": percentiles(requests.seconds[counted] * 1000.0),
        "lost": requests.lost_count,
    }


def run(lab: Lab, test: TlsTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """Kept connections, then a new one for each request; in both each load, calm and beside a neighbour."""
    for host in lab.hosts:
        sniffer = [str(BIN / "slackwater-sniffer"), "live", "-i", "eth0", "-p", "443:unknown", "--exchanges"]
        lab.add(lab.machines[host.name].start("slackwater-sniffer", sniffer, "sniffer.log"))
    capacity = capacity_rps(lab)
    phases = []
    for keep_alive in (True, False):
        lab.balancer.set_balance(lab.balancer.balance, defaults=(*LOG, *([] if keep_alive else [CLOSES])))
        lab.balancer.reload()
        for share in test.shares:
            for loud in (False, True):
                found = measure(lab, test, Demand(rate_rps=share * capacity), loud)
                phases.append({"keep_alive": keep_alive, "load": share, "neighbour": loud, **found})
                progress(" ".join(row(phases[-1])))
    return {
        "commit": commit(),
        "machine": machine.describe(lab),
        "settings": {"capacity_rps": capacity, "noise": test.noise, "seconds": test.seconds},
        "phases": phases,
    }


def row(phase: dict[str, Any]) -> list[str]:
    """A phase as cells: what it was, then `COLUMNS`."""
    what = f"{'kept' if phase['keep_alive'] else 'new'} connections, {phase['load']:.0%}"
    what += ", beside a neighbour" if phase["neighbour"] else ", calm"
    ratio = phase["turns"] / phase["requests"] if phase["requests"] else None
    cells = [what, shown(ratio, ".2f")]
    for at in PERCENTILES:
        cells += [shown(phase[who][f"p{at}_ms"]) for who in ("sniffer", "haproxy_tr", "oha")]
    return cells
