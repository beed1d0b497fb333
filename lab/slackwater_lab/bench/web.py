"""Measures the dashboard on a made-up journal: 300 servers, 90 days of minutes, Samples five times a second.

The web server runs as a process of its own; its CPU is read from /proc. What is written is written by this process and
not counted. Needs Chromium and playwright-core for the drawn page (`make setup`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.config import JournalSettings
from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.retention import Keeper
from slackwater.core.messages import (
    Change,
    Counters,
    Cpu,
    Cycle,
    Message,
    Pressure,
    Sample,
    Sched,
    ServerState,
    Traffic,
    Verdict,
)
from slackwater.web.content.harm import RANGES
from slackwater_lab.bench.harness import Report, background, run, scratch, spread
from slackwater_lab.cluster.paths import ROOT, LabError, program
from slackwater_lab.cluster.process_use import process_use
from slackwater_lab.cluster.spawn import wait_until

DRAWN_MS = 300
"""The goal for all servers on one page, and for the week."""
SLOW = 3
"""Number of servers beside a neighbour."""
PERIOD_S = 0.2
HISTORY_ROWS = """
INSERT INTO rolled WITH RECURSIVE s(t) AS (SELECT :first UNION ALL SELECT t + :step FROM s WHERE t + :step < :last)
SELECT :step, :node, t, :step * 5, 800000 + (t * 7919 + :node * 104729) % 100000, 50000, 30000, 90000, 150000, 3, 0,
 4000 + t % 1000, 0, 500, 200, 0, 0, 12000, 1500, 10000 FROM s
"""


EPISODES_A_DAY = 3
"""Episodes of each server, as many as the default limit of false episodes allows."""
EPISODE_S = 300.0
STATES = """
INSERT INTO states (node_id, since_unix_s, state, last_unix_s, severity, path)
WITH RECURSIVE s(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM s WHERE k + 1 < :count),
 begun AS (SELECT k, :first + k * :every + (k * 7919 + :node * 104729) % CAST(:every / 2 AS INTEGER) AS t FROM s)
