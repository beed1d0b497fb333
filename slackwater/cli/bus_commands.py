"""`slackwater bus`: the bus of a site that has a nats-server of its own."""

from __future__ import annotations

import re
from pathlib import Path

import click

from slackwater.bus.config import CONTROLLER, WSENGINE, Tls, config_text, passwords_in, read_nodes, users, write_secret
from slackwater.config import ADDRESS_PATTERN, ConfigError
from slackwater.renamed import RenamedOption


def an_address(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not re.search(ADDRESS_PATTERN, text):
        raise click.BadParameter(f"expected HOST:PORT, got {text!r}")
    return text


@click.group(epilog="Example: slackwater bus config --nodes nodes.txt --out bus")
def bus() -> None:
    """Users and permissions of a nats-server of your own."""


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
    cls=RenamedOption,
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for nats.conf and the passwords.",
)
@click.option(
    "--listen", default="127.0.0.1:4222", show_default=True, callback=an_address, help="Where nats-server listens."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Its certificate (PEM), by its path there.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's key (PEM).")
def config(nodes_file: Path, folder: Path, listen: str, tls_cert: Path | None, tls_key: Path | None) -> None:
    """Write nats-server's configuration: each node may publish its own Samples, and nothing else.

    Passwords are made once and stay: run it again when a node comes or goes, then `nats-server --signal reload`.
    """
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together")
    tls = Tls(tls_cert.absolute(), tls_key.absolute()) if tls_cert and tls_key else None
    nodes = read_nodes(nodes_file.read_text(encoding="utf-8"), str(nodes_file))
    dummy = dict.fromkeys(users(nodes), "")
    config_text(nodes, dummy, listen, tls)  # refuses before anything is written
    passwords = passwords_in(folder / "passwords", list(dummy))
    write_secret(folder / "nats.conf", config_text(nodes, passwords, listen, tls))
    click.echo(f"{folder}/nats.conf: {len(nodes)} nodes; start it with `nats-server -c {folder}/nats.conf`")
    click.echo(f"each node: its file of {folder}/passwords as bus.password_file, its name as bus.user")
    click.echo(f"each node's wsengine: the same with {WSENGINE} before the name")
    click.echo(f"the controller: {folder}/passwords/{CONTROLLER}.password, bus.user {CONTROLLER}")
