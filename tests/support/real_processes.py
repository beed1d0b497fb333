"""What tests ask of processes and addresses of this machine."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

BLOCKS = [range(first, first + 50) for first in range(20_000, 30_000, 50)]
"""Ports for tests. Those that the kernel hands out by itself (ip_local_port_range) begin at 32768: one of them that is
free now may be a connection's, or another listener's, before a server has started on it."""


def is_alive(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _numbers() -> Iterator[int]:
    """Ports of blocks that are this process's as long as it lives; when none is left they come round again."""
    claims, ports = [], list[int]()
    for block in BLOCKS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0slackwater-test-ports-{block.start}")  # once in a network namespace
        except OSError:
            claim.close()
            continue
        claims.append(claim)
        ports += block
        yield from block
    yield from itertools.cycle(ports)


_ports = _numbers()


def free_port() -> int:
    """A port on which nothing listens now, another one each time, and never one of another process's tests.

    So servers that start later do not meet on it.
    """
    for port in itertools.islice(_ports, sum(map(len, BLOCKS))):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {BLOCKS[0].start} to {BLOCKS[-1].stop - 1}")


def free_address() -> str:
    """HOST:PORT on loopback on which nothing listens now."""
    return f"127.0.0.1:{free_port()}"