SELECT :node, t, 'interference', t + :lasts, 0.1 + (k * 37 + :node) % 90 / 100.0, '["run delay"]' FROM begun
UNION ALL SELECT :node, t + :lasts, 'calm', min(:last, :first + (k + 1) * :every), 0, '[]' FROM begun
"""


def names(count: int) -> list[str]:
    return [f"web{number:03d}" for number in range(1, count + 1)]


def tick(nodes: list[str], now: float, number: int) -> list[Message]:
    """What all nodes send at one moment, and lbengine's cycle."""
    messages: list[Message] = []
    for place, node in enumerate(nodes):
        slow = place < SLOW
        rps, p95 = 80.0 + (number * 7 + place) % 9, 90.0 if slow else 8.0 + (number + place) % 5 / 2
        traffic = Traffic(rps=rps, rt_mean_ms=4.0, rt_p50_ms=3.0, rt_p95_ms=p95, rt_p99_ms=1.6 * p95, in_flight=3)
        cpu, sched = Cpu("cgroup", 0.4, cores=2.0), Sched(9, 80, 2, 0.4, 0.02, 5.0 if slow else 0.05)
        counters = Counters("pmu", cpi=1.2, cache_miss_rate=0.15)
        absent = {"frequency": "no cpufreq in this VM", "cpu.throttled": "no quota"}
        messages.append(
            Sample(
                1,
                node,
                "web",
                now,
                "b",
                number,
                PERIOD_S,
                None,
                cpu,
                sched,
                Pressure(0.1),
                counters,
                traffic,
                absent=absent,
            )
        )
        state = "interference" if slow else "calm"
        path = ["run delay per CPU second 5 is 14x its peers' (> 2.8)", "2 of the last 3 ticks"] if slow else []
        messages.append(
            Verdict(1, node, "web", now, state, now // 600 * 600, 0.8 if slow else 0.0, path, "start", rps=rps)  # type: ignore[arg-type]
        )
    servers = [
        ServerState(node, "up", 20 if p < SLOW else 100, 100, 20 if p < SLOW else 100, rps=80.0, share=1 / len(nodes))
        for p, node in enumerate(nodes)
    ]
    sentence = f"web: {SLOW} stay at 20 of 100 (interference); {len(nodes) - SLOW} others unchanged"
    messages.append(Cycle(1, "web", now, "act", False, "roundrobin", "optimal", sentence, servers, "share"))
    return messages


def make(folder: Path, servers: int, days: float) -> float:
    """The journal; returns its size in MB."""
    nodes, now = names(servers), time.time()
    with Journal.open(journal_path(folder)) as journal:
        for back in range(50):  # ten seconds of Samples
            journal.record(*tick(nodes, now - 10 + back * PERIOD_S, back))
        changes = [
            Change(
                1,
                f"c{n}",
                "web",
                now - n * 60,
                "weight",
                nodes[n % servers],
                100,
                20,
                "interference: x",
                "lbengine",
                True,
            )
            for n in range(int(min(days, 14) * 1440))
        ]
        journal.record(*changes)
        with sqlite3.connect(journal.path, isolation_level=None) as database:
            database.execute("PRAGMA synchronous=OFF")
            ids = [row[0] for row in database.execute("SELECT id FROM nodes")]
            for step in (schema.MINUTE_S, schema.HOUR_S):
                for first in range(0, len(ids), 20):
                    database.execute("BEGIN")
                    for node in ids[first : first + 20]:
                        start = int(now - days * 86400) // step * step
                        where = {"step": step, "node": node, "first": start, "last": int(now) - 60}
                        database.execute(HISTORY_ROWS, where)
                    database.execute("COMMIT")
            every_s = 86400 / EPISODES_A_DAY
            began = {"first": now - days * 86400, "last": now - 60, "every": every_s, "lasts": EPISODE_S}
            database.execute("BEGIN")
            for node in ids:
                database.execute(STATES, {**began, "node": node, "count": int(days * EPISODES_A_DAY) - 1})
            database.execute("COMMIT")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        Keeper(journal, JournalSettings(), free_bytes=lambda _: 10**12).keep()  # the days of states
        return journal.used_bytes() / 1e6


@contextmanager
def writing(folder: Path, servers: int) -> Iterator[None]:
    """Records what the nodes send, as the journal's process does: five times a second, written twice a second."""
    done = threading.Event()
    nodes = names(servers)

    def write() -> None:
        number = 0
        with Journal.open(journal_path(folder)) as journal:
            while not done.wait(0.5):
                now = time.time()
                batch: list[Message] = []
                for back in (0.4, 0.2, 0.0):
                    batch += tick(nodes, now - back, number)
                    number += 1
                journal.record(*batch)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def web_server(folder: Path, port: int) -> Iterator[int]:
    """The dashboard in a process of its own; its pid."""
    config = folder / "controller.toml"
    config.write_text(
        f'state_dir = "{folder}"\n[web]\nlisten = "127.0.0.1:{port}"\n[[pool]]\nname = "web"\nbackend = "web"\n'
        'socket = "/s"\ntarget_p95_ms = 50.0\n'
    )
    command = [sys.executable, "-m", "slackwater.controller.cli.main", "run", "web", "--config", str(config)]

    def answers() -> bool:
        try:
            return get(port, "/healthz") > 0.0
        except OSError:
            return False

    with background(folder, "web", *command) as pid:
        wait_until(answers, "the dashboard answers", 60.0)
        yield pid


def get(port: int, path: str) -> float:
    """Seconds that an answer took."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200 or not body:
        raise OSError(f"{path}: {answer.status}")
    return time.perf_counter() - began


def cpu_s(pid: int) -> float:
    use = process_use(pid)
    if use is None:
        raise LabError("the web server has ended")
    return use.cpu_s


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def watching(port: int, viewers: int, path: str, seconds: float, also: Callable[[], None] | None = None) -> list[float]:
    """Seconds between events, of all viewers, over some `seconds`; `also` is called in between."""
    gaps: list[float] = []
    end = time.monotonic() + seconds

    def view() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
        connection.request("GET", path)
        answer = connection.getresponse()
        last = 0.0
        while time.monotonic() < end:
            line = answer.readline()
            if line.startswith(b"data: "):
                now = time.monotonic()
                if last:
                    gaps.append(now - last)
                last = now
        connection.close()

    threads = [threading.Thread(target=view) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    while also is not None and time.monotonic() < end - 1.0:
        also()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    return gaps


def browser_environment() -> dict[str, str]:
    """Where Chromium and playwright-core are."""
    chromium = program("chromium-headless-shell")
    return {**os.environ, "CHROMIUM": chromium, "BROWSER_MODULES": str(ROOT / ".build/browser")}


def drawn(port: int) -> dict[str, list[float]]:
    """Milliseconds from the navigation to the drawn page, in Chromium."""
    command = ["node", str(ROOT / "tests/browser/drawn.mjs"), f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, env=browser_environment(), capture_output=True, text=True, check=True)
    times_ms: dict[str, list[float]] = json.loads(done.stdout)
    return times_ms


def reached(drawn_ms: list[float]) -> str:
    """Whether the goal is, by the median."""
    return "" if statistics.median(drawn_ms) <= DRAWN_MS else ": NOT reached"


def measure(servers: int, days: float, seconds: float, mb: float, port: int, pid: int) -> list[tuple[str, str, str]]:
    for _ in range(5):
        get(port, "/")
    warm = [get(port, "/") for _ in range(100)]
    cold = []
    for _ in range(20):
        time.sleep(1.0)
        cold.append(get(port, "/"))
    harm = {
        last: [get(port, f"/api/v1/fleet/harm?last={last}&until_unix_s={time.time() - 10 - n:.0f}") for n in range(7)]
        for last in RANGES
    }
    drawn_ms = drawn(port)
    before = cpu_s(pid)
    watching(port, 1, "/events?pool=web", seconds)
    one_viewer = (cpu_s(pid) - before) / seconds
    before = cpu_s(pid)
    watching(port, 1, "/events", seconds)
    overview = (cpu_s(pid) - before) / seconds
    pages: list[float] = []
    before = cpu_s(pid)
    gaps = watching(port, 50, "/events?pool=web", seconds, lambda: pages.append(get(port, "/")))
    fifty = (cpu_s(pid) - before) / seconds
    year = f"/api/v1/pools/web/history?last_s={days * 86400:.0f}&step_s=7200&" + "&".join(
        f"node={node}" for node in names(servers)[:24]
    )
    week = "/api/v1/pools/web/history?last_s=604800&step_s=3600&" + year.rpartition("7200&")[2]
    return [
        ("the journal", f"{mb:,.0f} MB", f"{servers} servers, {days:g} days of minutes"),
        ("Overview, at the server, p95", f"{1e3 * p95(warm + cold):.0f} ms", "150 ms"),
        ("Overview that reads the journal anew, p95", f"{1e3 * p95(cold):.0f} ms", "150 ms"),
        ("Overview, drawn in Chromium, median of 7", f"{statistics.median(drawn_ms['/']):.0f} ms", "1,000 ms"),
        ("Pool with all servers and plots, drawn", f"{statistics.median(drawn_ms['/pools/web']):.0f} ms", ""),
        *(
            (
                f"Fleet with a heat map of {words}, drawn, median of 7 (range)",
                f"{spread(drawn_ms[path], '.0f')} ms{reached(drawn_ms[path])}",
                f"{DRAWN_MS} ms",
            )
            for words, path in (("24 h", "/fleet"), ("90 days", "/fleet?last=90d"))
        ),
        (
            f"Week of {servers} servers, drawn, median of 7 (range)",
            f"{spread(drawn_ms['/week'], '.0f')} ms{reached(drawn_ms['/week'])}",
            f"{DRAWN_MS} ms",
        ),
        *(
            (
                f"heat map of {last}, read from the journal anew, median of 7 (range)",
                f"{spread([1e3 * seconds for seconds in times], '.0f')} ms",
                "",
            )
            for last, times in harm.items()
        ),
        ("live updates of all servers at 1 Hz, one viewer", f"{100 * one_viewer:.1f} % of a core", "5 %"),
        ("live updates of the Overview at 1 Hz, one viewer", f"{100 * overview:.1f} % of a core", "5 %"),
        ("50 viewers of all servers at 1 Hz", f"{100 * fifty:.1f} % of a core", ""),
        ("... seconds between their events, p95", f"{p95(gaps):.2f} s", "1 s"),
        ("... and an Overview meanwhile, p95", f"{1e3 * p95(pages):.0f} ms", "150 ms"),
        (f"series of 24 servers over {days:g} days", f"{1e3 * get(port, year):.0f} ms", ""),
        ("series of 24 servers over 7 days", f"{1e3 * get(port, week):.0f} ms", ""),
        ("the audit log, searched over 90 days", f"{1e3 * get(port, '/changes?since=90d&q=nothing'):.0f} ms", ""),
    ]


OPTIONS = {
    "--servers": (int, 300, "servers in the journal"),
    "--days": (float, 90.0, "days of minutes in the journal"),
    "--seconds": (float, 30.0, "how long viewers watch"),
    "--folder": (Path, None, "keep the journal here, and use one that is there already"),
}


def bench(report: Report, options: argparse.Namespace) -> None:
    report.note(
        "A made-up journal: every server sends Samples five times a second while it is measured, and the journal is"
        " written twice a second. The writer's CPU does not count; the web server's is its process's, from /proc."
    )
    with scratch() as temporary:
        folder, port = options.folder or temporary, 18099
        if journal_path(folder).exists():
            with Journal.open(journal_path(folder)) as journal:
                mb = journal.used_bytes() / 1e6
        else:
            mb = make(folder, options.servers, options.days)
        with writing(folder, options.servers), web_server(folder, port) as pid:
            rows = measure(options.servers, options.days, options.seconds, mb, port, pid)
    report.table(("what", "measured", "goal"), rows)


if __name__ == "__main__":
    sys.exit(run("The dashboard, measured", __doc__, OPTIONS, bench))
