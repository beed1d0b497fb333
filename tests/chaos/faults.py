"""Every fault: one small function that begins it and gives what undoes it, and one line in one table."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slackwater.core.bus.config import WSENGINE
from slackwater_lab.cluster.bus import as_node
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError, system_program
from slackwater_lab.cluster.spawn import call
from tests.chaos import starts
from tests.chaos.hostile import Hostile
from tests.chaos.link import State
from tests.chaos.schedule import Injection, Kind
from tests.chaos.site import CONTROLLER, RENAMED, SECOND, SETTINGS, STATE_DIR, Site
from tests.chaos.unit import RESTART_S

Undo = Callable[[], None]
Inject = Callable[[Site, Injection], Undo]

DAY_S = 86_400.0
STEPS_S = tuple(sign * step for step in (1.0, 10.0, 3600.0, DAY_S, 100 * DAY_S, 365 * DAY_S) for sign in (1, -1))
KILL_EVERY_S = 0.7
BALLAST = STATE_DIR / "ballast"
HAPROXIES = ("haproxy-3", "haproxy-3.2")


@dataclass(frozen=True)
class Fault:
    """A fault, and what it explains by itself.

    `fails_requests`: HAProxy or a web server is hurt, so requests may fail. `takes_balancer`: HAProxy does not answer,
    or forgets the weights that were set. `takes_journal`: a Change cannot be written down. `takes_node`: the host's own
    parts cannot do anything.
    """

    kind: Kind
    inject: Inject
    fails_requests: bool = False
    takes_balancer: bool = False
    takes_journal: bool = False
    takes_node: bool = False


def _nothing() -> None:
    """The undoing of a fault that is over as soon as it has begun."""


def kill(site: Site, injection: Injection) -> Undo:
    site.signal(injection.target, signal.SIGKILL)
    return _nothing


def kill_web_server(site: Site, injection: Injection) -> Undo:
    """Apache and php-fpm are gone at once, and started again as by their units."""
    host = site.host_of(injection.target)
    site.stop_web_server(host)
    return lambda: site.lab.start_web_server(host)


def hang(site: Site, injection: Injection) -> Undo:
    """The same processes go on afterwards; what was started in their place is left alone."""
    stopped = site.pids(injection.target)
    site.signal(injection.target, signal.SIGSTOP)

    def go_on() -> None:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfds[pid], signal.SIGCONT)

    pidfds = _pidfds(stopped)
    return go_on


def _pidfds(pids: list[int]) -> dict[int, int]:
    pidfds = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfds[pid] = os.pidfd_open(pid)
    return pidfds


def restart_loop(site: Site, injection: Injection) -> Undo:
    """Killed again and again, so soon that it gets nothing done."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            site.signal(injection.target, signal.SIGKILL)
            over.wait(KILL_EVERY_S)

    thread = threading.Thread(target=run, name="restart loop", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def full_disk(site: Site, injection: Injection) -> Undo:  # noqa: ARG001
    """Until nothing more fits; and again, as soon as something else has gone."""
    over = threading.Event()

    def fill() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), BALLAST.open("ab", buffering=0) as file:
                while not over.is_set():
                    file.write(b"\0" * 65536)
            over.wait(0.2)

    thread = threading.Thread(target=fill, name="full disk", daemon=True)
    thread.start()

    def empty() -> None:
        over.set()
        thread.join()
        BALLAST.unlink(missing_ok=True)

    return empty


def read_only_disk(site: Site, injection: Injection) -> Undo:  # noqa: ARG001
    """The controller starts on it: a mount with files open for writing cannot be made read-only."""
    mount = [system_program("mount"), "-o"]
    unit = site.units[CONTROLLER]
    unit.wanted = False
    unit.send(signal.SIGKILL)
    with contextlib.suppress(LabError):
        _until_mounted([*mount, "remount,ro", str(STATE_DIR)])
    unit.up()

    def writable() -> None:
        call([*mount, "remount,rw", str(STATE_DIR)])

    return writable


