"""The first settings of a controller beside a HAProxy, from a survey of it. No I/O."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

import msgspec

from lbengine.backends.haproxy.survey import FoundBackend, FoundServer, Survey
from slackwater.bus.node_settings import AUTHORITY, GROUP, PASSWORD, SETTINGS, toml_text
from slackwater.bus.ports import port_of
from slackwater.messages import is_name, is_server_name


class NewNode(msgspec.Struct, frozen=True):
    """A web server's machine, which is to have a monitor."""

    name: str
    pool: str
    servers: list[str]
    """Those of the backend that are on it."""
    host: str
    """Empty: the name of its server is all that HAProxy shows of it."""
    ports: list[str]
    """With what they speak, where that is not usual there."""
    is_here: bool = False
    """It is this host: HAProxy reaches its servers over Unix sockets, or at an address that only this host has."""

    @property
    def server(self) -> str:
        return self.servers[0]


class NewPool(msgspec.Struct, frozen=True):
    """A backend that is to be a pool."""

    name: str
    nodes: list[NewNode]


class LeftOut(msgspec.Struct, frozen=True):
    """A backend that is not to be a pool."""

    backend: str
    why: str


HERE = "", ""
"""This machine, where others are told apart by address or name."""


@dataclass(frozen=True)
class Wishes:
    """What a person has asked for; empty: the default."""

    backends: Sequence[str] = ()
    state_dir: str = ""
    listen: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


def choose(found: Survey, wishes: Wishes) -> tuple[list[NewPool], list[LeftOut]]:
    """The pools to begin with, those with the most servers first, and the backends that are left out.

    A machine has one monitor, which belongs to one pool: of backends with the same machines one is a pool.
    """
    pools: list[NewPool] = []
    left_out: list[LeftOut] = []
    wanted = [one for one in found.backends if not wishes.backends or one.name in wishes.backends]
    order = {name: number for number, name in enumerate(wishes.backends)}
    machines: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for one in sorted(wanted, key=lambda one: (order.get(one.name, 0), -len(one.servers))):
        on_machines = _by_machine(one)
        same = [machines[machine] for machine in on_machines if machine in machines]
        if one.lacks:
            left_out.append(LeftOut(one.name, one.lacks[0]))
        elif not on_machines:
            why = "none of its servers has an address yet; run this again when HAProxy has found them"
            left_out.append(LeftOut(one.name, why))
        elif same and not is_local(one):
            why = f"its servers are machines of pool `{same[0]}` too, and a machine's monitor belongs to one pool"
            left_out.append(LeftOut(one.name, f"{why}; choose with --backend"))
        else:
            nodes = _nodes(one, list(on_machines.values()), taken)
            pools.append(NewPool(one.name, nodes))
            taken |= {node.name for node in nodes}
            machines |= dict.fromkeys(on_machines, one.name)
    return pools, left_out


def _by_machine(backend: FoundBackend) -> dict[tuple[str, str], list[FoundServer]]:
    """The servers of each machine: by address, by name where HAProxy shows none. Those on Unix sockets are on this one.

    Where all are on this machine, as in a laboratory, addresses do not tell machines apart: each server is one.
    """
    found: dict[tuple[str, str], list[FoundServer]] = {}
    each_is_one = is_local(backend)
    for server in backend.servers:
        if server.placeholder or not is_server_name(server.name):
            continue
        if each_is_one:
            machine = server.host, server.name
        elif server.on_unix_socket or _is_loopback(server.host):
            machine = HERE
        else:
            machine = server.host, "" if server.host else server.name
        found.setdefault(machine, []).append(server)
    return found


