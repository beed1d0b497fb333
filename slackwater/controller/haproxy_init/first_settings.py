"""The first settings of a controller beside an HAProxy, from a survey of it. No I/O."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import count, takewhile
from pathlib import Path

import msgspec

from slackwater.core.bus.node_settings import AUTHORITY, GROUP, INTERFACE, PASSWORD, SETTINGS, toml_text
from slackwater.core.bus.ports import port_of
from slackwater.core.messages import is_name, is_server_name
from slackwater.lbengine.backends.haproxy.survey import FoundBackend, FoundServer, Survey


class NewNode(msgspec.Struct, frozen=True):
    """A server as it is seen from the balancer, or a machine with servers, which may have a monitor."""

    name: str
    pool: str
    servers: list[str]
    """Names of the backend's servers on it."""
    host: str
    """Its address; empty where HAProxy shows only the server's name."""
    ports: list[str]
    """Its servers' ports, each with its protocol where that is not the usual one."""
    is_here: bool = False
    """Whether it is this host: HAProxy reaches its servers over Unix sockets, or at an address that only this host has.
    """
    is_backup: bool = False
    """Whether all its servers are backup servers of the pool, whose weights are left alone."""

    @property
    def server(self) -> str:
        return self.servers[0]


class NewPool(msgspec.Struct, frozen=True):
    """A backend that becomes a pool."""

    name: str
    nodes: list[NewNode]


class LeftOut(msgspec.Struct, frozen=True):
    """A backend that does not become a pool."""

    backend: str
    why: str


HERE = "", ""
"""The key of this machine. Other machines have their address or name as a key."""


def choose(survey: Survey, backends: Sequence[str] = ()) -> tuple[list[NewPool], list[LeftOut]]:
    """The first pools, those with the most servers first, and the backends that are left out; of these backends, if
    some are named. Each server is a node, since the balancer sees each of them.

    A machine belongs to one pool. So of several backends with the same machines only one becomes a pool. A machine of
    backup servers alone does not count: nothing is decided about it, and many sites have one for all backends.
    """
    pools: list[NewPool] = []
    left_out: list[LeftOut] = []
    wanted = [backend for backend in survey.backends if not backends or backend.name in backends]
    order = {name: number for number, name in enumerate(backends)}
    machines: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for backend in sorted(wanted, key=lambda backend: (order.get(backend.name, 0), -len(backend.servers))):
        on_machines = _by_machine(backend)
        driven = [key for key, servers in on_machines.items() if not all(server.backup for server in servers)]
        same = [machines[machine] for machine in driven if machine in machines]
        if backend.lacks:
            left_out.append(LeftOut(backend.name, backend.lacks[0]))
        elif not on_machines:
            left_out.append(LeftOut(backend.name, f"{_why_none(backend)}; then run this again"))
        elif same and not is_local(backend):
            why = f"its servers are machines of pool `{same[0]}` too, and a machine belongs to one pool"
            left_out.append(LeftOut(backend.name, f"{why}; choose with --backend"))
        else:
            servers = [[server] for servers in on_machines.values() for server in servers]
            nodes = _nodes(backend, servers, taken)
            pools.append(NewPool(backend.name, nodes))
            taken |= {node.name for node in nodes}
            machines |= dict.fromkeys(driven, backend.name)
    return pools, left_out


def _why_none(backend: FoundBackend) -> str:
    """Why none of a backend's servers is in use, with what to do."""
    if all(server.placeholder == "disabled" for server in backend.servers):
        first = f"{backend.name}/{backend.servers[0].name}"
        return (
            "all its servers are `disabled` in HAProxy's configuration: enable those that are in use"
            f" (`set server {first} state ready` at the admin socket, or take out the word)"
        )
    if unresolved := unresolved_in(backend):
        return f"none of its servers has an address: {unresolved}"
    return "none of its servers has an address: they are empty slots, which HAProxy or a person has to fill"