def _until_mounted(argv: list[str]) -> None:
    for _ in range(50):
        try:
            call(argv)
        except LabError:
            time.sleep(0.1)
        else:
            return
    call(argv)


def step_clock(site: Site, injection: Injection) -> Undo:
    clock = site.clocks[injection.target]
    clock.step_to(float(injection.value or 0.0))
    return lambda: clock.step_to(0.0)


def partition(site: Site, injection: Injection) -> Undo:
    link = site.links[injection.target]
    for direction in ("to_bus", "from_bus"):
        if injection.value in (direction, "both"):
            link.state[direction] = State(stalled=True)
    return link.restore


def slow_bus(site: Site, injection: Injection) -> Undo:
    link = site.links[injection.target]
    link.state = {
        "to_bus": State(delay_s=float(injection.value or 0)),
        "from_bus": State(delay_s=float(injection.value or 0)),
    }
    return link.restore


def disorder(site: Site, injection: Injection) -> Undo:
    link = site.links[injection.target]
    link.state = {
        "to_bus": State(share=float(injection.value or 0)),
        "from_bus": State(share=float(injection.value or 0)),
    }
    return link.restore


def cut(site: Site, injection: Injection) -> Undo:
    site.links[injection.target].cut()
    return _nothing


def neighbour(site: Site, injection: Injection) -> Undo:
    hosts = site.lab.hosts if injection.target == "all hosts" else [site.host(injection.target)]
    started: list[Noise] = site.lab.noise_in(hosts, "llcprobe", 1.0, injection.seconds + 5.0)

    def leave() -> None:
        for noise in started:
            noise.stop()

    return leave


def reload_haproxy(site: Site, injection: Injection) -> Undo:  # noqa: ARG001
    site.lab.balancer.reload()
    return _nothing


def restart_haproxy(site: Site, injection: Injection) -> Undo:
    """Starts HAProxy again: the same program, or that of another version until the fault is over."""
    if injection.value is None:
        site.lab.start_balancer("haproxy")
        return _nothing
    site.lab.start_balancer(str(injection.value))
    return lambda: site.lab.start_balancer("haproxy")


def reboot(site: Site, injection: Injection) -> Undo:
    """All that the machine runs is gone at once; it comes back with another boot id."""
    host = site.host(injection.target)
    units = [unit for unit in site.units.values() if unit.name.endswith(f" of {host.name}")]
    for unit in units:
        unit.down()
    site.stop_web_server(host)

    def boot() -> None:
        site.new_boot(host.name)
        site.lab.start_web_server(host)
        for unit in units:
            unit.up()

    return boot


def rename(site: Site, injection: Injection) -> Undo:
    """The node's parts start again under another name, which no server in HAProxy has; and later under its own."""
    host = site.host(injection.target)
    units = [unit for unit in site.units.values() if unit.name.endswith(f" of {host.name}")]

    def under(name: str) -> None:
        site.write_node(host, name)
        for unit in units:
            unit.send(signal.SIGTERM)

    under(host.name + RENAMED)
    return lambda: under(host.name)


def second_controller(site: Site, injection: Injection) -> Undo:  # noqa: ARG001
    unit = site.units[SECOND]
    unit.up()

    def end() -> None:
        unit.wanted = False
        unit.send(signal.SIGTERM)

    return end


def hostile_node(site: Site, injection: Injection) -> Undo:
    """Somebody who has all that a node has, and says what a node could say, more often than a node would."""
    parts = [
        as_node(SETTINGS, user, site.links[injection.target].url)
        for user in (injection.target, WSENGINE + injection.target)
    ]
    hostile = Hostile(parts[0], parts[1], injection.target, str(injection.value), site.seed)
    hostile.start()
    return hostile.stop


