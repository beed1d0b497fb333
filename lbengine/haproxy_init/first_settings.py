"""The first settings of a controller beside a HAProxy, from a survey of it. No I/O."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lbengine.backends.haproxy.survey import FoundBackend, FoundServer, Survey
from slackwater.bus.node_settings import AUTHORITY, GROUP, PASSWORD, SETTINGS, toml_text


class NewNode(msgspec.Struct, frozen=True):
    """A web server that is to have a monitor."""

    name: str
    pool: str
    server: str
    host: str
    port: int


class NewPool(msgspec.Struct, frozen=True):
    """A backend that is to be a pool."""

    name: str
    nodes: list[NewNode]


class LeftOut(msgspec.Struct, frozen=True):
    """A backend that is not to be a pool."""

    backend: str
    why: str


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
    for one in sorted(wanted, key=lambda one: (order.get(one.name, 0), -len(one.servers))):
        machines = {
            (node.host, node.server if not node.host else ""): node.pool for pool in pools for node in pool.nodes
        }
        found_again = [_machine(server.host, server.name) for server in one.servers]
        same = [machines[machine] for machine in found_again if machine in machines]
        if one.lacks:
            left_out.append(LeftOut(one.name, one.lacks[0]))
        elif same and not _is_local(one):
            why = f"its servers are machines of pool `{same[0]}` too, and a machine's monitor belongs to one pool"
            left_out.append(LeftOut(one.name, f"{why}; choose with --backend"))
        else:
            taken = {node.name for pool in pools for node in pool.nodes}
            pools.append(NewPool(one.name, [_node(one, server, taken) for server in one.servers]))
    return pools, left_out


def _machine(host: str, server: str) -> tuple[str, str]:
    """By its address; by the server's name where HAProxy shows none."""
    return host, "" if host else server


def _is_local(backend: FoundBackend) -> bool:
    """All servers are on this machine, as in a laboratory: their addresses do not tell machines apart."""
    return all(_is_loopback(server.host) for server in backend.servers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _node(backend: FoundBackend, server: FoundServer, taken: set[str]) -> NewNode:
    name = server.name if server.name not in taken else f"{backend.name}-{server.name}"
    return NewNode(name, backend.name, server.name, server.host, server.port or 80)


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
        lines += ["# rescue = true                 # with HAProxy 3.0; `slackwater config check` prints its lines"]
        if renamed := [node for node in pool.nodes if node.name != node.server]:
            pairs = ", ".join(f"{toml_text(node.server)} = {toml_text(node.name)}" for node in renamed)
            lines += [f"servers = {{ {pairs} }}"]
    return "\n".join(lines) + "\n"


def lines_for(node: NewNode, passwords: Path, tls_ca: str, config: str = "") -> list[str]:
    """Commands that set up one web server from this host: the password, and the settings. With an authority of the
    site's own its certificate comes first. `config`: the controller's file, unless it is at its usual place."""
    to = shlex.quote(f"root@{node.host or node.server}")
    password = shlex.quote(str(passwords / f"{node.name}.password"))
    options = f" --port {node.port}" if node.port != 80 else ""
    options += f" --config {shlex.quote(config)}" if config else ""
    lines = [
        f"ssh {to} 'install -D -m 640 -g {GROUP} /dev/stdin {PASSWORD}' < {password}",
        f"slackwater bus node settings {node.name}{options} | ssh {to} 'install -m 644 /dev/stdin {SETTINGS}"
        " && systemctl enable --now slackwater-monitor'",
    ]
    if tls_ca:
        lines.insert(0, f"ssh {to} 'install -D -m 644 /dev/stdin {AUTHORITY}' < {shlex.quote(tls_ca)}")
    return lines


def reached_from_outside(pools: Sequence[NewPool]) -> bool:
    """Whether a web server is another machine."""
    return any(not _is_loopback(node.host) for pool in pools for node in pool.nodes)
