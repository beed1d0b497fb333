"""The cluster that chaos happens to: a lab whose controller, monitors and wsengines are units with links to the bus.

Machines of the story: `hostN` are the web servers; `lb1` is this namespace, with HAProxy and the controller; `lb2` is
a network namespace of the same machine, as a container has it, for a second controller. Each has a wall clock of its
own, and each machine a boot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from slackwater.core.bus import nats_server
from slackwater.core.bus.config import WSENGINE, ListedNode
from slackwater.core.config import CONTROLLER as CONTROLLER_USER
from slackwater.core.config import BusSettings, ControllerSettings
from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.bus import CERTIFICATE_FILE, POOL, certify, monitor_section, section_of
from slackwater_lab.cluster.bus import KEY_FILE as KEY_OF_BUS
from slackwater_lab.cluster.controller import node_toml
from slackwater_lab.cluster.hosts import BRIDGE_ADDRESS, FRONT_WEIGHT, TOP, Host, join_network, make_cgroups_of
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import BIN, LAB_DIR, program, system_program
from slackwater_lab.cluster.retunable import KEY_FILE, at_priority, make_keys, wsengine_toml
from slackwater_lab.cluster.spawn import Program, call, placed, wait_until
from tests.chaos import clock as clocks
from tests.chaos.clock import Clock
from tests.chaos.link import Link
from tests.chaos.unit import Unit

BUS = ("127.0.0.1", 14222)
RENAMED = "-renamed"
FIRST_LINK_PORT = 14300
STATE_DIR = LAB_DIR / "lb1/slackwater"
SETTINGS = ControllerSettings(pool=[], state_dir=str(STATE_DIR), bus=BusSettings(listen=f"{BUS[0]}:{BUS[1]}"))
"""What the first controller has of its bus."""
DISK_MIB = 64
JOURNAL_MAX_MB = 20
JOURNAL_SLACK_MB = 12
"""The write-ahead log, and what comes between two looks of the retention."""
READY_S = 90.0
TEND_S = 0.05
KNOBS = {"php_fpm": {"max_children": "[1, 64]"}, "apache": {"keepalive_timeout": "[1, 120]"}}
ORDER_LEASE_S = 20.0
CONTROLLER = "controller"
RESTORER = "unit"
"""Who `slackwater restore` is run by after a controller's end."""
SECOND = "controller2"


def controller_toml(state_dir: Path, admin_socket: Path, bus: str, web: str) -> str:
    """A controller's file. `bus` is the lines of its [bus] table."""
    return f"""\
state_dir = "{state_dir}"

[[pool]]
name = "{POOL}"
backend = "{POOL}"
socket = "{admin_socket}"
mode = "act"

[bus]
{bus}

[balancer_view]
mode = "off"

[web]
listen = "{web}"

[journal]
max_mb = {JOURNAL_MAX_MB}
min_free_mb = 4

[retune]
mode = "act"
order_key = "{KEY_FILE}"
no_room_after_s = 4
long_after_s = 8
lease_s = {ORDER_LEASE_S}
reload_min_interval_s = 3
"""


