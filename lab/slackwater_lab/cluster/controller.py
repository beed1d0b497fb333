"""Slackwater in the lab: `slackwater serve` beside the balancer, and a `slackwater-monitor` in each guest unless the
balancer's view is all there is.

Real processes with generated files, as a site would run them; the lab looks at the journal from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slackwater.core.config import Law
from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.messages import Mode, Verdict
from slackwater.core.state_dir import read_serve
from slackwater_lab.cluster import bus
from slackwater_lab.cluster.balancer import free_port, pools_of
from slackwater_lab.cluster.bus import STATE_DIR
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.cluster.paths import BIN, LAB_DIR, LabError, program
from slackwater_lab.cluster.spawn import Program, Running, wait_until

CONTROLLER_FILE = LAB_DIR / "controller.toml"
JOURNAL_FILE = STATE_DIR / "journal.sqlite"
VIEW = "the balancer's view"
READY_S = 120.0
"""A deadline: where all servers have neighbours, a monitor begins slowly."""
STOP_S = 15.0
FRESH_S = 2.0


def controller_toml(
    pools: Sequence[str],
    admin_socket: Path,
    web_listen: str,
    mode: Mode,
    law: Law = "optimal",
    balance_step_s: float | None = None,
) -> str:
    """The controller's file, all else at its defaults. With `balance_step_s` it balances capacity in calm."""
    balance = "" if balance_step_s is None else f"balance_capacity = true\nbalance_step_s = {balance_step_s}\n"
    sections = "".join(
        f"""\
[[pool]]
name = "{pool}"
backend = "{pool}"
socket = "{admin_socket}"
mode = "{mode}"
law = "{law}"
{balance}
"""
        for pool in pools
    )
    return f"""\
state_dir = "{STATE_DIR}"

{sections}{bus.controller_section()}
[web]
listen = "{web_listen}"
"""


def node_toml(
    host: Host, bus_section: str, kind: HostKind = "cgroup", by_event: bool = True, off: Sequence[str] = ()
) -> str:
    """A node's file: as for a monitor in a virtual machine. Where the host is a cgroup, that is in its place.

    `off` are collectors that it lacks.
    """
    cgroups = {"cpu": host.vm, "processes": host.web} if kind == "cgroup" else {}
    sections = "".join(f'[{name}]\ncgroup = "{path}"\n\n' for name, path in cgroups.items())
    return f"""\
node = "{host.name}"
pool = "{host.pool}"

{bus_section}
{sections}[sniffer]
interface = "eth0"
ports = [80]

[pace]
by_event = {str(by_event).lower()}

[collectors]
off = {json.dumps(list(off))}
"""


def start_bus(lab: Lab) -> Program:
    """A nats-server alone, for recordings that need no controller."""
    bus.prepare(lab.hosts)
    argv = lab.in_front([program("nats-server"), "-c", str(bus.SITE.bus_folder / "nats.conf")])
    return lab.add(Program.start("nats-server", argv, LAB_DIR / "nats-server.log"))


def start_view(lab: Lab) -> Program:
    """The balancer's view alone of a controller, which tells monitors of their requests. The bus is up."""
    where = pools_of(lab.hosts), lab.balancer.admin_socket, f"127.0.0.1:{free_port(8099)}"
    CONTROLLER_FILE.write_text(controller_toml(*where, "observe") + "\n[balancer_view]\ntells_monitors = true\n")
    argv = lab.aside([program("slackwater"), "run", "balancer_view", "--config", str(CONTROLLER_FILE)])
    env = {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}"}
    return lab.add(Program.start(VIEW, argv, LAB_DIR / "view.log", env))


def start_monitors(lab: Lab, off: Sequence[str] = ()) -> list[Running]:
    """One in each guest, without the collectors that are named. The bus is up."""
    return [start_monitor(lab, host, off=off) for host in lab.hosts]


@contextlib.contextmanager
def monitored(
    lab: Lab, off: Sequence[str] = (), start: Callable[[], list[Running]] | None = None
) -> Iterator[BusListener]:
    """Monitors (started by `start`, or without the collectors `off`) whose Samples are heard; all hosts have sent some
    when it begins. The bus is up."""
    with BusListener() as listener:
        if start is None:
            start_monitors(lab, off)
        else:
            start()
        names = {host.name for host in lab.hosts}
        wait_until(lambda: listener.nodes() >= names, "Samples of all hosts", READY_S, watch=lab.programs)
        yield listener


