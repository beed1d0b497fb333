"""The private nats-server of a controller: its configuration, and waiting until it answers.

Configuration keys: https://docs.nats.io/running-a-nats-service/configuration
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import time
from pathlib import Path

from slackwater.bus.bus import BusError
from slackwater.config import host_and_port

MAX_PAYLOAD_BYTES = 256 * 1024
"""A Cycle of a pool of some hundred servers has 50 kB."""
LOG_BYTES = 4 * 1024 * 1024
STORE_BYTES = 16 * 1024 * 1024
"""For the key-value store of the leases: a record of a pool of some hundred servers has 20 kB."""
START_WITHIN_S = 30.0


def command(state_dir: Path, listen: str) -> list[str]:
    """Writes the configuration below `state_dir`; returns the command line. Raises BusError without the program."""
    program = shutil.which("nats-server")
    if program is None:
        raise BusError(
            "nats-server is not on the PATH (Debian: package nats-server); or name your own NATS with bus.url"
        )
    path = state_dir / "nats.conf"
    path.write_text(config_text(listen, state_dir / "nats.log", state_dir / "jetstream"), encoding="utf-8")
    return [program, "-c", str(path)]


def config_text(listen: str, log_file: Path, store_dir: Path) -> str:
    """The server's configuration file."""
    return (
        "# Written by `slackwater serve` at each start; changes here are lost.\n"
        'server_name: "slackwater"\n'
        f"listen: {json.dumps(listen)}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        f"log_file: {json.dumps(str(log_file.absolute()))}\n"
        f"logfile_size_limit: {LOG_BYTES}\n"
        f"jetstream: {{ store_dir: {json.dumps(str(store_dir.absolute()))}, max_memory_store: {STORE_BYTES},"
        f" max_file_store: {STORE_BYTES} }}\n"
    )


def is_loopback(listen: str) -> bool:
    """Whether only this machine reaches the address; a host name other than `localhost` counts as outside."""
    host, _ = host_and_port(listen)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_free(listen: str) -> None:
    """Raises BusError when the address cannot be listened on."""
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
        raise BusError(
            f"the private nats-server cannot listen on {listen} ({error.strerror}); set bus.listen to a free address,"
            " or name your own NATS with bus.url"
        ) from None


def answers(listen: str, timeout_s: float = 0.5) -> bool:
    """Whether a NATS server greets on the address."""
    try:
        with socket.create_connection(host_and_port(listen), timeout_s) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def wait_until_it_answers(listen: str, log_file: Path, within_s: float = START_WITHIN_S) -> None:
    """Returns when the server greets; raises BusError, with the last line of its log, when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not answers(listen):
        if time.monotonic() >= deadline_s:
            lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
            last = f"; the last line of {log_file}: {lines[-1]}" if lines else ""
            raise BusError(f"the private nats-server does not answer on {listen} within {within_s:g} s{last}")
        time.sleep(0.02)
