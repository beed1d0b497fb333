"""A guest that is a balancer's host: systemd, HAProxy, and the controller's package as it is installed."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import systemd_guest
from tests.support.built_packages import build
from tests.support.qemu_guest import Guest

PACKAGES = ("haproxy", "nats-server", "libpcap0.8", "iproute2")
MEMORY_MIB = 2048
UNIT = "slackwater-controller"
CONFIG = "/etc/slackwater/controller.toml"
HAPROXY = """\
global
    stats socket /run/haproxy/admin.sock mode 660 level admin
    user haproxy
    group haproxy
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
frontend site
    bind 127.0.0.1:80
    default_backend web
backend web
    server web1 127.0.0.1:8001 weight 100
    server web2 127.0.0.1:8002 weight 100
    server web3 127.0.0.1:8003 weight 100
"""
CONTROLLER = """\
[[pool]]
name = "web"
backend = "web"
socket = "/run/haproxy/admin.sock"
mode = "act"
"""
# As root's python3 of the guest, which starts in a moment; ours loads the controller first.
WEIGHT = """\
import socket
asked = socket.socket(socket.AF_UNIX)
asked.connect("/run/haproxy/admin.sock")
asked.sendall(b"get weight web/web1\\n")
print(asked.recv(100).split()[0].decode())
"""
EMULATED = """\
[Service]
SupplementaryGroups=haproxy
TimeoutStartSec=600
TimeoutStopSec=300
WatchdogSec=60
"""
"""The balancer's group, and more time than the unit gives: an emulated machine is ten times as slow."""
WITHIN_S = 900.0


class Balancer:
    """The guest, and what is asked of it."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.write("/etc/haproxy/haproxy.cfg", HAPROXY)
        guest.write("/root/weight.py", WEIGHT)
        self.drop_in("emulated", EMULATED)
        self.settings()
        guest.ok("systemctl restart haproxy")

    def drop_in(self, name: str, text: str) -> None:
        """Writes a drop-in of the controller's unit; without a text it is removed."""
        folder = f"/etc/systemd/system/{UNIT}.service.d"
        self.guest.ok(f"mkdir -p {folder}")
        if text:
            self.guest.write(f"{folder}/{name}.conf", text)
        else:
            self.guest.ok(f"rm -f {folder}/{name}.conf")
        self.guest.ok("systemctl daemon-reload")

    def settings(self, more: str = "") -> None:
        self.guest.write(CONFIG, CONTROLLER + more)

    def until(self, condition: str) -> None:
        """Waits for a shell's condition; fails with the unit's last words."""
        deadline_s = time.monotonic() + WITHIN_S
        # A command that takes longer than the guest may is tried again.
        while self.guest.sh(f"timeout 100 bash -c {shlex.quote(condition)}")[0] != 0:
            assert time.monotonic() < deadline_s, f"not within {WITHIN_S:g} s: {condition}\n{self.log_text()[-4000:]}"
            time.sleep(0.3)

    def start_with_a_lowered_weight(self) -> None:
        """The controller runs, all parts work, and web1 is held at 20."""
        self.guest.sh(f"systemctl reset-failed {UNIT}")
        self.guest.ok(f"systemctl start --no-block {UNIT}")
        self.until(f"systemctl is-active -q {UNIT}")
        self.until("slackwater pin web1 20 --for 1h >/dev/null")
        self.until_weight(20)

    def until_weight(self, weight: int) -> None:
        self.until(f'test "$(python3 /root/weight.py)" = {weight}')

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.guest.ok(f"systemctl show --value -p {name} {UNIT}").strip()

    def parts(self) -> dict[str, Any]:
        """What `serve` says of its parts: `children` with their pids, `starts`, ..."""
        state: dict[str, Any] = json.loads(self.guest.ok("cat /var/lib/slackwater/serve.json"))
        return state

    def log_text(self) -> str:
        """What the unit logged."""
        return self.guest.ok(f"journalctl -q --no-pager -o cat -u {UNIT}")


def package(folder: Path) -> Path:
    """Built afresh, or that of the folder that ROLLOUT_PACKAGES names, to save some minutes."""
    if there := os.environ.get("ROLLOUT_PACKAGES"):
        return next(Path(there).glob("slackwater-controller_*_amd64.deb"))
    return build(folder, "slackwater-controller")


@contextmanager
def booted() -> Iterator[Balancer]:
    """Nothing of the controller is started yet."""
    with tempfile.TemporaryDirectory(prefix="sw-balancer-") as name:
        (Path(name) / "packages").mkdir()
        root = systemd_guest.installed("balancer", PACKAGES)
        upper = systemd_guest.layer(root, package(Path(name, "packages")), Path(name, "layer"))
        with systemd_guest.booted_from([upper, root], {}, MEMORY_MIB) as guest:
            yield Balancer(guest)