def unresolved_in(backend: FoundBackend) -> str:
    """The DNS names that HAProxy has not resolved, in words with what to do; empty: none."""
    of_name: dict[str, list[str]] = {}
    for server in backend.servers:
        if server.fqdn and not server.address:
            of_name.setdefault(server.fqdn, []).append(server.name)
    if not of_name:
        return ""
    named = ", ".join(f"{fqdn} ({', '.join(servers)})" for fqdn, servers in of_name.items())
    return f"HAProxy has not resolved {named}; look at its section `resolvers`, and whether the DNS knows the name"


def _by_machine(backend: FoundBackend) -> dict[tuple[str, str], list[FoundServer]]:
    """The servers of each machine: (address, name) -> servers. The name is empty where HAProxy shows the address.

    Servers on Unix sockets are on this machine (`HERE`). Where all servers are on this machine, as in a laboratory,
    each stands for a machine of its own.
    """
    by_machine: dict[tuple[str, str], list[FoundServer]] = {}
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
        by_machine.setdefault(machine, []).append(server)
    return by_machine


def only_machine(backend: FoundBackend) -> str:
    """The machine that all servers are on, in words; empty where there are several."""
    machines = list(_by_machine(backend))
    if len(machines) != 1:
        return ""
    return "this host" if machines[0] == HERE else f"one machine ({machines[0][0] or machines[0][1]})"


def is_local(backend: FoundBackend) -> bool:
    """Whether all servers are at loopback addresses, as in a laboratory, where each stands for a machine."""
    return all(_is_loopback(server.host) for server in backend.servers if not server.placeholder)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nodes(backend: FoundBackend, machines: Sequence[list[FoundServer]], taken: Set[str]) -> list[NewNode]:
    """A node for each machine. A machine with several servers is named by the common part of their names, if no other
    has it."""
    common = [_in_common([server.name for server in servers]) for servers in machines]
    others = {server.name for server in backend.servers} | set(taken)
    counts = Counter(common)
    nodes: list[NewNode] = []
    each_is_one = is_local(backend)
    for servers, name in zip(machines, common, strict=True):
        first = servers[0]
        node_name = (
            name if len(servers) > 1 and counts[name] == 1 and name not in others and is_name(name) else first.name
        )
        node_name = (
            node_name if is_name(node_name) else _node_name(node_name, {*others, *(node.name for node in nodes)})
        )
        unique_name = node_name if node_name not in taken else f"{backend.name}-{node_name}"
        nodes.append(_node(unique_name, backend.name, servers, each_is_one=each_is_one))
    return nodes


def _node(name: str, pool: str, servers: Sequence[FoundServer], *, each_is_one: bool) -> NewNode:
    """The machine of these servers. `each_is_one`: each server of the backend stands for a machine."""
    first = servers[0]
    ports = [str(port_of(server.port or 80, server.protocol)) for server in servers if not server.on_unix_socket]
    is_here = not each_is_one and (first.on_unix_socket or _is_loopback(first.host))
    host = "" if is_here else first.host
    is_backup = all(server.backup for server in servers)
    return NewNode(
        name, pool, [server.name for server in servers], host, list(dict.fromkeys(ports)), is_here, is_backup
    )


def _machine_of(node: NewNode) -> str:
    """What tells its machine from others. Servers at loopback addresses stand for a machine each, as in a lab."""
    if node.is_here:
        return ""
    return node.name if _is_loopback(node.host) else node.host


def one_for_each_machine(nodes: Sequence[NewNode]) -> list[NewNode]:
    """Without the nodes of backup servers whose machine is another pool's too: one monitor speaks for a machine."""
    seen = {_machine_of(node) for node in nodes if not node.is_backup}
    kept: list[NewNode] = []
    for node in nodes:
        if not (node.is_backup and _machine_of(node) in seen):
            kept.append(node)
            seen.add(_machine_of(node))
    return kept


