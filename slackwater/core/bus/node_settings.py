"""The first settings of a web server's monitor: `node.toml`, and where it and the files that it names belong."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slackwater.core.bus.ports import Port

PASSWORD = "/etc/slackwater/bus.password"
AUTHORITY = "/etc/slackwater/authority.pem"
SETTINGS = "/etc/slackwater/node.toml"
GROUP = "slackwater-node"
"""The monitor's group; the package makes it."""
INTERFACE = "eth0"
"""The interface on which requests arrive, unless another is named."""


def node_text(
    node: str, pool: str, url: str, ports: Sequence[Port], *, has_authority: bool, interface: str = INTERFACE
) -> str:
    """node.toml of a web server. Without ports no traffic is looked at: the usual port may be another program's."""
    lines = [
        "# Written by `slackwater bus node settings`.",
        f"node = {toml_text(node)}",
        f"pool = {toml_text(pool)}",
        "",
        "[bus]",
        f"url = {toml_text(url)}",
        f"user = {toml_text(node)}",
        f"password_file = {toml_text(PASSWORD)}",
        *([f"tls_ca = {toml_text(AUTHORITY)}"] if has_authority else []),
        "",
        "[sniffer]",
        f"interface = {toml_text(interface if ports else '')}",
    ]
    if ports:
        lines.append(f"ports = [{', '.join(toml_text(str(port)) if port.protocol else str(port) for port in ports)}]")
    return "\n".join(lines) + "\n"


def toml_text(value: str) -> str:
    """A TOML string: JSON's, whose escapes TOML knows."""
    return json.dumps(value)