def start_monitor(lab: Lab, host: Host, env: Mapping[str, str] | None = None, off: Sequence[str] = ()) -> Running:
    """It is in the `web` cgroup, so what it costs is the guest's to bear. `env` is for the monitor alone."""
    monitor = BIN / "slackwater-monitor"
    if not monitor.exists():
        raise LabError(f"{monitor} is missing: run `make setup`")
    machine = lab.machines[host.name]
    settings = lab.settings
    text = node_toml(host, bus.monitor_section(host), settings.kind, settings.by_event, off)
    config = machine.write("node.toml", text)
    return lab.add(
        machine.start("slackwater-monitor", [str(monitor), "run", "--config", str(config)], "monitor.log", env)
    )


class Controller:
    """Slackwater over the lab's balancer. In `observe` mode it decides and records, in `act` it sets weights."""

    def __init__(
        self,
        lab: Lab,
        mode: Mode,
        law: Law = "optimal",
        *,
        monitors: bool = True,
        balance_step_s: float | None = None,
    ) -> None:
        """`monitors`: the guests have monitors; without, servers are judged by what their balancer sees.
        `balance_step_s`: as for `controller_toml`."""
        self.lab = lab
        self.law: Law = law
        self.balance_step_s = balance_step_s
        self.monitors = monitors
        self.web = f"127.0.0.1:{free_port(8099)}"
        self.dashboard = f"http://{self.web}"
        self.program: Program | None = None
        self._monitors: list[Running] = []
        self._journal: Journal | None = None
        self.write(mode)

    def write(self, mode: Mode) -> None:
        """Writes the controller's file; in force from the next start."""
        bus.prepare(self.lab.hosts)
        where = pools_of(self.lab.hosts), self.lab.balancer.admin_socket, self.web
        text = controller_toml(*where, mode, self.law, self.balance_step_s)
        CONTROLLER_FILE.write_text(text)

    def start(self, monitors: Callable[[], list[Running]] | None = None) -> None:
        """Starts serve and, the first time, the monitors (by `monitors`); waits until it judges all nodes."""
        serve = [program("slackwater"), "serve", "--config", str(CONTROLLER_FILE)]
        argv = self.lab.aside(serve)
        env = {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}"}
        self.program = Program.start("slackwater serve", argv, LAB_DIR / "serve.log", env)
        self.lab.add(self.program)
        if self.monitors and not self._monitors:
            self._monitors = monitors() if monitors else start_monitors(self.lab)
        wait_until(
            self.judges_all,
            "a Verdict on each node that is not `unknown`",
            READY_S,
            watch=[self.program, *self._monitors],
        )

    def add_monitors(self) -> None:
        """Starts a monitor in each guest beside a controller that runs; waits until it judges all nodes by them."""
        self.monitors = True
        self._monitors = start_monitors(self.lab)
        wait_until(
            lambda: self.judges_all() and all(verdict.cpu is not None for verdict in self.verdicts().values()),
            "a Verdict on each node by its monitor's Samples",
            READY_S,
            watch=self._monitors,
        )

    def stop(self) -> None:
        """Ends serve; it puts the baseline weights back. The monitors stay."""
        if self.program is not None:
            self.program.stop(STOP_S)
            self.lab.programs.remove(self.program)
            self.program = None

    def restart(self, mode: Mode) -> None:
        self.stop()
        self.write(mode)
        self.start()

    @property
    def journal(self) -> Journal | None:
        """The controller's journal, open for reading; None while it has not made one."""
        if self._journal is None:
            with contextlib.suppress(JournalError):
                self._journal = Journal.open(JOURNAL_FILE, read_only=True)
        return self._journal

    def verdicts(self) -> dict[str, Verdict]:
        """Each node's latest Verdict; none while there is no journal yet."""
        try:
            if (journal := self.journal) is None:
                return {}
            of_pools = [journal.latest_verdicts(pool) for pool in pools_of(self.lab.hosts)]
            return {node: verdict for of_pool in of_pools for node, verdict in of_pool.items()}
        except JournalError:
            return {}

    def judges_all(self) -> bool:
        """Whether there is a Verdict of the last seconds on each node, and none of them is `unknown`."""
        verdicts = self.verdicts()
        fresh = time.time() - FRESH_S
        return all(
            name in verdicts and verdicts[name].state != "unknown" and verdicts[name].time_unix_s > fresh
            for name in (host.name for host in self.lab.hosts)
        )

    def child_pid(self, name: str) -> int | None:
        """Process of one of serve's children, such as `detector`; None while it is down."""
        pid = (read_serve(STATE_DIR) or {}).get("children", {}).get(name)
        return pid if isinstance(pid, int) else None
