"""`slackwater monitors`: the second step after `init`. It opens the bus to the web servers, and lets a monitor on each
log in."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from slackwater.controller.haproxy_init.bus_address import (
    BusAddress,
    make_certificate,
    own_address,
    with_bus,
    with_certificate,
    with_servers,
)
from slackwater.controller.haproxy_init.first_settings import (
    NewNode,
    lines_for,
    machines_of_pool,
    one_for_each_machine,
    reached_from_outside,
)
from slackwater.controller.haproxy_init.site_files import (
    ASK_WITHIN_S,
    SERVICE,
    haproxy_configuration,
    unless_usual,
    write,
    write_settings,
)
from slackwater.controller.own_bus import ADDS, private, taken_over
from slackwater.core.bus import nats_server
from slackwater.core.bus.authority import AuthorityFiles
from slackwater.core.bus.config import ListedNode, parse_nodes
from slackwater.core.bus.node_settings import INTERFACE
from slackwater.core.config import ConfigError, ControllerSettings, is_loopback, parse, read
from slackwater.core.options import an_address, config_option, json_option, tell
from slackwater.core.state_dir import running_serve
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.haproxy.survey import backends_behind

BUS_PORT = 14222
A_FILE = click.Path(exists=True, dir_okay=False)


class NodeLines(msgspec.Struct, frozen=True):
    """A web server, and the commands that set it up."""

    node: str
    pool: str
    commands: list[str]


class MonitorsResult(msgspec.Struct, frozen=True):
    """What was done, and what is left to do, for `--json`."""

    config: str
    written: bool
    bus: str
    """HOST:PORT on which the bus listens."""
    certificate: list[str]
    """The files that were made for the bus, in words; empty where they are not needed, or were named."""
    restart: bool
    """Whether a controller runs that has yet to listen there."""
    nodes: list[NodeLines]
    """The commands to run for each web server."""


@click.command(name="monitors", epilog="Example: slackwater monitors --listen 10.0.0.5:14222")
@config_option
@click.option(
    "--listen",
    callback=lambda context, parameter, value: value and an_address(context, parameter, value),
    default="",
    metavar="HOST:PORT",
    help="Where the web servers reach the bus; a certificate is made.  [default: as it is, if they can; else this"
    f" host's address towards them, port {BUS_PORT}]",
)
@click.option("--tls-cert", type=A_FILE, metavar="FILE", help="A certificate of yours (PEM), for the host in --listen.")
@click.option("--tls-key", type=A_FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option(
    "--tls-ca", type=A_FILE, metavar="FILE", help="The authority that signed it, unless the machines know it."
)
@click.option(
    "--haproxy-cfg",
    type=click.Path(path_type=Path),
    help="HAProxy's configuration, as for `init`, for the protocols of its servers.",
)
@click.option(
    "--interface",
    default=INTERFACE,
    show_default=True,
    help="The interface of the web servers on which requests arrive; `ip route` on them shows their names.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written.")
@json_option
def monitors(
    config_path: Path,
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    haproxy_cfg: Path | None,
    interface: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let monitors on the web servers log in: open the bus to them, and print the commands that set each of them up.

    It is the second step, and needs the configuration of `slackwater init`. It adds `[bus]` to that, makes a
    certificate where none is named, and a user with a password for each web server. Run again, it keeps what is there.
    """
    settings = private(config_path)
    pools = [pool for pool in settings.pool if isinstance(pool, HAProxyPool)]
    if not pools:
        raise ConfigError(f"{config_path}: no pool behind HAProxy; `slackwater bus node add POOL NODE` adds each node")
    configuration = haproxy_configuration(haproxy_cfg)
    there = text = read(config_path)
    nodes: list[NewNode] = []
    for pool in pools:
        backends = backends_behind(pool.all_sockets, configuration, ASK_WITHIN_S)
        if pool.backend not in backends:
            raise ConfigError(f"{config_path}: {pool.socket}: HAProxy has no backend `{pool.backend}` with servers")
        taken = {node.name for node in nodes}
        machines = machines_of_pool(backends[pool.backend], pool.name, pool.servers, taken)
        nodes += machines
        node_of = {server: node.name for node in machines for server in node.servers}
        text = with_servers(text, pool.name, node_of, config_path)
    nodes = one_for_each_machine(nodes)
    files = [str(Path(file).absolute()) if file else "" for file in (tls_cert, tls_key, tls_ca)]
    asked = BusAddress(listen or _listen(settings, nodes, config_path.parent), *files)
    address = with_certificate(asked, config_path.parent)
    changed = with_bus(text, address, config_path)
    new = parse(changed, str(config_path))
    listed = [ListedNode(node.pool, node.name) for node in nodes]
    _with_nodes(nats_server.nodes_of(new), listed)  # refuses before anything is written
    certificate: list[str] = []
    if not dry_run:
        if address != asked:
            certificate = make_certificate(new, config_path.parent, write)
        nats_server.change_nodes(new, lambda before: _with_nodes(before, listed))
        if changed != there:
            write_settings(config_path, changed)
        else:
            taken_over(new)
    named = unless_usual(config_path)
    result = MonitorsResult(
        config=str(config_path),
        written=not dry_run,
        bus=new.bus.listen,
        certificate=certificate,
        restart=changed != there and running_serve(new.state_dir) is not None,
        nodes=[
            NodeLines(
                node.name,
                node.pool,
                lines_for(node, new.bus_folder / "passwords", new.bus.tls_ca, named, interface),
            )
            for node in nodes
        ],
    )
    tell(result, _as_text(result, new), as_json)


def _listen(settings: ControllerSettings, nodes: list[NewNode], folder: Path) -> str:
    """Where the bus is to listen for these nodes. Empty: it stays as it is, with a certificate of the site's own.
    Raises ConfigError where no address leads to the nodes."""
    if settings.bus.tls_cert == str(AuthorityFiles(folder.absolute()).certificate):
        return settings.bus.listen
    if not is_loopback(settings.bus.listen) or not reached_from_outside(nodes):
        return ""
    if not (host := own_address(node.host for node in nodes if node.host)):
        raise ConfigError("no address of this host is known that web servers reach: name it with --listen HOST:PORT")
    return f"{host}:{BUS_PORT}"


def _with_nodes(nodes: list[ListedNode], new: list[ListedNode]) -> list[ListedNode]:
    """The nodes with the new ones. Raises ConfigError where two have the same name."""
    together = dict.fromkeys([*nodes, *new])
    return parse_nodes("".join(f"{node.pool} {node.name}\n" for node in together), "the list of nodes")


def _as_text(result: MonitorsResult, settings: ControllerSettings) -> str:
    lines = [f"A monitor on a web server adds {ADDS}.", ""]
    done = "the bus listens on" if result.written else "nothing was written; the bus would listen on"
    users = "users of the bus" if result.written else "its users would be"
    lines.append(f"{done} {result.bus}{'' if settings.bus.tls_cert else ', which only this machine reaches'}")
    lines.append(f"{users}: {len(result.nodes)} web servers, passwords in {settings.bus_folder}/passwords")
    lines += result.certificate
    if result.restart:
        lines += ["", "On this host:", f"  systemctl restart {SERVICE}"]
    lines += ["", "For each web server, from this host, after slackwater-node is installed there:"]
    for node in result.nodes:
        lines += [f"  # {node.node}", *(f"  {command}" for command in node.commands)]
    return "\n".join(lines)
