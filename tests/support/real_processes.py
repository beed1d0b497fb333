"""What tests ask of processes and addresses of this machine."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

LOWEST, COUNT = 20_000, 10_000
"""Ports for tests. Those that the kernel hands out by itself (ip_local_port_range) begin at 32768: one of them that is
free now may be a connection's, or another listener's, before a server has started on it."""
_next = itertools.count(os.getpid() * 97)


def is_alive(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    """A port on which nothing listens now, another one each time: servers that start later do not meet on it."""
    for number in itertools.islice(_next, COUNT):
        port = LOWEST + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {LOWEST} to {LOWEST + COUNT - 1}")


def free_address() -> str:
    """HOST:PORT on loopback on which nothing listens now."""
    return f"127.0.0.1:{free_port()}"
