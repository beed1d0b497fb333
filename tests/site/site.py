"""The test site: three web servers behind a HAProxy, made of Debian's programs with Debian's files.

    with Site(Shape(balance="leastconn")) as site:
        site.load(60, 30).finish()

Each of its four machines has namespaces and a cgroup of its own; several sites run side by side. All is gone after the
`with`, also when it is left by SIGTERM. What a process that was killed has left is removed by the next site.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from slackwater_lab.cluster import noise as noises
from slackwater_lab.cluster.balancer import Snapshot, ask, master_hears, parse_stat
from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import LabError, program, system_program
from slackwater_lab.cluster.signal_handlers import ended_by_signals, undisturbed
from slackwater_lab.cluster.spawn import Program, call, compiled, wait_until
from slackwater_lab.cluster.traces import missing as missing_of_lab
from tests.site import debian, load, relay
from tests.site.apps import APPS
from tests.site.machine import END_WITHIN_S, Machine, Service, owner_name, remove_leftovers
from tests.support.paths import ROOT

TOP = "slackwater-site"
"""Cgroup in which each site has one."""
FOLDER = Path("/var/lib/slackwater-site")
POOL = "web"
BALANCER_ADDRESS = "10.0.0.5"
NETWORK_BITS = 24
PERIOD_S = 0.1
"""The kernel's own."""
SITE_WEIGHT = 1000
"""The site goes before what else the machine does."""
READY_S = 60.0
FINISH_S = load.TIMEOUT_S + 15.0
HAPROXY = ["-Ws", "-f", "/etc/haproxy/haproxy.cfg", "-p", "/run/haproxy.pid", "-S", "/run/haproxy-master.sock"]
"""The command line of Debian's haproxy.service."""
ADMIN_SOCKET = "/run/haproxy/admin.sock"
SERVICES = {
    "php-fpm": "mkdir -p /run/php; exec /usr/sbin/php-fpm8.2 --nodaemonize --fpm-config /etc/php/8.2/fpm/php-fpm.conf",
    "apache": ". /etc/apache2/envvars; mkdir -p $APACHE_RUN_DIR /run/lock/apache2; exec /usr/sbin/apache2 -DFOREGROUND",
}


@dataclass(frozen=True)
class Shape:
    """What a site is made of."""

    balance: str = "leastconn"
    app: str = "burn"
    haproxy: str = "haproxy"
    """The command: Debian 12's, or another release's as `haproxy-3`."""
    tls: bool = False
    """HAProxy asks its servers over TLS."""
    servers: int = 3
    quota_cores: float = 0.3


SHAPES: dict[str, Shape] = {
    "stock": Shape(),
    "random": Shape(balance="random"),
    "roundrobin": Shape(balance="roundrobin"),
    "haproxy-3.0": Shape(haproxy="haproxy-3"),
    "haproxy-3.4": Shape(haproxy="haproxy-3.4"),
    "tls": Shape(tls=True),
    "tls-haproxy-3.0": Shape(haproxy="haproxy-3", tls=True),
    "plain-apache": Shape(app="static"),
    "plain-apache-tls": Shape(app="static", tls=True),
}


def missing() -> list[str]:
    """What a site lacks on this machine, each with the way to get it; empty: it can start."""
    lacking = missing_of_lab()
    if "\toverlay" not in Path("/proc/filesystems").read_text():
        lacking.append("overlayfs, of which each machine of the site is made (`modprobe overlay`)")
    for name in ("setpriv", "unshare"):
        with contextlib.suppress(LabError):
            system_program(name)
            continue
        lacking.append(f"{name} (util-linux)")
    return lacking


@dataclass
class WebServer:
    """One web server's machine; `number` counts from 1."""

    number: int
    site_cgroup: str
    machine: Machine = field(init=False)
    services: dict[str, Service] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"web{self.number}"

    @property
    def address(self) -> str:
        return f"10.0.0.{10 + self.number}"

    @property
    def cgroup(self) -> str:
        """The cgroup that has the quota."""
        return f"{self.site_cgroup}/{self.name}"

    @property
    def vm(self) -> str:
        """All that is the machine's own."""
        return f"{self.cgroup}/vm"

    @property
    def neighbour(self) -> str:
        return f"{self.cgroup}/neighbour"


class Load:
    """A running generator."""

    def __init__(self, process: Program, out: Path, seconds: float) -> None:
        self._process, self._out = process, out
        self.begin_mono_s = time.monotonic()
        self.seconds = seconds

    def so_far(self) -> load.Requests:
        """What was answered until now."""
        return load.read(self._out)

    def finish(self) -> load.Requests:
        """Waits for the end, and for the answers that are on their way. Raises LabError."""
        left_s = self.begin_mono_s + self.seconds + FINISH_S - time.monotonic()
        try:
            status = self._process.process.wait(max(1.0, left_s))
        except subprocess.TimeoutExpired:
            self.stop()
            raise LabError(f"the load did not end within {FINISH_S:g} s after its time") from None
        if status != 0:
            raise LabError(f"the load ended with status {status}: {self._process.log_end()}")
        return self.so_far()

    def stop(self) -> None:
        self._process.process.kill()
        self._process.process.wait()