CHILDREN = ("detector", "lbengine", "journal", "retune", "web")
MORE = {"detector": 2, "lbengine": 4, "journal": 2}
"""How often a child is hit, beside the others' once."""


def table(hosts: list[str]) -> dict[str, Fault]:
    """All faults of a cluster with these hosts, by name."""
    node_parts = [f"{part} of {host}" for part in ("monitor", "wsengine") for host in hosts]
    children = [child for child in CHILDREN for _ in range(MORE.get(child, 1))]
    parts = [*children, "nats-server", CONTROLLER, *node_parts]
    links = [*hosts, "lb2"]
    web_servers = [f"web server of {host}" for host in hosts]
    haproxy = {"fails_requests": True, "takes_balancer": True}
    moment = (0.0, 0.0)
    short, long = (3.0, 12.0), (8.0, 25.0)
    faults = [
        Fault(Kind("kill", parts, moment, weight=3), kill),
        Fault(Kind("hang", parts, long, weight=3), hang),
        Fault(Kind("restart loop", parts, long, weight=2), restart_loop),
        Fault(Kind("kill web server", web_servers, (RESTART_S, RESTART_S)), kill_web_server, fails_requests=True),
        Fault(Kind("hang web server", web_servers, short), hang, fails_requests=True),
        Fault(Kind("full disk", ["lb1"], long, group="disk"), full_disk, takes_journal=True),
        Fault(Kind("read-only disk", ["lb1"], long, group="disk", weight=0.5), read_only_disk, takes_journal=True),
        Fault(Kind("clock step", ["lb1", *hosts], long, STEPS_S, weight=2), step_clock),
        Fault(Kind("partition", links, long, ("to_bus", "from_bus", "both"), group="link", weight=2), partition),
        Fault(Kind("slow bus", links, long, (0.02, 0.2, 1.0), group="link"), slow_bus),
        Fault(Kind("disorder", links, long, (0.05, 0.3), group="link"), disorder),
        Fault(Kind("cut", links, moment, group="link"), cut),
        Fault(Kind("neighbour", [*hosts, "all hosts"], (15.0, 40.0), group="neighbour", weight=4), neighbour),
        Fault(Kind("reload HAProxy", ["haproxy"], moment, weight=2), reload_haproxy, takes_balancer=True),
        Fault(Kind("restart HAProxy", ["haproxy"], moment), restart_haproxy, **haproxy),
        Fault(Kind("hang HAProxy", ["haproxy"], short), hang, **haproxy),
        Fault(Kind("another HAProxy", ["haproxy"], long, HAPROXIES, weight=0.5), restart_haproxy, **haproxy),
        Fault(Kind("reboot", hosts, short), reboot, fails_requests=True, takes_node=True),
        Fault(Kind("rename", hosts, long), rename, takes_node=True),
        Fault(Kind("second controller", ["lb2"], (20.0, 40.0), group="second"), second_controller),
        Fault(
            Kind("failed start", [CONTROLLER], (20.0, 40.0), tuple(starts.WAYS), group="disk", weight=2),
            starts.failed_start,
        ),
        Fault(Kind("cloned controller", ["lb2"], (25.0, 40.0), group="second"), starts.cloned_controller),
        Fault(Kind("one of two away", [CONTROLLER], (25.0, 40.0), group="disk"), starts.one_of_two_away),
        Fault(Kind("hostile node", hosts, short, ("lies", "forgery", "flood")), hostile_node),
    ]
    return {fault.kind.name: fault for fault in faults}


class TableExcuses:
    """What the table says that its faults explain."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self._faults = faults

    def requests(self, kind: str) -> bool:
        return self._faults[kind].fails_requests

    def balancer(self, kind: str) -> bool:
        return self._faults[kind].takes_balancer

    def journal(self, kind: str) -> bool:
        return self._faults[kind].takes_journal

    def web_server(self, kind: str) -> bool:
        return self._faults[kind].takes_node