def machines_of_pool(backend: FoundBackend, pool: str, names: Mapping[str, str], taken: Set[str]) -> list[NewNode]:
    """The machines of a backend that is a pool already, each a node. `names`: server -> node, where they differ;
    `taken`: nodes of other pools.

    Where `names` puts several servers together, `names` decides. Otherwise servers at the same address are a machine.
    """
    machines = list(_by_machine(backend).values())
    if len(set(names.values())) == len(names) and any(len(servers) > 1 for servers in machines):
        return [msgspec.structs.replace(node, pool=pool) for node in _nodes(backend, machines, taken)]
    by_node: dict[str, list[FoundServer]] = {}
    for server in backend.servers:
        node = names.get(server.name, server.name)
        if not server.placeholder and is_name(node):
            by_node.setdefault(node, []).append(server)
    each_is_one = is_local(backend)
    return [_node(node, pool, servers, each_is_one=each_is_one) for node, servers in by_node.items()]


def _node_name(server: str, others: Set[str]) -> str:
    """The name of a node whose server has a name that only HAProxy allows. It differs from all `others`."""
    name = re.sub(r"\.+", ".", server).strip(".").lstrip(":.")
    name = name if is_name(name) else "server"
    return next(
        candidate for candidate in (f"{name}-{n}" if n > 1 else name for n in count(1)) if candidate not in others
    )


def _in_common(names: Sequence[str]) -> str:
    """The common start of names up to a separator: `vm1` for `vm1-3001` and `vm1-3002`."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    start = "".join(letters[0] for letters in alike)
    return start[: max(0, *(start.rfind(sign) for sign in "-_.:"))]


def settings_text(survey: Survey, pools: Sequence[NewPool], state_dir: str = "") -> str:
    """The text of controller.toml, with the pools in observe mode."""
    lines = [f"# Written by `slackwater init` for HAProxy {survey.version}. All settings: docs/reference/settings.md."]
    if state_dir:
        lines += [f"state_dir = {toml_text(state_dir)}"]
    for pool in pools:
        lines += ["", "[[pool]]", f"name = {toml_text(pool.name)}", f"backend = {toml_text(pool.name)}"]
        lines += [f"socket = {toml_text(survey.socket)}"]
        lines += ['mode = "observe"                # decides and records, and sets no weight; "act" sets them']
        if renamed := [(server, node.name) for node in pool.nodes for server in node.servers if server != node.name]:
            pairs = ", ".join(f"{toml_text(server)} = {toml_text(name)}" for server, name in renamed)
            lines += [f"servers = {{ {pairs} }}"]
    return "\n".join(lines) + "\n"


def lines_for(node: NewNode, passwords: Path, tls_ca: str, config: str = "", interface: str = INTERFACE) -> list[str]:
    """Commands that set up a web server from this host: its password, then its settings.

    With an authority of the site's own (`tls_ca`) the authority's certificate comes first. `config`: the controller's
    file, unless it is at its usual place. `interface`: where requests arrive at a web server of another machine; a
    server at a loopback address has them from the loopback interface.
    """
    login = shlex.quote(f"root@{node.host or node.server}")
    password = shlex.quote(str(passwords / f"{node.name}.password"))
    options = "" if node.ports == ["80"] else "".join(f" --port {port}" for port in node.ports) or " --no-port"
    interface = "lo" if node.is_here or _is_loopback(node.host) else interface
    options += f" --interface {shlex.quote(interface)}" if interface != INTERFACE and node.ports else ""
    options += f" --config {shlex.quote(config)}" if config else ""

    words = f"{options} -- {node.name}" if node.name.startswith("-") else f" {node.name}{options}"

    def on_node(command: str) -> str:
        return command if node.is_here else f"ssh {login} '{command}'"

    install = on_node(f"install -m 644 /dev/stdin {SETTINGS} && systemctl enable --now slackwater-monitor")
    lines = [
        f"{on_node(f'install -D -m 640 -g {GROUP} /dev/stdin {PASSWORD}')} < {password}",
        f"slackwater bus node settings{words} | {install}",
    ]
    if tls_ca:
        lines.insert(0, f"{on_node(f'install -D -m 644 /dev/stdin {AUTHORITY}')} < {shlex.quote(tls_ca)}")
    return lines


def reached_from_outside(nodes: Sequence[NewNode]) -> bool:
    """Whether one of these web servers runs on another machine."""
    return any(not node.is_here and not _is_loopback(node.host) for node in nodes)
