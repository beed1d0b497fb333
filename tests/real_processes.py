"""What tests ask of processes and addresses of this machine."""

from __future__ import annotations

import socket
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_address() -> str:
    """HOST:PORT on loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
