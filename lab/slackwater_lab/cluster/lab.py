"""The lab as one context manager: all of it is up inside the `with`, nothing of it is left after.

What it made is found again by name (links, namespaces), by cgroup (processes) and by folder, so that `down` also
clears up after a crash; nothing else is touched.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from slackwater_lab.cluster import broken, limited, restarts, stress
from slackwater_lab.cluster import noise as noises
from slackwater_lab.cluster.applications import APPLICATIONS
from slackwater_lab.cluster.balancer import Balancer
from slackwater_lab.cluster.cgroups import PERIOD_S, Cgroups
from slackwater_lab.cluster.hosts import (
    ASIDE,
    FRONT,
    MOST,
    NEIGHBOUR_WEIGHT,
    Host,
    hosts,
    join_network,
    join_with_tap,
    make_cgroups,
    make_network,
)
from slackwater_lab.cluster.load import Demand, Load
from slackwater_lab.cluster.machines import (
    CgroupMachine,
    GuestProgram,
    HostKind,
    Machine,
    VirtualMachine,
)
from slackwater_lab.cluster.paths import LAB_DIR, LabError, program
from slackwater_lab.cluster.signal_handlers import ended_by_signals, undisturbed
from slackwater_lab.cluster.spawn import Running, compiled, placed, wait_until
from slackwater_lab.cluster.traces import STATE_FILE, locked, missing, start_ticks, sweep, traces
from slackwater_lab.cluster.webserver import MPMS, apache_command, fpm_command, make_retunable, write_configuration

READY_S = 60.0
WEB_SERVER = {"php-fpm8.2": fpm_command, "apache2": apache_command}
SCRIPTED = (broken.KIND, restarts.KIND, *limited.KINDS)
"""Kinds of noise that do something to the web server itself."""
Taken = TypeVar("Taken", bound=Running)


@dataclass(frozen=True)
class PreparedNoise:
    """The same noise in several hosts, which has not begun."""

    begin: Callable[[], list[noises.Noise]]
    """They are on when it returns. Raises LabError."""
    give_up: Callable[[], None]
    """Ends the noises before they begin."""
    fill: Callable[[], None] = lambda: None
    """Waits until their buffers are filled. Raises LabError."""


HYPERVISORS = {"uml": "User Mode Linux, steal hidden", "cgroup": "none: cgroups of this machine's kernel"}
"""What results say of each kind of host."""


@dataclass(frozen=True)
class LabSettings:
    """The shape of the lab. The figures in the documents are measured with the defaults."""

    hosts: int = 3
    quota_cores: float = 0.4
    cpus: int | None = None
    """CPUs that a host may run on; None: as many as its quota begins, as a virtual machine of that size. More are as a
    container's."""
    balance: str = "roundrobin"
    app: str = "events"
    php_children: int = 4
    retunable: bool = False
    """Each host has a wsengine's ways in: drop-in files and status pages."""
    mpm: str = "event"
    """How Apache works on requests: a word of `slackwater_lab.cluster.webserver.MPMS`."""
    kind: HostKind = "cgroup"
    """`uml`: each host is a virtual machine with a kernel of its own, User Mode Linux. It does not see the time that it
    waits for a CPU, as under VMware, Hyper-V, or without a steal clock."""
    period_s: float = PERIOD_S
    """A host gets its quota in slices: its cores times this, once in this time. 5 ms is nearly a slower processor,
    30 ms are Xen's slices."""
    by_event: bool = True
    """The monitors' Samples follow events; else there is one every 0.2 s, of which training counts."""
    pools: int = 1
    """Number of pools of nearly the same size, each a backend of the HAProxy."""
    haproxy: str = "haproxy"
    """The command of another version: `haproxy-3`, `haproxy-3.2`."""


