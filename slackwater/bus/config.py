"""The configuration of a site's own nats-server: two users for each node, who can publish under its name only.

The monitor's user publishes Samples and receives the weight to report to HAProxy. The wsengine's user receives Orders,
which only the controller may publish, and publishes Changes and the state of its knobs.

Configuration keys: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/authorization
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.bus.nats_server import MAX_PAYLOAD_BYTES, is_loopback
from slackwater.config import ConfigError
from slackwater.messages import NAME_PATTERN

CONTROLLER = "slackwater-controller"
"""The user of `slackwater serve` and of the command line."""
WSENGINE = "wsengine:"
"""Prefix of the user of a node's wsengine: it has its own password, which the monitor does not know."""


@dataclass(frozen=True)
class Node:
    """A line of the list of nodes."""

    pool: str
    name: str


@dataclass(frozen=True)
class Tls:
    """The server's certificate; paths on the machine where nats-server runs."""

    certificate: Path
    key: Path


def read_nodes(text: str, where: str) -> list[Node]:
    """Reads lines of `POOL NODE`; `#` starts a comment. Raises ConfigError with the line."""
    nodes: list[Node] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(f"{where}:{number}: expected `POOL NODE`, got {line.strip()!r}")
        for word in words:
            if not re.search(NAME_PATTERN, word):
                raise ConfigError(f"{where}:{number}: {word!r} is no name of letters, digits, `_`, `-`, `:` and `.`")
        node = Node(*words)
        if node.name.startswith(WSENGINE):
            raise ConfigError(f"{where}:{number}: names that begin with {WSENGINE} are those of wsengines")
        if node.name == CONTROLLER or any(node.name == other.name for other in nodes):
            raise ConfigError(
                f"{where}:{number}: the name {node.name} is taken; each node has its own, also across pools"
            )
        nodes.append(node)
    if not nodes:
        raise ConfigError(f"{where}: expected at least one line of `POOL NODE`")
    return nodes


def users(nodes: list[Node]) -> list[str]:
    """The names of all users."""
    return [CONTROLLER, *(prefix + node.name for node in nodes for prefix in ("", WSENGINE))]


def config_text(nodes: list[Node], passwords: dict[str, str], listen: str, tls: Tls | None) -> str:
    """The server's file. Raises ConfigError when passwords would go through a network in the clear."""
    if tls is None and not is_loopback(listen):
        raise ConfigError(f"{listen} is reached from outside: passwords need TLS (--tls-cert and --tls-key)")
    options: dict[str, Any] = {"server_name": "slackwater", "listen": listen, "max_payload": MAX_PAYLOAD_BYTES}
    if tls:
        options["tls"] = {"cert_file": str(tls.certificate), "key_file": str(tls.key)}
    # The last two are the key-value store of lbengine's leases, where JetStream is switched on.
    everything = ["slackwater.>", "_INBOX.>", "$JS.API.>", "$KV.slackwater_lease.>"]
    rights = [(CONTROLLER, everything, everything)]
    for node in nodes:
        sample, weight, order, knobs, change = (
            f"slackwater.{kind}.{node.pool}.{node.name}" for kind in ("sample", "weight", "order", "knobs", "change")
        )
        rights += [
            (node.name, [sample], [weight]),
            (WSENGINE + node.name, [change, knobs], [order]),
        ]
    options["authorization"] = {
        "users": [
            {
                "user": user,
                "password": passwords[user],
                "permissions": {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}},
            }
            for user, publish, subscribe in rights
        ]
    }
    head = "# Written by `slackwater bus config`. It holds passwords: readable for nats-server's user alone.\n"
    return head + "".join(f"{key}: {json.dumps(value, indent=2)}\n" for key, value in options.items())


def passwords_in(folder: Path, names: list[str]) -> dict[str, str]:
    """A password for each name, in `folder`/NAME.password; those that are there stay."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    passwords = {}
    for name in names:
        path = folder / f"{name}.password"
        if not path.exists():
            write_secret(path, secrets.token_urlsafe(24) + "\n")
        passwords[name] = path.read_text(encoding="utf-8").strip()
    return passwords


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
