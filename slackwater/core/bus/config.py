"""The configuration of a nats-server, private or the site's own: who may publish and hear what.

The controller's parts have a user, people's commands another one, and each node two, who can publish under its name
only. The monitor's user publishes Samples, and receives the weight to report to HAProxy and what it is asked for. The
wsengine's user receives Orders, which only the controller may publish, and publishes Changes and the state of its
knobs.

Configuration keys: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/authorization
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.core.config import CONTROL, CONTROLLER, ConfigError, is_loopback
from slackwater.core.files import exists, make_private, text_of, write_secret
from slackwater.core.messages import NAME_PATTERN

WSENGINE = "wsengine:"
"""Prefix of the user of a node's wsengine: it has its own password, which the monitor does not know."""
MAX_PAYLOAD_BYTES = 256 * 1024
"""A Cycle of a pool of some hundred servers has 50 kB."""
MOST_SUBSCRIPTIONS = 16_384
"""The most subscriptions of one connection: a reader has one for each node while somebody floods."""
MOST_WAITING_BYTES = 32 * 1024 * 1024
"""Most bytes that wait for a connection that does not read; whoever sends to it waits from half of this on."""
LIMITS = {
    "max_payload": MAX_PAYLOAD_BYTES,
    "max_control_line": 1024,
    "max_subscriptions": MOST_SUBSCRIPTIONS,
    "max_pending": MOST_WAITING_BYTES,
    "write_deadline": "2s",
    "ping_interval": "5s",
}
"""As in the Ansible role. `max_subscriptions` and `max_pending` are the same for any number of nodes: nats-server
refuses to reload a configuration in which they differ."""
LOG_BYTES = 4 * 1024 * 1024
STORE_BYTES = 16 * 1024 * 1024
"""For the key-value store of the leases: a record of a pool of some hundred servers has 20 kB."""
STORE = ["$JS.API.>", "$KV.>"]
"""The key-value store of leases and replacements, where JetStream is switched on. The API alone lets a user
change any bucket of it."""
MADE_BY_CONTROLLER = (
    "sample",
    "verdict",
    "order",
    "weight",
    "ask",
    "cycle",
    "governed",
    "controller-change",
    "request",
)
"""What the controller's parts publish; its Samples are of nodes without a monitor. `control` is missing: only a
person's command is one."""


@dataclass(frozen=True)
class ListedNode:
    """A line of the list of nodes."""

    pool: str
    name: str

    def subject(self, kind: str) -> str:
        """The subject on which this node alone publishes a kind of message, or hears it."""
        return f"slackwater.{kind}.{self.pool}.{self.name}"


@dataclass(frozen=True)
class Tls:
    """The server's certificate; paths on the machine where nats-server runs."""

    certificate: Path
    key: Path


def read_nodes(text: str, where: str) -> list[ListedNode]:
    """Reads lines of `POOL NODE`; `#` starts a comment. Raises ConfigError with the line, also when there is none."""
    nodes = parse_nodes(text, where)
    if not nodes:
        raise ConfigError(f"{where}: expected at least one line of `POOL NODE`")
    return nodes


def parse_nodes(text: str, where: str) -> list[ListedNode]:
    """As `read_nodes`, but there may be no line."""
    nodes: list[ListedNode] = []
    names, subjects = {CONTROLLER, CONTROL}, set[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(f"{where}:{number}: expected `POOL NODE`, got {line.strip()!r}")
        for word in words:
            if not re.search(NAME_PATTERN, word):
                raise ConfigError(f"{where}:{number}: {word!r} is no name of letters, digits, `_`, `-`, `:` and `.`")
        node = ListedNode(*words)
        if node.name.startswith(WSENGINE):
            raise ConfigError(f"{where}:{number}: names that begin with {WSENGINE} are those of wsengines")
        if node.subject("sample") in subjects:
            raise ConfigError(f"{where}:{number}: {node.subject('sample')} is the subject of another node too")
        if node.name in names:
            raise ConfigError(
                f"{where}:{number}: the name {node.name} is taken; each node has its own, also across pools"
            )
        nodes.append(node)
        names.add(node.name)
        subjects.add(node.subject("sample"))
    return nodes


def users(nodes: list[ListedNode]) -> list[str]:
    """The names of all users."""
    return [CONTROLLER, CONTROL, *(prefix + node.name for node in nodes for prefix in ("", WSENGINE))]


def config_text(
    nodes: list[ListedNode],
    passwords: dict[str, str],
    listen: str,
    tls: Tls | None,
    *,
    by: str = "slackwater bus config",
    log_file: Path | None = None,
    store_dir: Path | None = None,
) -> str:
    """The server's file, written by the command `by`. With a `store_dir` JetStream is switched on.

    Raises ConfigError when passwords would go through a network in the clear.
    """
    if tls is None and not is_loopback(listen):
        raise ConfigError(f"{listen} is reached from outside: passwords need TLS (--tls-cert and --tls-key)")
    options: dict[str, Any] = {"server_name": "slackwater", "listen": listen, **LIMITS}
    options["max_connections"] = 16 + 8 * len(nodes)
    if tls:
        options["tls"] = {"cert_file": str(tls.certificate), "key_file": str(tls.key)}
    if log_file:
        options |= {"log_file": str(log_file.absolute()), "logfile_size_limit": LOG_BYTES}
    if store_dir:
        limits = {"max_memory_store": STORE_BYTES, "max_file_store": STORE_BYTES}
        options["jetstream"] = {"store_dir": str(store_dir.absolute()), **limits}
    answers = ["_INBOX.>", *STORE]
    rights = [
        (CONTROLLER, [*(f"slackwater.{kind}.>" for kind in MADE_BY_CONTROLLER), *answers], ["slackwater.>", *answers]),
        (CONTROL, ["slackwater.control.>"], [f"_INBOX.{CONTROL}.>"]),
    ]
    for node in nodes:
        rights += [
            (node.name, [node.subject("sample")], [node.subject("weight"), node.subject("ask")]),
            (WSENGINE + node.name, [node.subject("change"), node.subject("knobs")], [node.subject("order")]),
        ]
    options["authorization"] = {
        "timeout": 5,
        "users": [
            {
                "user": user,
                "password": passwords[user],
                "permissions": {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}},
            }
            for user, publish, subscribe in rights
        ],
    }
    head = f"# Written by `{by}`; changes here are lost. It holds passwords: readable for nats-server's user alone.\n"
    return head + "".join(f"{key}: {json.dumps(value, indent=2)}\n" for key, value in options.items())


def passwords_in(folder: Path, names: list[str]) -> dict[str, str]:
    """A password for each name, in `folder`/NAME.password; those that are there stay."""
    make_private(folder)
    passwords = {}
    for name in names:
        path = folder / f"{name}.password"
        if not exists(path):
            write_secret(path, secrets.token_urlsafe(24) + "\n")
        passwords[name] = text_of(path).strip()
    return passwords
