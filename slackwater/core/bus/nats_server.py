"""The private nats-server of a controller: its configuration and its nodes, and waiting until it answers.

Configuration keys: https://docs.nats.io/running-a-nats-service/configuration
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slackwater.core.bus.bus import BusError
from slackwater.core.bus.config import ListedNode, Tls, config_text, parse_nodes, passwords_in, users
from slackwater.core.config import ControllerSettings, host_and_port
from slackwater.core.files import (
    bytes_of,
    exists,
    make_private,
    make_state_dir,
    open_file,
    remove,
    text_of,
    write_secret,
)

START_WITHIN_S = 30.0


def command(settings: ControllerSettings) -> list[str]:
    """Writes the configuration below `bus_folder`; returns the command line. Raises BusError without the program."""
    program = shutil.which("nats-server")
    if program is None:
        raise BusError(
            "nats-server is not on the PATH (Debian: package nats-server); or name your own NATS with bus.url"
        )
    change_nodes(settings, lambda nodes: nodes)
    return [program, "-c", str(settings.bus_folder / "nats.conf")]


def log_file(settings: ControllerSettings) -> Path:
    """The file of the server's log."""
    return Path(settings.state_dir) / "nats.log"


def nodes_of(settings: ControllerSettings) -> list[ListedNode]:
    """The nodes that may log in. Raises ConfigError for a list that somebody broke."""
    path = settings.bus_folder / "nodes"
    return parse_nodes(text_of(path), str(path)) if exists(path) else []


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time writes there."""
    lock = open_file(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def change_nodes(settings: ControllerSettings, change: Callable[[list[ListedNode]], list[ListedNode]]) -> None:
    """Replaces the list of nodes with what `change` makes of it, and writes their passwords and the configuration.

    A running server takes the list over when it gets SIGHUP. The password of a node that was taken out is deleted.
    """
    folder = settings.bus_folder
    make_state_dir(Path(settings.state_dir))
    make_private(folder)
    with _locked(folder):
        before = nodes_of(settings)
        text = "".join(f"{node.pool} {node.name}\n" for node in change(before))
        nodes = parse_nodes(text, "the list of nodes")
        names = users(nodes)
        passwords = passwords_in(folder / "passwords", names)
        tls = Tls(Path(settings.bus.tls_cert), Path(settings.bus.tls_key)) if settings.bus.tls_cert else None
        where = {"log_file": log_file(settings), "store_dir": Path(settings.state_dir) / "jetstream"}
        config = config_text(nodes, passwords, settings.bus.listen, tls, by="slackwater serve", **where)
        write_secret(folder / "nats.conf", config)
        write_secret(folder / "nodes", text)
        for gone in set(users(before)) - set(names):
            remove(folder / "passwords" / f"{gone}.password")


def check_free(listen: str) -> None:
    """Raises BusError when the address cannot be listened on."""
    if problem := why_not_free(listen):
        raise BusError(
            f"the private nats-server cannot listen on {listen} ({problem}); set bus.listen to a free address,"
            " or name your own NATS with bus.url"
        )


def why_not_free(listen: str) -> str:
    """Why an address cannot be listened on; empty where it can."""
    host, port = host_and_port(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def answers(listen: str, timeout_s: float = 0.5) -> bool:
    """Whether a NATS server greets on the address."""
    try:
        with socket.create_connection(host_and_port(listen), timeout_s) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def wait_until_it_answers(
    listen: str, log: Path, within_s: float = START_WITHIN_S, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Returns when the server greets; raises BusError, with the last line of its log, when it does not in time.

    `meanwhile` is called again and again.
    """
    deadline_s = time.monotonic() + within_s
    while not answers(listen):
        if time.monotonic() >= deadline_s:
            lines = bytes_of(log).decode(errors="replace").splitlines() if exists(log) else []
            last = f"; the last line of {log}: {lines[-1]}" if lines else ""
            raise BusError(f"the private nats-server does not answer on {listen} within {within_s:g} s{last}")
        meanwhile()
        time.sleep(0.02)