def is_local(backend: FoundBackend) -> bool:
    """All servers are on this machine, at addresses: as in a laboratory, where each stands for a machine."""
    return all(_is_loopback(server.host) for server in backend.servers if not server.placeholder)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nodes(backend: FoundBackend, machines: Sequence[list[FoundServer]], taken: Set[str]) -> list[NewNode]:
    """One for each machine. With several servers it has what their names have in common, if no other has that."""
    common = [_in_common([server.name for server in servers]) for servers in machines]
    others = {server.name for server in backend.servers} | set(taken)
    counts = Counter(common)
    found: list[NewNode] = []
    each_is_one = is_local(backend)
    for servers, name in zip(machines, common, strict=True):
        first = servers[0]
        own = name if len(servers) > 1 and counts[name] == 1 and name not in others and is_name(name) else first.name
        own = own if is_name(own) else _node_name(own, {*others, *(node.name for node in found)})
        named = own if own not in taken else f"{backend.name}-{own}"
        ports = [str(port_of(one.port or 80, one.protocol)) for one in servers if not one.on_unix_socket]
        is_here = not each_is_one and (first.on_unix_socket or _is_loopback(first.host))
        host = "" if is_here else first.host
        names = [one.name for one in servers]
        found.append(NewNode(named, backend.name, names, host, list(dict.fromkeys(ports)), is_here))
    return found


def _node_name(server: str, others: Set[str]) -> str:
    """What a node is called whose server has a name that only HAProxy allows; none of `others`."""
    name = re.sub(r"\.+", ".", server).strip(".").lstrip(":.")
    name = name if is_name(name) else "server"
    return next(one for one in (f"{name}-{n}" if n > 1 else name for n in count(1)) if one not in others)


def _in_common(names: Sequence[str]) -> str:
    """`vm1` of `vm1-3001` and `vm1-3002`: what all begin with, up to a separator."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    start = "".join(letters[0] for letters in alike)
    return start[: max(0, *(start.rfind(sign) for sign in "-_.:"))]


def settings_text(found: Survey, pools: Sequence[NewPool], wishes: Wishes) -> str:
    """controller.toml, in observe mode."""
    lines = [f"# Written by `slackwater init` for HAProxy {found.version}. All settings: docs/reference/settings.md."]
    if wishes.state_dir:
        lines += [f"state_dir = {toml_text(wishes.state_dir)}"]
    bus = {"listen": wishes.listen, "tls_cert": wishes.tls_cert, "tls_key": wishes.tls_key, "tls_ca": wishes.tls_ca}
    if any(bus.values()):
        lines += ["", "[bus]", *(f"{key} = {toml_text(value)}" for key, value in bus.items() if value)]
    for pool in pools:
        lines += ["", "[[pool]]", f"name = {toml_text(pool.name)}", f"backend = {toml_text(pool.name)}"]
        lines += [f"socket = {toml_text(found.socket)}"]
        lines += ['mode = "observe"                # decides and records, and sets no weight; "act" sets them']
        if renamed := [(one, node.name) for node in pool.nodes for one in node.servers if one != node.name]:
            pairs = ", ".join(f"{toml_text(server)} = {toml_text(name)}" for server, name in renamed)
            lines += [f"servers = {{ {pairs} }}"]
    return "\n".join(lines) + "\n"


def lines_for(node: NewNode, passwords: Path, tls_ca: str, config: str = "") -> list[str]:
    """Commands that set up one web server from this host: the password, and the settings. With an authority of the
    site's own its certificate comes first. `config`: the controller's file, unless it is at its usual place."""
    to = shlex.quote(f"root@{node.host or node.server}")
    password = shlex.quote(str(passwords / f"{node.name}.password"))
    options = "" if node.ports == ["80"] else "".join(f" --port {port}" for port in node.ports) or " --no-port"
    options += f" --config {shlex.quote(config)}" if config else ""

    def there(command: str) -> str:
        return command if node.is_here else f"ssh {to} '{command}'"

    install = there(f"install -m 644 /dev/stdin {SETTINGS} && systemctl enable --now slackwater-monitor")
    lines = [
        f"{there(f'install -D -m 640 -g {GROUP} /dev/stdin {PASSWORD}')} < {password}",
        f"slackwater bus node settings {node.name}{options} | {install}",
    ]
    if tls_ca:
        lines.insert(0, f"{there(f'install -D -m 644 /dev/stdin {AUTHORITY}')} < {shlex.quote(tls_ca)}")
    return lines


def reached_from_outside(pools: Sequence[NewPool]) -> bool:
    """Whether a web server is another machine."""
    return any(not node.is_here and not _is_loopback(node.host) for pool in pools for node in pool.nodes)
