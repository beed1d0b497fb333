"""Hosts of the lab: each a network namespace on a bridge, and a cgroup with a CPU quota that two children share.

`vm` holds what the host serves with, `neighbour` holds what takes its time away: the guest sees only the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import LAB_DIR, PREFIX, LabError, system_program
from slackwater_lab.cluster.spawn import call, placed

TOP = "slackwater-lab"
"""The lab's cgroup."""

FRONT = f"{TOP}/front"
"""Cgroup of what runs beside the hosts: balancer, load generator."""

ASIDE = f"{TOP}/aside"
"""Cgroup of what must not be noticed: a noise that fills its buffers, and the controller, which on a site has a machine
of its own. It gets what nobody else wants."""

BRIDGE = f"{PREFIX}0"
NETWORK = "198.18.77"
NETWORK_BITS = 24
"""The network is in the range that RFC 2544 sets aside for benchmarks; it is never routed."""

BRIDGE_ADDRESS = f"{NETWORK}.1"

LAB_WEIGHT = 1000
FRONT_WEIGHT = 1000
"""The lab goes before whatever else the machine runs, and the generator, which must not be slow, before the hosts."""

NEIGHBOUR_WEIGHT = 100
"""The same weight as the guest's: each gets half where both want the CPU."""
JOBS_WEIGHT = 11
"""Relates to the web server's 100 as `nice 10` to `nice 0` (sched(7)), which counts within a cgroup only."""

POOL = "web"
"""The pool that all hosts are in; where there are several, what their names begin with."""
MOST = 200
"""The network has an address for each, and this machine's kernel a place for it in its table of neighbours."""


@dataclass(frozen=True)
class Host:
    """A web server's machine; `number` counts from 1, and `processors` are those of this machine that it runs on."""

    number: int
    processors: int = 1
    pool: str = POOL

    @property
    def name(self) -> str:
        return f"host{self.number}"

    @property
    def netns(self) -> str:
        return f"{PREFIX}-{self.name}"

    @property
    def link(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{10 + self.number}"

    @property
    def cgroup(self) -> str:
        return f"{TOP}/{self.name}"

    @property
    def vm(self) -> str:
        """All that is the guest's own."""
        return f"{self.cgroup}/vm"

    @property
    def web(self) -> str:
        """The web server, with the monitor beside it; a virtual machine as a whole."""
        return f"{self.vm}/web"

    @property
    def jobs(self) -> str:
        """The cgroup of the guest's other jobs, such as a backup; a virtual machine has its own cgroups for them."""
        return f"{self.vm}/jobs"

    @property
    def neighbour(self) -> str:
        return f"{self.cgroup}/neighbour"

    @property
    def folder(self) -> Path:
        return LAB_DIR / self.name

    @property
    def pin(self) -> list[str]:
        """The words before a command that keep it on the host's processors, as each of its programs must.

        The server's and the neighbours' shares of the CPU hold among those that want the same processor only.
        """
        available = sorted(os.sched_getaffinity(0))
        first = (self.number - 1) * self.processors
        own = {available[place % len(available)] for place in range(first, first + self.processors)}
        return [system_program("taskset"), "--cpu-list", ",".join(map(str, sorted(own)))]

    def inside(self, argv: Sequence[str], cgroups: Cgroups) -> list[str]:
        """The command that runs `argv` in the guest: its namespace and its `web` cgroup."""
        return placed([*self.pin, *argv], cgroups.procs_files(self.web), self.netns)


def hosts(count: int, processors: int = 1, pools: int = 1) -> list[Host]:
    """Hosts in pools of nearly the same size, each with hosts that follow each other."""
    names = [POOL] if pools == 1 else [f"{POOL}{number}" for number in range(1, pools + 1)]
    return [Host(number + 1, processors, names[number * pools // count]) for number in range(count)]


def make_network(members: Sequence[Host], join: Callable[[Host], None]) -> None:
    """A bridge with an address in this namespace, which each host joins."""
    ip = system_program("ip")
    for entry in json.loads(call([ip, "-j", "addr"])):
        for address in entry.get("addr_info", []):
            if str(address.get("local", "")).startswith(f"{NETWORK}."):
                raise LabError(f"{entry['ifname']} already has {address['local']}, of the lab's range {NETWORK}.0/24")
    call([ip, "link", "add", BRIDGE, "type", "bridge"])
    call([ip, "addr", "add", f"{BRIDGE_ADDRESS}/{NETWORK_BITS}", "dev", BRIDGE])
    call([ip, "link", "set", BRIDGE, "up"])
    for host in members:
        join(host)


def join_network(host: Host) -> None:
    """A namespace with `eth0` on the bridge."""
    ip = system_program("ip")
    call([ip, "netns", "add", host.netns])
    call([ip, "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.netns])
    call([ip, "link", "set", host.link, "master", BRIDGE, "up"])
    call([ip, "-n", host.netns, "addr", "add", f"{host.address}/{NETWORK_BITS}", "dev", "eth0"])
    for link in ("lo", "eth0"):
        call([ip, "-n", host.netns, "link", "set", link, "up"])


def join_with_tap(host: Host) -> None:
    """A tap on the bridge, for a virtual machine's network card."""
    ip = system_program("ip")
    call([ip, "tuntap", "add", host.link, "mode", "tap"])
    call([ip, "link", "set", host.link, "master", BRIDGE, "up"])


def network_traces() -> tuple[list[str], list[str]]:
    """Namespaces and links that carry the lab's names."""
    ip = system_program("ip")
    spaces = [line.split()[0] for line in call([ip, "netns", "list"]).splitlines() if line]
    links = [str(entry["ifname"]) for entry in json.loads(call([ip, "-j", "link"]) or "[]")]
    return (
        [name for name in spaces if name.startswith(f"{PREFIX}-host")],
        [name for name in links if name.startswith(PREFIX) and name[len(PREFIX) :].isdigit()],
    )


def remove_network() -> None:
    """Removes whatever there is of the lab's network; a veth goes with its namespace or its other end."""
    ip = system_program("ip")
    for space in network_traces()[0]:
        call([ip, "netns", "del", space])
    for link in network_traces()[1]:
        try:
            call([ip, "link", "del", link])
        except LabError:  # a veth whose namespace was just removed goes by itself, perhaps between the two calls
            if link in network_traces()[1]:
                raise


def make_cgroups(members: Sequence[Host], cgroups: Cgroups) -> None:
    """The lab's cgroups; no host has a quota yet, so they start at full speed."""
    cgroups.make(TOP, weight=LAB_WEIGHT)
    cgroups.make(FRONT, weight=FRONT_WEIGHT)
    cgroups.make(ASIDE, idle=True)
    for host in members:
        make_cgroups_of(host, cgroups)


def make_cgroups_of(host: Host, cgroups: Cgroups) -> None:
    cgroups.make(host.cgroup)
    cgroups.make(host.web)
    cgroups.make(host.jobs, weight=JOBS_WEIGHT)
    cgroups.make(host.neighbour, weight=NEIGHBOUR_WEIGHT)


def events_socket(host: Host) -> Path:
    """Where a search tells its wsengine of its hot function, while `hurry-up` runs."""
    return host.folder / "hot/socket"
