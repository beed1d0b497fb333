"""Slackwater on the test site, set up and operated as the documents say, with none of its settings changed.

What the site adds to node.toml is where its machine is: a web server that is a cgroup names it (`cpu.cgroup`).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import msgspec

from slackwater.core.messages import Change
from slackwater_lab.cluster.paths import LabError
from tests.site.machine import Service
from tests.site.relay import SOCKET, Answer, Relay
from tests.site.site import BALANCER_ADDRESS, POOL, Site
from tests.support.certificates import certificates

STATE_DIR = "/var/lib/slackwater"
WEB_PORT = 8099
CONTROLLER, MONITOR, HAPROXY = "slackwater-controller", "slackwater-monitor", "haproxy"
ENVIRONMENT = {"HOME": STATE_DIR, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment of slackwater-controller.service."""
INIT = ("slackwater", "init")
MONITORS = (
    *("slackwater", "monitors", "--listen", f"{BALANCER_ADDRESS}:14222", "--tls-cert", "/etc/slackwater/bus.pem"),
    *("--tls-key", "/etc/slackwater/bus.key", "--tls-ca", "/etc/slackwater/authority.pem"),
)
"""The second step."""
AS_CONTROLLER = (
    *("setpriv", "--reuid=slackwater", "--regid=slackwater", "--groups=haproxy"),
    # Python may lie in root's home on the machine that runs the tests.
    *("--inh-caps=-all,+dac_read_search,+net_raw", "--ambient-caps=-all,+dac_read_search,+net_raw"),
    "--bounding-set=-all,+dac_read_search,+net_raw",
)
"""The unit's user, with the group of the drop-in that makes HAProxy's socket its own."""
AS_NODE = (
    *("setpriv", "--reuid=slackwater-node", "--regid=slackwater-node", "--clear-groups"),
    *("--inh-caps=-all,+net_raw,+perfmon", "--ambient-caps=-all,+net_raw,+perfmon"),
    "--bounding-set=-all,+net_raw,+perfmon",
)


class Slackwater:
    """The controller beside the site's HAProxy, and a monitor on each web server."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.host = site.balancer
        self._webs = {web.name: web for web in site.webs}
        self._units: dict[tuple[str, str], Service] = {}
        """(Machine, name) -> each unit that was started."""
        self._stack = ExitStack()

    def __enter__(self) -> Slackwater:
        for machine in (self.host, *(web.machine for web in self.site.webs)):
            relay = Relay(machine.name, machine.place(SOCKET), self._asked)
            self._stack.callback(relay.close)
        folder = self.site.folder / "certificates"
        folder.mkdir()
        certificates(folder, BALANCER_ADDRESS)
        for file, name in (("ca.pem", "authority.pem"), ("server.pem", "bus.pem"), ("server.key", "bus.key")):
            shutil.copy(folder / file, self.host.place(f"/etc/slackwater/{name}"))
        # As the package's tmpfiles.d has it.
        self.host.call("install", "-d", "-m", "750", "-o", "slackwater", "-g", "slackwater", STATE_DIR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- the machines' ssh and systemctl

    def _asked(self, machine: str, program: str, arguments: list[str], given: str) -> Answer:
        if program == "ssh":
            address, *words = arguments
            web = next(web for web in self.site.webs if address in (f"root@{web.address}", f"root@{web.name}"))
            done = web.machine.run("/bin/sh", "-c", " ".join(words), given=given)
            return done.returncode, done.stdout, done.stderr
        return self._systemctl(machine, [word for word in arguments if word != "--now"])

    def _systemctl(self, machine: str, words: list[str]) -> Answer:
        action, unit = words[0], words[-1]
        there = self._units.get((machine, unit))
        if action in ("stop", "restart") and there is not None:
            there.stop()
        if unit == HAPROXY and action in ("start", "restart"):
            self.site.haproxy.stop()
            self.site.start_haproxy()
        elif action in ("start", "enable", "restart") and (there is None or not there.running):
            self._units[machine, unit] = self._start(machine, unit)
        if action == "reload" and unit == HAPROXY:
            self.site.haproxy.signal(signal.SIGUSR2)
        if action == "reload" and unit == CONTROLLER:
            done = self.host.run("slackwater", "reload")
            return done.returncode, done.stdout, done.stderr
        if action == "is-active":
            return (0, "active\n", "") if there and there.running else (3, "inactive\n", "")
        return 0, "", ""

    def _start(self, machine: str, unit: str) -> Service:
        if unit == CONTROLLER:
            return self.host.start(unit, [*AS_CONTROLLER, "/usr/bin/slackwater", "serve"], ENVIRONMENT)
        if unit == MONITOR:
            web = self._webs[machine]
            settings = web.machine.place("/etc/slackwater/node.toml")
            if "[cpu]" not in settings.read_text():
                with settings.open("a") as file:
                    file.write(f'\n[cpu]\ncgroup = "{web.vm}"\n')
            argv = [*AS_NODE, "/usr/bin/slackwater-monitor", "run", "--config", "/etc/slackwater/node.toml"]
            return web.machine.start(unit, argv)
        raise LabError(f"{machine}: no unit `{unit}` on the test site")

    def unit(self, machine: str, name: str) -> Service:
        """A service that was started."""
        return self._units[machine, name]

    # --- what an operator does

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command beside HAProxy, as root, to its end."""
        return self.host.run(*argv)

    def command(self, *argv: str) -> str:
        """What `slackwater ARGV` prints; raises LabError with its message when it fails."""
        return self.host.call("slackwater", *argv)

    def monitors(self) -> list[str]:
        """`slackwater monitors`: the commands that set the web servers up."""
        printed = json.loads(self.host.call(*MONITORS, "--json"))
        return [command for node in printed["nodes"] for command in node["commands"]]

    def open_socket(self) -> None:
        """The remedy that `init` names where HAProxy's admin socket is root's alone."""
        cfg = self.host.place("/etc/haproxy/haproxy.cfg")
        cfg.write_text(cfg.read_text().replace("mode 660 level admin", "mode 660 group haproxy level admin"))
        self.host.call("systemctl", "restart", HAPROXY)

    def set_up(self) -> None:
        """From nothing to green with monitors, by the commands and remedies that are printed."""
        self.open_socket()
        self.host.call(*INIT)
        for command in self.monitors():
            self.host.call("/bin/sh", "-c", command)
        self.host.call("systemctl", "enable", "--now", CONTROLLER)
        self.command("check", "--wait", "60s")

    def status(self) -> dict[str, Any]:
        """The pool in `slackwater status --json`."""
        status = json.loads(self.command("status", "--json"))
        return dict(next(pool for pool in status["pools"] if pool["pool"] == POOL))

    def api(self, path: str) -> tuple[int, str]:
        """Status and text of the dashboard's answer."""
        return self.site.get("127.0.0.1", WEB_PORT, path)

    def changes(self, since_unix_s: float) -> list[Change]:
        """What `slackwater log` shows since then, the oldest first."""
        printed = self.command(
            "log", "--json", "--limit", "10000", "--since", f"{max(1.0, time.time() - since_unix_s):.1f}s"
        )
        changes = (msgspec.json.decode(line, type=Change) for line in printed.splitlines())
        return [change for change in changes if change.time_unix_s >= since_unix_s]
