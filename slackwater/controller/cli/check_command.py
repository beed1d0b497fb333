"""`slackwater check`: everything that a controller needs, with a remedy for each thing that is missing."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Literal

import click
import msgspec

from slackwater.controller.capture import capture_remedy
from slackwater.controller.own_bus import ADDS
from slackwater.core import programs
from slackwater.core.bus import nats_server
from slackwater.core.config import ConfigError, ControllerSettings, PoolSettings, load
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.last_settings import load_or_last
from slackwater.core.messages import Cycle, Sample
from slackwater.core.options import config_option, seconds_of
from slackwater.core.state_dir import read_serve, running_serve
from slackwater.lbengine.backends.table import advice, balancer_of, check, lacks
from slackwater.lbengine.balancer import BalancerError, Snapshot
from slackwater.views.evenness import uneven_advice
from slackwater.views.headline import fails
from slackwater.views.pool import OUTAGES
from slackwater.views.row import clock, duration

HEARD_WITHIN_S = 5.0
LOOK_EVERY_S = 1.0
SURELY_SEEN_PER_S = 2.0
"""From this rate on, in requests per second, a monitor sees requests in each of its periods."""
SIGNS = {"ok": "✓", "warning": "!", "missing": "✕", "addition": "+"}
START = "systemctl enable --now slackwater-controller"
TIMES = "traffic.times"
ADD = "slackwater monitors"
"""The command that says how a server gets a monitor."""
MOST_REASONS = 3
"""Of servers of which no packets tell; the rarer ones are left out."""
LOG = "journalctl -u slackwater-controller"


class CheckLine(msgspec.Struct, frozen=True):
    """The result for one thing that was checked."""

    about: str
    state: Literal["ok", "warning", "missing", "addition"]
    text: str
    remedy: str = ""
    """What to do; empty where the text says it."""

    def __str__(self) -> str:
        remedy = f"\n    → {self.remedy}" if self.remedy else ""
        return f"{SIGNS[self.state]} {self.about}: {self.text}{remedy}"


@click.command(name="check", epilog="Example: slackwater check --wait 5m")
@config_option
@click.option(
    "--wait", "wait_s", callback=seconds_of, metavar="TIME", help="Look again until nothing is missing: 30s, 10m, 2h."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array, for programs.")
def check_controller(config_path: Path, wait_s: float | None, as_json: bool) -> None:
    """Look at the configuration, the balancers, the running controller and the web servers' monitors.

    A line with ✕ is something missing, with its remedy; the exit status is 1 then. A line with ! would be better
    otherwise: so it says, from measurements, which balance algorithm works best with Slackwater. A line with + is what
    may be added: monitors on the web servers. Run it as root or as the controller's user. On a web server
    `slackwater-monitor check` does the same.
    """
    logging.getLogger("slackwater.config").setLevel(logging.ERROR)  # a line of the result says the same
    until_s = time.monotonic() + (wait_s or 0.0)
    shown: set[CheckLine] = set()
    is_waiting = False
    while True:
        lines = list(_check_all(config_path))
        if not as_json:
            for line in lines:
                if line not in shown:
                    click.echo(str(line))
        shown = set(lines)
        missing = [line for line in lines if line.state == "missing"]
        if not missing or time.monotonic() >= until_s:
            break
        if not is_waiting:
            click.echo(f"waiting for what is missing, for {duration(until_s - time.monotonic())} at most", err=True)
        is_waiting = True
        time.sleep(LOOK_EVERY_S)
    if as_json:
        click.echo(msgspec.json.encode(lines).decode())
    elif missing:
        click.echo(f"missing: {len(missing)} of {len(lines)}")
    else:
        click.echo("nothing is missing")
    sys.exit(1 if missing else 0)


def _check_all(config_path: Path) -> Iterator[CheckLine]:
    try:
        load(config_path)
    except ConfigError as error:
        yield CheckLine("configuration", "missing", str(error), "" if config_path.exists() else "slackwater init")
    else:
        yield CheckLine("configuration", "ok", str(config_path))
    try:
        settings = load_or_last(config_path)
    except ConfigError:
        return
    for pool in settings.pool:
        yield from _balancer(settings, pool)
    if command := settings.replace.command:
        problem = programs.why_not_callable(command)
        yield CheckLine("replace.command", "missing" if problem else "ok", problem or command)
    is_running = yield from _controller(settings)
    for pool in settings.pool:
        yield from _nodes(settings, pool, is_running=is_running)


def _balancer(settings: ControllerSettings, pool: PoolSettings) -> Iterator[CheckLine]:
    about = f"balancer of pool {pool.name}"
    try:
        # As in observe mode: in act mode some balancers can only be asked by setting a weight.
        warnings = check(msgspec.structs.replace(pool, mode="observe"), settings.lbengine, settings.state_dir)
    except BalancerError as error:
        yield CheckLine(about, "missing", str(error))
        return
    yield CheckLine(about, "ok", pool.place)
    for warning in warnings:
        yield CheckLine(about, "warning", warning)
    for text in lacks(pool):
        yield CheckLine(about, "missing", text)


def _controller(settings: ControllerSettings) -> Generator[CheckLine, None, bool]:
    """Returns whether the controller runs."""
    pid = running_serve(settings.state_dir)
    if pid is None:
        yield CheckLine("controller", "missing", "it does not run", START)
        return False
    described = read_serve(Path(settings.state_dir)) or {}
    idle = [name for name, works in described.get("works", {}).items() if not works]
    if idle or not described:
        yield CheckLine("controller", "missing", f"no progress yet: {', '.join(idle) or 'all parts'}", LOG)
    else:
        yield CheckLine("controller", "ok", f"pid {pid}, dashboard {described.get('web') or 'off'}")
    last = described.get("reloads", {}).get("last") or {}
    if last.get("error"):
        yield CheckLine(
            "last reload", "missing", f"refused: {last['error']}", "correct the file, then slackwater reload"
        )
    return True


def _nodes(settings: ControllerSettings, pool: PoolSettings, *, is_running: bool) -> Iterator[CheckLine]:
    try:
        snapshot = balancer_of(pool, settings.lbengine.socket_timeout_s).read()
    except BalancerError:
        return  # `_balancer` reports it
    if (better := advice(pool, snapshot)) is not None:
        yield CheckLine(f"balance algorithm of pool {pool.name}", "warning", *better)
    yield from _servers(settings, pool, snapshot)
    cycle = _latest_cycle(settings, pool) if is_running else None
    if cycle is not None and cycle.outage is not None and time.time() - cycle.time_unix_s <= HEARD_WITHIN_S:
        since = clock(cycle.outage_since_unix_s or cycle.time_unix_s)
        failed = f"it {OUTAGES[cycle.outage]} since {since}: {cycle.sentence}"
        text = f"it answers this command, but not the controller: {failed}"
        yield CheckLine(f"balancer of pool {pool.name}", "missing", text, LOG)
        return  # nothing that the controller knows of its servers is new
    nodes_of_bus = (
        None if settings.bus.url else {node.name for node in nats_server.nodes_of(settings) if node.pool == pool.name}
    )
    heard, samples = _heard(settings, pool) if is_running else ({}, {})
    if is_running and settings.balancer_view.mode == "on":
        unmonitored = [sample for node, sample in samples.items() if _has_no_monitor(sample, heard.get(node, 0.0))]
        yield from view_lines(pool.name, unmonitored, capture_remedy(settings))
    sent: dict[str, float] = {}
    for cycle_server in () if cycle is None else cycle.servers:
        node = pool.servers.get(cycle_server.server, cycle_server.server)
        sent[node] = sent.get(node, 0.0) + (cycle_server.rps or 0.0)
    servers = [server.name for server in snapshot.servers if not server.backup and not server.placeholder]
    nodes = list(dict.fromkeys(pool.servers.get(server, server) for server in servers))
    by_balancer = {node for node in nodes if _has_no_monitor(samples.get(node), heard.get(node, 0.0))}
    needs_none = by_balancer if nodes_of_bus is None else set(nodes) - nodes_of_bus
    alone = [node for node in nodes if node in needs_none and settings.balancer_view.mode == "on"]
    for node in nodes:
        about = f"node {node} of pool {pool.name}"
        if node in alone:
            if node in by_balancer and (why := unseen(samples.get(node), 0.0)):
                yield CheckLine(about, "warning", f"nothing is known of its requests, so it is not judged: {why}", ADD)
            elif node in by_balancer:
                yield CheckLine(about, "ok", "its balancer sees it, and it is judged by its requests")
            elif is_running:
                silent = "has no Sample of it yet"
                if (last_unix_s := heard.get(node)) is not None:
                    silent = f"has had no Sample of it for {time.time() - last_unix_s:.0f} s"
                yield CheckLine(about, "missing", f"its balancer's view {silent}", LOG)
        elif nodes_of_bus is not None and node not in nodes_of_bus:
            yield CheckLine(
                about,
                "missing",
                "it has no login for the bus, so its monitor can send nothing",
                f"slackwater bus node add {pool.name} {node}",
            )
        elif not is_running:
            yield CheckLine(about, "missing", "nobody listens, as the controller does not run", START)
        elif node in by_balancer:
            seen = "its monitor is silent; it is judged by what its balancer sees of it meanwhile"
            yield CheckLine(about, "missing", seen, f"run `slackwater-monitor check` on {node}")
        elif (heard_unix_s := heard.get(node)) is None:
            remedy = "run `slackwater-monitor check` there; `systemctl enable --now slackwater-monitor` starts it"
            yield CheckLine(
                about,
                "missing",
                f"no measurement has come; its monitor should send them to {settings.bus.address}",
                remedy,
            )
        elif (age_s := time.time() - heard_unix_s) > HEARD_WITHIN_S:
            remedy = "run `systemctl status slackwater-monitor` and `slackwater-monitor check` there"
            yield CheckLine(about, "missing", f"the last measurement came {age_s:.0f} s ago", remedy)
        elif why := unseen(samples.get(node), sent.get(node, 0.0)):
            remedy = f"run `slackwater-monitor check` on {node}"
            yield CheckLine(about, "warning", f"its measurements arrive, but its requests are not known: {why}", remedy)
        else:
            yield CheckLine(about, "ok", "its measurements arrive")
    if alone:
        text = f"{len(alone)} of {len(nodes)} servers have none, and need none; one would add {ADDS}"
        yield CheckLine(f"monitors of pool {pool.name}", "addition", text, ADD)


def view_lines(pool: str, samples: Collection[Sample], remedy: str) -> Iterator[CheckLine]:
    """Whether packets or only counters tell of the servers without a monitor, by their fresh Samples. `remedy`: what
    the capture lacks on this host."""
    about = f"balancer's view of pool {pool}"
    reasons = Counter(
        (sample.absent[TIMES], "nothing tells" if sample.traffic is None else "only counters tell")
        for sample in samples
        if TIMES in sample.absent
    )
    if by_packets := len(samples) - reasons.total():
        text = f"packets tell the response times of {by_packets} of {len(samples)} servers without a monitor"
        yield CheckLine(about, "ok", text)
    for (reason, teller), count in reasons.most_common(MOST_REASONS):
        text = f"{teller} of {count} of {len(samples)} servers without a monitor: {reason}"
        yield CheckLine(about, "warning", text, remedy)


def _has_no_monitor(sample: Sample | None, heard_unix_s: float) -> bool:
    """Whether its last Sample is fresh and was made beside the balancer."""
    return sample is not None and sample.source == "balancer" and time.time() - heard_unix_s <= HEARD_WITHIN_S


def unseen(sample: Sample | None, sent_per_s: float) -> str:
    """Why a node's monitor does not see the requests that the balancer sends it; empty where it does, or may."""
    if sample is None:
        return ""
    if sample.traffic is None or sample.traffic.rps is None:
        return sample.absent.get("traffic") or sample.absent.get("traffic.rps") or ""
    if sample.traffic.rps == 0.0 and sent_per_s >= SURELY_SEEN_PER_S:
        sent = f"the balancer sends it {sent_per_s:.1f} requests/s"
        return f"{sent}, and its monitor sees none; do they come on `sniffer.ports`?"
    return ""


