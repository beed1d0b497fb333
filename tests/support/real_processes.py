"""What tests ask of processes and addresses of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

BLOCKS = [range(first, first + 50) for first in range(20_000, 30_000, 50)]
"""Ports for tests. Those that the kernel hands out by itself (ip_local_port_range) begin at 32768: one of them that is
free now may be a connection's, or another listener's, before a server has started on it."""
_claims: list[socket.socket] = []
"""One for each block that is this process's as long as it lives: a name is bound once in a network namespace."""
_ports: Iterator[int] = iter(())
_used: list[int] = []


def is_alive(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    """A port on which nothing listens now, another one each time, and never one of another process's tests.

    So servers that start later do not meet on it.
    """
    while True:
        for port in _ports:
            _used.append(port)
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return port
        _next_block()


def _next_block() -> None:
    """Claims a block that no living process has; without one, this process's ports come round again."""
    global _ports
    for block in BLOCKS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0slackwater-test-ports-{block.start}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        _ports = iter(block)
        return
    assert _used, "every block of ports for tests has another process"
    _ports = iter(_used[:])
    _used.clear()


def free_address() -> str:
    """HOST:PORT on loopback on which nothing listens now."""
    return f"127.0.0.1:{free_port()}"