class Site:
    """Everything that faults can reach. As a context manager it is up within; the lab's own sweep removes the rest."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.second_host = Host(len(lab.hosts) + 1, lab.noisy.processors)
        self.units: dict[str, Unit] = {}
        self.links: dict[str, Link] = {}
        self.clocks: dict[str, Clock] = {}
        self.noises: dict[str, Noise] = {}
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Site:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            self._build()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        library = clocks.build(LAB_DIR)
        make_keys()
        STATE_DIR.mkdir(parents=True)
        call([system_program("mount"), "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0755", "tmpfs", str(STATE_DIR)])
        join_network(self.second_host)
        make_cgroups_of(self.second_host, self.lab.cgroups)
        self.lab.set_quota(self.second_host, self.lab.settings.quota_cores)
        self.second_host.folder.mkdir(parents=True, exist_ok=True)
        for name in ("lb1", "lb2", *(host.name for host in self.lab.hosts)):
            self.clocks[name] = Clock(LAB_DIR / name / "clock", library)
        certify()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(CERTIFICATE_FILE, KEY_OF_BUS)
        for number, name in enumerate(("lb2", *(host.name for host in self.lab.hosts))):
            self.links[name] = Link(name, (BRIDGE_ADDRESS, FIRST_LINK_PORT + number), BUS, self.seed, tls)
            self.links[name].start()
        names = [name for host in self.lab.hosts for name in (host.name, host.name + RENAMED)]
        nats_server.change_nodes(SETTINGS, lambda _: [ListedNode(POOL, name) for name in names])
        self._add_controllers()
        for host in self.lab.hosts:
            self._add_node(host)
        for unit in self.units.values():
            thread = threading.Thread(target=self._tend, args=(unit,), name=f"unit {unit.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _tend(self, unit: Unit) -> None:
        while not self._ended.wait(TEND_S):
            unit.tend()

    def _add_controllers(self) -> None:
        first = LAB_DIR / "lb1/controller.toml"
        socket = self.lab.balancer.admin_socket
        web = f"127.0.0.1:{free_port(8099)}"
        first.write_text(controller_toml(STATE_DIR, socket, f'listen = "{BUS[0]}:{BUS[1]}"', web))
        second = LAB_DIR / "lb2/controller.toml"
        link = section_of(SETTINGS, CONTROLLER_USER, self.links["lb2"].url)
        second.write_text(controller_toml(LAB_DIR / "lb2/slackwater", socket, link, "127.0.0.1:8099"))
        path = f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        # A path is one balancer on one machine: the second one is beside the first, as in a container of its own.
        boot = self._boot("lb1")
        for name, file, machine, netns in (
            (CONTROLLER, first, "lb1", None),
            (SECOND, second, "lb2", self.second_host.netns),
        ):
            cgroup = f"{TOP}/{name}"
            self.lab.cgroups.make(cgroup, weight=FRONT_WEIGHT)
            procs = self.lab.cgroups.procs_files(cgroup)
            slackwater = program("slackwater")
            restore = [slackwater, "restore", "--all", "--unless-driven"]
            self.units[name] = Unit(
                name,
                placed([*boot, slackwater, "serve", "--config", str(file)], procs, netns),
                LAB_DIR / machine,
                env={"PATH": path, "SUDO_USER": RESTORER, **self.clocks[machine].env},
                after=placed([*restore, "--config", str(file), "--why", "the service ended"], []),
                leftovers=self._in_cgroup(cgroup),
            )
        self.units[SECOND].wanted = False

    def _in_cgroup(self, cgroup: str) -> Callable[[], list[int]]:
        return lambda: self.lab.cgroups.pids(cgroup)

    def _add_node(self, host: Host) -> None:
        self.write_node(host, host.name)
        engine, monitor = str(BIN / "slackwater-wsengine"), str(BIN / "slackwater-monitor")
        for part, argv in (
            ("monitor", [monitor, "run", "--config", str(host.folder / "node.toml")]),
            ("wsengine", [*at_priority(), engine, "run", "--config", str(host.folder / "wsengine.toml")]),
        ):
            name = f"{part} of {host.name}"
            inside = host.inside([*self._boot(host.name), *argv], self.lab.cgroups)
            self.units[name] = Unit(name, inside, LAB_DIR / host.name, env=self.clocks[host.name].env)

    def write_node(self, host: Host, name: str) -> None:
        """The files of a node's parts, under this name; in force from their next start."""
        link = self.links[host.name]
        for file, text, user in (
            ("node.toml", node_toml(host, monitor_section(host)), name),
            ("wsengine.toml", wsengine_toml(host, POOL, KNOBS), WSENGINE + name),
        ):
            head, _, tail = text.partition("[bus]\n")
            section = f"[bus]\n{section_of(SETTINGS, user, link.url)}\n"
            text = head + section + tail[tail.index("\n[") :]
            (host.folder / file).write_text(text.replace(f'node = "{host.name}"', f'node = "{name}"'))

    def _boot(self, machine: str) -> list[str]:
        """The command before each program of a machine: it sees that machine's boot and machine id."""
        folder = LAB_DIR / machine
        (folder / "machine-id").write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, machine).hex}\n")
        self.new_boot(machine)
        mounts = (
            f"mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id && "
            f"mount --bind {folder}/machine-id /etc/machine-id && "
        )
        return [system_program("unshare"), "--mount", "/bin/sh", "-c", f'{mounts} exec "$@"', "boot"]

    def new_boot(self, machine: str) -> None:
        (LAB_DIR / machine / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def host(self, name: str) -> Host:
        return next(host for host in self.lab.hosts if host.name == name)

    def host_of(self, target: str) -> Host:
        """The host in a target such as `monitor of host2`."""
        return self.host(target.rsplit(" ", 1)[-1])

    def pids(self, target: str) -> list[int]:
        """The processes of a part: a unit's main one, a child of the controller, HAProxy, or a host's web servers."""
        if target in self.units:
            pid = self.units[target].pid
            return [pid] if pid else []
        if target == "haproxy":
            master = self.lab.balancer.program
            return [master.process.pid, *children_of(master.process.pid)] if master and master.running else []
        if target.startswith("web server"):
            names = (f"apache2 of {self.host_of(target).name}", f"php-fpm8.2 of {self.host_of(target).name}")
            mine = [program.process.pid for program in self._programs() if program.name in names and program.running]
            return [*mine, *(child for pid in mine for child in children_of(pid))]
        main = self.units[CONTROLLER].pid  # not serve.json: on a full disk that is an old one
        return [pid for pid in children_of(main) if part_of(pid) == target] if main else []

    def _programs(self) -> list[Program]:
        """Chaos is for hosts that are cgroups: their programs are processes of this machine."""
        return [program for program in self.lab.programs if isinstance(program, Program)]

    def signal(self, target: str, number: signal.Signals) -> None:
        """Sends a signal to all processes of a part; those that are gone meanwhile are left out."""
        for pid in self.pids(target):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_ready(self, judged: Callable[[], bool]) -> None:
        wait_until(judged, "a Verdict on each node that is not `unknown`", READY_S)

    def stop_web_server(self, host: Host) -> None:
        """Ends the web server at once, as the machine's end does."""
        for running in [running for running in self._programs() if running.name.endswith(f"2 of {host.name}")]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()
            self.lab.programs.remove(running)

    def _close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for noise in self.noises.values():
            noise.stop()
        for unit in self.units.values():
            unit.close()
        for link in self.links.values():
            link.close()


def children_of(pid: int) -> list[int]:
    """Direct children of a process (proc(5): task/TID/children); none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def part_of(pid: int) -> str:
    """A short name: the program, or the part that a controller's child is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return str(pid)
    if any("nats-server" in word for word in words):
        return "nats-server"
    return words[words.index("run") + 1] if "run" in words[:-1] else Path(words[0]).name