def _servers(settings: ControllerSettings, pool: PoolSettings, snapshot: Snapshot) -> Iterator[CheckLine]:
    """Servers that fail, or whose weight is lowered, by the controller's last Cycle."""
    cycle = _latest_cycle(settings, pool)
    if cycle is None or time.time() - cycle.time_unix_s > HEARD_WITHIN_S:
        return
    errors = [state.errors_per_s for state in cycle.servers if state.errors_per_s is not None]
    rates = [state.rps for state in cycle.servers if state.rps is not None]
    if errors and rates:
        text = f"{sum(rates):.1f} requests/s, {sum(errors):.1f} errors/s"
        yield CheckLine(f"requests of pool {pool.name}", "ok", text)
    if words := uneven_advice(cycle):
        yield CheckLine(f"unequal servers of pool {pool.name}", "ok", words)
    weights = {server.name: server.weight for server in snapshot.servers}
    for server in cycle.servers:
        about = f"server {server.server} of pool {pool.name}"
        if server.peers_failed_share is not None and server.failed_share is not None:
            failing = f"it {fails(server.failed_share, server.peers_failed_share)}"
            where = (
                f"look at its own error log; {server.errors_per_s or 0.0:.1f} errors/s now, and no load is moved to it"
            )
            yield CheckLine(about, "warning", failing, where)
        weight = weights.get(server.server)
        if server.cause is not None and weight is not None and weight < server.baseline:
            yield CheckLine(
                about, "ok", f"Slackwater has set its weight to {weight} of {server.baseline}: {server.why}"
            )


def _latest_cycle(settings: ControllerSettings, pool: PoolSettings) -> Cycle | None:
    try:
        with Journal.open(journal_path(settings.state_dir), read_only=True) as journal:
            return journal.latest_cycle(pool.name)
    except JournalError:
        return None


def _heard(settings: ControllerSettings, pool: PoolSettings) -> tuple[dict[str, float], dict[str, Sample]]:
    """The time (Unix, in s) at which each node's last Sample came, and these Samples, by node."""
    try:
        with Journal.open(journal_path(settings.state_dir), read_only=True) as journal:
            return dict(journal.received("sample", pool.name)), journal.latest_samples(pool.name)
    except JournalError:
        return {}, {}