class Lab:
    """Hosts with web servers, and HAProxy in front of them. `progress` gets lines for people."""

    def __init__(self, settings: LabSettings, progress: Callable[[str], None] = lambda _: None) -> None:
        if settings.app not in APPLICATIONS:
            raise LabError(f"no application `{settings.app}`; there are: {', '.join(APPLICATIONS)}")
        if settings.mpm not in MPMS:
            raise LabError(f"no MPM `{settings.mpm}` in the lab; there are: {', '.join(MPMS)}")
        if not 0.001 <= settings.period_s <= 1:
            raise LabError(f"a period of {settings.period_s:g} s: expected 1 ms to 1 s, as the kernel does")
        if not 2 <= settings.hosts <= MOST:
            raise LabError(f"{settings.hosts} hosts: expected 2 to {MOST}")
        if not 1 <= settings.pools <= settings.hosts:
            raise LabError(f"{settings.pools} pools of {settings.hosts} hosts: expected 1 to {settings.hosts}")
        self.settings = settings
        self.progress = progress
        self.app = APPLICATIONS[settings.app]
        self.hosts = hosts(settings.hosts, settings.cpus or math.ceil(settings.quota_cores), settings.pools)
        self.noisy = self.hosts[0]
        self.programs: list[Running] = []
        self.machines: dict[str, Machine] = {}
        """Host -> machine."""
        self._noises: list[noises.Noise] = []
        self._quotas: dict[str, float] = {}
        self._loads: list[Load] = []
        self._maker = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        if lacks := missing():
            raise LabError("the lab cannot run here; missing: " + "; ".join(lacks))
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(locked()):
                raise LabError("a lab is up already: run `slackwater lab down`")
            if leftovers := traces():
                raise LabError(f"a lab was left behind ({', '.join(leftovers)}): run `slackwater lab down`")
            stack.enter_context(ended_by_signals())
            stack.callback(self._tear_down)
            self._build()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        self.cgroups = Cgroups.of_this_machine()
        LAB_DIR.mkdir(mode=0o755)
        LAB_DIR.chmod(0o755)
        self.progress(f"lab: {len(self.hosts)} hosts of {self.settings.quota_cores:g} core, {self.app.name}")
        self._maker = compiled("noise", LAB_DIR)
        make_cgroups(self.hosts, self.cgroups)
        if self.settings.kind == "uml":
            self._build_virtual_machines()
        else:
            make_network(self.hosts, join_network)
            for host in self.hosts:
                self._lay_out(host)
                self.machines[host.name] = CgroupMachine(host, self.cgroups)
        for host in self.hosts:
            self.start_web_server(host)
        self.balancer = Balancer(LAB_DIR, self.hosts, self.settings.balance)
        self.start_balancer(self.settings.haproxy)
        self._write_state()
        for host in self.hosts:
            self.wait_for_page(f"http://{host.address}{self.app.paths[0]}")
        self.wait_for_page(self.balancer.url + self.app.paths[0])
        for host in self.hosts:
            self.machines[host.name].set_clock()
            self.set_quota(host, self.settings.quota_cores)
        self.progress(f"lab: ready at {self.balancer.url} ({self.settings.balance})")

    def set_quota(self, host: Host, cores: float) -> None:
        """Sets the host's CPU quota, which includes its neighbours' part."""
        self._quotas[host.name] = cores
        self.cgroups.make(host.cgroup, quota_cores=cores, period_s=self.settings.period_s)

    def _limit(self, host: Host, kind: str, share: float, seconds: float) -> noises.Noise:
        """Limits a host to a share of its quota."""
        usual = self._quotas[host.name]

        def set_share(kept: float) -> None:
            self.cgroups.make(host.cgroup, quota_cores=kept * usual, period_s=self.settings.period_s)

        return limited.start(host, kind, share, seconds, set_share, (usual, lambda: self.cgroups.cpu_s(host.cgroup)))

    def _build_virtual_machines(self) -> None:
        """They boot while their files are laid out, all at a time."""
        make_network(self.hosts, join_with_tap)
        booting: list[VirtualMachine] = []
        for host in self.hosts:
            booting.append(VirtualMachine(host, self.cgroups))
            self.machines[host.name] = booting[-1]
        for host in self.hosts:
            self._lay_out(host)
        for machine in booting:
            machine.wait_ready()
        self.progress(f"lab: virtual machines are up ({self.hypervisor})")

    def _lay_out(self, host: Host) -> None:
        root = self.app.lay_out(host)
        write_configuration(host, root, self.settings.php_children, self.settings.mpm)
        if self.settings.retunable:
            make_retunable(host)

    def start_balancer(self, command: str) -> None:
        """Starts HAProxy, in place of one that runs: `haproxy`, or another version as `haproxy-3.2`."""
        if self.balancer.program is not None:
            self.balancer.program.stop()
            self.programs.remove(self.balancer.program)
        self.balancer.start(self.in_front([program(command)]))
        if self.balancer.program is not None:
            self.add(self.balancer.program)

    def start_web_server(self, host: Host) -> None:
        for name, command in WEB_SERVER.items():
            self.add(self.machines[host.name].start(name, command(host, program(name)), f"{name}.log"))

    def _write_state(self) -> None:
        owner = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
        state = {
            "owner": owner,
            "settings": asdict(self.settings),
            "url": self.balancer.url,
            "paths": self.app.paths,
            "admin_socket": str(self.balancer.admin_socket),
            "hosts": {host.name: host.address for host in self.hosts},
        }
        draft = STATE_FILE.with_suffix(".new")
        draft.write_text(json.dumps(state, indent=2) + "\n")
        draft.rename(STATE_FILE)

    def wait_for_page(self, url: str) -> None:
        """Waits until the application answers at the URL. Raises LabError with the last answer."""
        last = "no answer"

        def answers() -> bool:
            nonlocal last
            try:
                with urllib.request.urlopen(url, timeout=5) as reply:
                    return reply.status == 200 and b"</html>" in reply.read()
            except urllib.error.HTTPError as error:
                last = f"{error} {error.read()[:400]!r}"
            except OSError as error:
                last = str(error)
            return False

        try:
            wait_until(answers, f"a page from {url}", READY_S, watch=self.programs)
        except LabError as error:
            raise LabError(f"{error}\nlast answer: {last}") from None

    def in_front(self, argv: list[str]) -> list[str]:
        """The command that runs `argv` beside the hosts, in the cgroup by which it is found again."""
        return placed(argv, self.cgroups.procs_files(FRONT))

    def aside(self, argv: list[str]) -> list[str]:
        """The command that runs `argv` where it takes nothing from the hosts, nor from what is in front."""
        return placed(argv, self.cgroups.procs_files(ASIDE))

    def add(self, started: Taken) -> Taken:
        """Takes a program into the lab's care: stopped with it, the last one first."""
        self.programs.append(started)
        return started

    def load(self, demand: Demand, seconds: float, url: str | None = None) -> Load:
        """Starts load on the balancer, or on the server with this URL."""
        urls = [(url or self.balancer.url) + path for path in self.app.paths]
        self._loads.append(Load(self.in_front([program("oha")]), LAB_DIR, urls, demand, seconds))
        return self._loads[-1]

    def noise(
        self, host: Host, kind: str, intensity: float, seconds: float, weight: int = NEIGHBOUR_WEIGHT
    ) -> noises.Noise:
        """Starts a neighbour in a host; it is on when this returns, and for at most `seconds`.

        `weight` is the neighbour's share of the host's CPU against the server's 100, as cgroups have it: with 100 each
        gets half, with 567 (or nearly six neighbours of 100) the server gets 15%. It is of all neighbours in the host.
        """
        return self.noise_in([host], kind, intensity, seconds, weight)[0]

    def noise_in(
        self, hosts: Sequence[Host], kind: str, intensity: float, seconds: float, weight: int = NEIGHBOUR_WEIGHT
    ) -> list[noises.Noise]:
        """The same in several hosts, at the same moment (those of stress-ng one after the other)."""
        return self.prepare_noise(hosts, kind, intensity, seconds, weight).begin()

    def prepare_noise(
        self, hosts: Sequence[Host], kind: str, intensity: float, seconds: float, weight: int = NEIGHBOUR_WEIGHT
    ) -> PreparedNoise:
        """The same, but it waits for its word. What it has to do before it does meanwhile, aside."""
        waiting: list[noises.Prepared] = []

        def place(host: Host) -> dict[str, Any]:
            files = self.cgroups.procs_files(host.neighbour)
            return {"quota_cores": self.settings.quota_cores, "procs_files": files, "wrap": self.aside(host.pin)}

        def begin() -> list[noises.Noise]:
            if kind in SCRIPTED:
                self._noises += (begun := [self._scripted(host, kind, intensity, seconds) for host in hosts])
                return begun
            for host in hosts:
                self.cgroups.make(host.neighbour, weight=weight)
            begun = noises.begin(waiting)
            self._noises += begun
            for host in () if waiting else hosts:
                begun.append(stress.start(host.name, kind, intensity, seconds, folder=LAB_DIR, **place(host)))
                self._noises.append(begun[-1])
            return begun

        def give_up() -> None:
            for prepared in waiting:
                prepared.give_up()

        def fill() -> None:
            for prepared in waiting:
                prepared.fill()

        for host in () if kind in (*stress.STRESSORS, *SCRIPTED) else hosts:
            more = {"address": host.address, **place(host)}
            waiting.append(noises.prepare(self._maker, host.name, kind, intensity, seconds, **more))
        return PreparedNoise(begin, give_up, fill)

    def _scripted(self, host: Host, kind: str, intensity: float, seconds: float) -> noises.Noise:
        if kind == broken.KIND:
            return broken.start(host, seconds)
        if kind in limited.KINDS:
            return self._limit(host, kind, intensity, seconds)
        names = (f"{name} of {host.name}" for name in WEB_SERVER)
        web_server = [running for name in names for running in self.programs if running.name == name]
        for running in web_server:
            self.programs.remove(running)
        return restarts.start(host, seconds, web_server, self.start_web_server)

    @property
    def hypervisor(self) -> str:
        """The hypervisor in words, and whether the hosts see steal."""
        return HYPERVISORS[self.settings.kind]

    def vm_cpu_s(self) -> float:
        """CPU seconds that the guests used so far, all together."""
        return sum(self.cgroups.cpu_s(host.vm) for host in self.hosts)

    def check(self) -> None:
        """Raises LabError when one of its programs has ended."""
        for running in self.programs:
            running.check()

    def _tear_down(self) -> None:
        with undisturbed():
            for loud in self._noises:
                loud.stop()
            for load in self._loads:
                load.stop()
            ours = [running for running in reversed(self.programs) if not isinstance(running, GuestProgram)]
            kinds: dict[str, list[Running]] = {}
            for running in ours:  # those in guests end with their machine
                kinds.setdefault(running.name.partition(" of ")[0], []).append(running)
            for alike in kinds.values():
                if len(alike) > 1:
                    for running in alike:
                        running.signal(signal.SIGTERM)
                for running in alike:
                    running.stop()
            for machine in self.machines.values():
                machine.stop()
            sweep()
