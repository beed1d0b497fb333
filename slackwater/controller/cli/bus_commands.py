"""`slackwater bus`: the bus of a site that has a nats-server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from slackwater.controller.own_bus import private, taken_over
from slackwater.core.bus import nats_server
from slackwater.core.bus.config import WSENGINE, ListedNode, Tls, config_text, passwords_in, read_nodes, users
from slackwater.core.bus.node_settings import INTERFACE, node_text
from slackwater.core.bus.ports import Port, parse_port
from slackwater.core.config import CONTROL, CONTROLLER, ConfigError
from slackwater.core.files import text_of, write_secret
from slackwater.core.options import an_address, config_option, json_option, tell


@click.group(epilog="Example: slackwater bus node add web web1")
def bus() -> None:
    """Users and permissions of the bus: of the controller's own nats-server, or of one of yours."""


@bus.command(
    epilog="Example: slackwater bus config --nodes nodes.txt --out bus --listen 0.0.0.0:4222"
    " --tls-cert /etc/nats/cert.pem --tls-key /etc/nats/key.pem"
)
@click.option(
    "--nodes",
    "nodes_file",
    type=click.Path(path_type=Path),
    required=True,
    help="The nodes: a line `POOL NODE` for each.",
)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for nats.conf and the passwords.",
)
@click.option(
    "--listen", default="127.0.0.1:4222", show_default=True, callback=an_address, help="Where nats-server listens."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Its certificate (PEM), by its path there.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's key (PEM).")
@json_option
def config(
    nodes_file: Path, folder: Path, listen: str, tls_cert: Path | None, tls_key: Path | None, as_json: bool
) -> None:
    """Write the configuration of a nats-server of your own: each node may publish its own Samples, and nothing else.

    Passwords are made once and stay: run it again when a node comes or goes, then `nats-server --signal reload`.
    """
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together")
    tls = Tls(tls_cert.absolute(), tls_key.absolute()) if tls_cert and tls_key else None
    nodes = read_nodes(text_of(nodes_file), str(nodes_file))
    dummy = dict.fromkeys(users(nodes), "")
    config_text(nodes, dummy, listen, tls)  # refuses before anything is written
    passwords = passwords_in(folder / "passwords", list(dummy))
    write_secret(folder / "nats.conf", config_text(nodes, passwords, listen, tls))
    files = {user: str(folder / "passwords" / f"{user}.password") for user in passwords}
    lines = (
        f"{folder}/nats.conf: {len(nodes)} nodes; start it with `nats-server -c {folder}/nats.conf`",
        f"each node: its file of {folder}/passwords as bus.password_file, its name as bus.user",
        f"each node's wsengine: the same with {WSENGINE} before the name",
        f"the controller: {files[CONTROLLER]}, bus.user {CONTROLLER}",
        f"commands: {files[CONTROL]} as bus.control_password_file, bus.control_user {CONTROL}",
    )
    tell({"config": f"{folder}/nats.conf", "nodes": nodes, "password_files": files}, "\n".join(lines), as_json)


@bus.group(epilog="Example: slackwater bus node add web web1")
def node() -> None:
    """The nodes that may log in to the controller's own nats-server."""


@node.command(epilog="Example: slackwater bus node add web web1")
@click.argument("pool_name", metavar="POOL")
@click.argument("name", metavar="NODE")
@config_option
@json_option
def add(pool_name: str, name: str, config_path: Path, as_json: bool) -> None:
    """Let NODE of POOL log in; prints what goes to the node. A password that is there stays."""
    settings = private(config_path)
    new = ListedNode(settings.the_pool(pool_name).name, name)
    nats_server.change_nodes(settings, lambda nodes: nodes if new in nodes else [*nodes, new])
    taken_over(settings)
    url = settings.bus.address
    parts, lines = [], []
    for part, user, open_to in (
        ("monitor", name, "group slackwater-node, 0640"),
        ("wsengine", WSENGINE + name, "0600"),
    ):
        password = settings.bus_folder / "passwords" / f"{user}.password"
        parts.append({"part": part, "bus_url": url, "bus_user": user, "password_file": str(password)})
        lines.append(f"{part}: copy {password} to the node ({open_to}); bus.url {url}, bus.user {user}")
    tell({"pool": new.pool, "node": name, "parts": parts}, "\n".join(lines), as_json)


@node.command(name="list", epilog="Example: slackwater bus node list")
@config_option
@json_option
def list_nodes(config_path: Path, as_json: bool) -> None:
    """Print the nodes that may log in, as POOL NODE."""
    nodes = nats_server.nodes_of(private(config_path))
    tell({"nodes": nodes}, "\n".join(f"{node.pool} {node.name}" for node in nodes), as_json)


class PortType(click.ParamType[Port]):
    """A port as `80` or `8443:unknown`."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Port:
        try:
            return value if isinstance(value, Port) else parse_port(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@node.command(epilog="Example: slackwater bus node settings web1 --port 80 --port 8443:unknown")
@click.argument("name", metavar="NODE")
@click.option(
    "--port",
    "ports",
    type=PortType(),
    metavar="PORT[:PROTOCOL]",
    multiple=True,
    default=["80"],
    show_default=True,
    help="A port of its web server, and what it speaks (unknown for TLS) unless it is usual there; may be repeated.",
)
@click.option("--no-port", is_flag=True, help="Its web server has Unix sockets alone: no traffic is looked at.")
@click.option(
    "--interface",
    default=INTERFACE,
    show_default=True,
    help="The interface on which its requests arrive; `ip route` on it shows their names.",
)
@config_option
@json_option
def settings(
    name: str, ports: tuple[Port, ...], no_port: bool, interface: str, config_path: Path, as_json: bool
) -> None:
    """Print the settings of NODE's monitor, for its /etc/slackwater/node.toml. There is no secret in them."""
    for parameter, option in (("ports", "--port"), ("interface", "--interface")):
        if no_port and click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--no-port and {option} exclude each other.")
    controller = private(config_path)
    for node in nats_server.nodes_of(controller):
        if node.name == name:
            bus, has_authority = controller.bus, bool(controller.bus.tls_ca)
            looked_at = () if no_port else ports
            text = node_text(name, node.pool, bus.address, looked_at, has_authority=has_authority, interface=interface)
            tell({"pool": node.pool, "node": name, "node_toml": text}, text.rstrip("\n"), as_json)
            return
    raise ConfigError(f"no node `{name}`; `slackwater bus node list` prints them")


@node.command(epilog="Example: slackwater bus node remove web1")
@click.argument("name", metavar="NODE")
@config_option
@json_option
def remove(name: str, config_path: Path, as_json: bool) -> None:
    """Let NODE no longer log in, and end its connections; its passwords are deleted."""
    settings = private(config_path)
    gone = [node for node in nats_server.nodes_of(settings) if node.name == name]
    if not gone:
        raise ConfigError(f"no node `{name}`; `slackwater bus node list` prints them")
    nats_server.change_nodes(settings, lambda nodes: [node for node in nodes if node.name != name])
    taken_over(settings)
    tell({"pool": gone[0].pool, "node": name}, f"{name} may no longer log in", as_json)