class Site:
    """The site, up inside `with`. `progress` gets lines for people."""

    def __init__(self, shape: Shape, progress: Callable[[str], None] = lambda _: None) -> None:
        self.shape = shape
        self.app = APPS[shape.app]
        self.progress = progress
        self.name = owner_name()
        self._machines: list[Machine] = []
        self._noises: list[noises.Noise] = []
        self._loads: list[Load] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Site:
        if lacks := missing():
            raise LabError("the site cannot run here; missing: " + "; ".join(lacks))
        with contextlib.ExitStack() as stack:
            stack.enter_context(ended_by_signals())
            self.cgroups = Cgroups.of_this_machine()
            remove_leftovers(self.cgroups, TOP, FOLDER)
            FOLDER.mkdir(mode=0o755, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=FOLDER))
            self.folder.chmod(0o755)
            self.cgroup = f"{TOP}/{self.folder.name}"
            stack.callback(self._tear_down)
            self._build()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _build(self) -> None:
        self.webs = [WebServer(number + 1, self.cgroup) for number in range(self.shape.servers)]
        self._maker = compiled("noise", self.folder)
        for path, weight in ((TOP, SITE_WEIGHT), (self.cgroup, 100), (self.front, 100)):
            self.cgroups.make(path, weight=weight)
        self.balancer = self._machine("balancer", self.front, self._balancer_layer())
        layer = self._web_layer()
        for web in self.webs:
            for path in (web.cgroup, web.vm, web.neighbour):
                self.cgroups.make(path)
            web.machine = self._machine(web.name, web.vm, layer)
        self._make_network()
        for web in self.webs:
            self.start_web_server(web)
        self.start_haproxy()
        for web in self.webs:
            self._wait_for_page(web.address, 80)
            self.set_quota(web, self.shape.quota_cores)
        self._wait_for_page(BALANCER_ADDRESS, 80)
        self.progress(f"site: {len(self.webs)} servers of {self.shape.quota_cores:g} core, {self.shape}")

    @property
    def front(self) -> str:
        return f"{self.cgroup}/front"

    def _machine(self, name: str, cgroup: str, layer: Path) -> Machine:
        self._machines.append(Machine(name, self.cgroups, cgroup, layer, self.folder))
        return self._machines[-1]

    def _balancer_layer(self) -> Path:
        layer = self.folder / "balancer-files"
        debian.add_users(layer)
        debian.add_folders(layer, ("var/lib/haproxy", "etc/slackwater"))
        debian.add_program(layer, "slackwater-sniffer")
        python = f"PYTHONPATH={ROOT} exec {sys.executable} -m slackwater.controller.cli.main"
        ours = {"slackwater": f'#!/bin/sh\n{python} "$@"\n', **dict.fromkeys(relay.PROGRAMS, relay.ASKING)}
        debian.add_files(layer, {f"usr/bin/{name}": text for name, text in ours.items()}, executable=True)
        addresses = {web.name: web.address for web in self.webs}
        config = debian.haproxy_cfg(addresses, self.shape.balance, tls=self.shape.tls)
        debian.add_files(layer, {"etc/haproxy/haproxy.cfg": config})
        return layer

    def _web_layer(self) -> Path:
        layer = self.folder / "web-files"
        debian.add_users(layer)
        debian.add_folders(layer, ("etc/slackwater",))
        debian.add_apache(layer, fpm=self.app.needs_fpm, tls=self.shape.tls)
        if self.app.needs_fpm:
            debian.add_php(layer)
        debian.add_program(layer, "slackwater-monitor")
        debian.add_files(layer, {"usr/bin/systemctl": relay.ASKING}, executable=True)
        self.app.lay_out(layer)
        return layer

    def _make_network(self) -> None:
        """A bridge in the balancer's machine, which the web servers are on."""
        ip, balancer = system_program("ip"), str(self.balancer.pid)
        self.balancer.call("ip", "link", "add", "eth0", "type", "bridge")
        self.balancer.call("ip", "addr", "add", f"{BALANCER_ADDRESS}/{NETWORK_BITS}", "dev", "eth0")
        self.balancer.call("ip", "link", "set", "eth0", "up")
        for web in self.webs:
            there = ("peer", "name", "eth0", "netns", str(web.machine.pid))
            call([ip, "link", "add", web.name, "netns", balancer, "type", "veth", *there])
            self.balancer.call("ip", "link", "set", web.name, "master", "eth0", "up")
            web.machine.call("ip", "addr", "add", f"{web.address}/{NETWORK_BITS}", "dev", "eth0")
            web.machine.call("ip", "link", "set", "eth0", "up")

    def start_web_server(self, web: WebServer) -> None:
        for name in [*(["php-fpm"] if self.app.needs_fpm else []), "apache"]:
            self.start_service(web, name)

    def start_service(self, web: WebServer, name: str) -> None:
        """One of a web server's, as Debian's unit does."""
        web.services[name] = web.machine.start(name, ["/bin/sh", "-c", SERVICES[name]])

    def start_haproxy(self) -> None:
        name = self.shape.haproxy
        command = "/usr/sbin/haproxy" if name == "haproxy" else program(name)
        self.balancer.call("mkdir", "-p", "/run/haproxy")
        self.haproxy = self.balancer.start("haproxy", [command, *HAPROXY])
        wait_until(lambda: "Pid:" in self._info(), "HAProxy's admin socket", READY_S, watch=[self.haproxy])

    def _info(self) -> str:
        with contextlib.suppress(LabError):
            return self.ask("show info")
        return ""

    def reload_haproxy(self) -> None:
        """Does what `systemctl reload haproxy` does; waits until the new worker alone answers."""
        pid = self.haproxy.pid
        before = self._worker()
        wait_until(lambda: master_hears(pid or 0, self._info()), "HAProxy's master", READY_S, watch=[self.haproxy])
        self.haproxy.signal(signal.SIGUSR2)
        changed = lambda: self._worker() not in (None, before)  # noqa: E731
        wait_until(changed, "HAProxy's new worker", READY_S, watch=[self.haproxy])

    def _worker(self) -> str | None:
        """Its process, as it says itself."""
        return next((line for line in self._info().splitlines() if line.startswith("Pid:")), None)

    def ask(self, command: str) -> str:
        """HAProxy's answer on its admin socket. Raises LabError."""
        return ask(self.balancer.place(ADMIN_SOCKET), command)

    def snapshot(self) -> Snapshot:
        return parse_stat(self.ask(f"show stat {POOL} 4 -1"), time.monotonic())

    def _wait_for_page(self, host: str, port: int) -> None:
        services = [service for web in self.webs for service in web.services.values()]
        event = f"a page from {host}:{port}{self.app.paths[0]}"
        wait_until(lambda: self.get(host, port, self.app.paths[0])[0] == 200, event, READY_S, watch=services)

    def get(self, host: str, port: int, path: str, within_s: float = 10.0) -> tuple[int, str]:
        """Status and text of a page, asked for in the balancer's network; status 0: no answer came."""
        connection = http.client.HTTPConnection(host, port, timeout=within_s)
        try:
            connection.sock = self.balancer.connect(host, port, within_s)
            connection.request("GET", path)
            with connection.getresponse() as reply:
                return reply.status, reply.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def set_quota(self, web: WebServer, cores: float) -> None:
        """What the server gets of the CPU from now on, its neighbours' part included."""
        self.cgroups.make(web.cgroup, quota_cores=cores, period_s=PERIOD_S)

    def load(self, rps: float, seconds: float) -> Load:
        """Starts load on HAProxy."""
        out = self.folder / f"load-{time.monotonic_ns()}"
        paths = [word for path in self.app.paths for word in ("--path", path)]
        words = ["--url", f"http://{BALANCER_ADDRESS}", *paths, "--rps", f"{rps:g}", "--seconds", f"{seconds:g}"]
        argv = [sys.executable, "-m", "tests.site.load", *words, "--out", str(out)]
        inside = self.balancer.beside([system_program("env"), f"PYTHONPATH={ROOT}", *argv], self.front)
        self._loads.append(Load(Program.start("load", inside, out.with_suffix(".log")), out, seconds))
        return self._loads[-1]

    def prepare_noise(self, web: WebServer, kind: str, seconds: float, intensity: float = 1.0) -> noises.Prepared:
        """A neighbour that waits for its word, `noises.begin`."""
        return noises.prepare(
            self._maker,
            web.name,
            kind,
            intensity,
            seconds,
            quota_cores=self.shape.quota_cores,
            procs_files=self.cgroups.procs_files(web.neighbour),
            address=web.address,
            wrap=self.balancer.beside([], self.front),
        )

    def begin_noise(self, waiting: Sequence[noises.Prepared]) -> list[noises.Noise]:
        """They are on when it returns."""
        begun = noises.begin(waiting)
        self._noises += begun
        return begun

    def _tear_down(self) -> None:
        with undisturbed():
            for loud in self._noises:
                loud.stop()
            for running in self._loads:
                running.stop()
            for machine in reversed(self._machines):
                machine.end()
            self.cgroups.clear(self.cgroup, END_WITHIN_S)
            shutil.rmtree(self.folder, ignore_errors=True)
