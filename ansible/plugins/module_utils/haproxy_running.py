"""What the running HAProxy has, by its admin socket: its servers and their weights."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping


def running_servers(path: str) -> dict[str, dict[str, tuple[str, str]]]:
    """By backend the servers that HAProxy has now, with their weights now and as configured; none where its admin
    socket does not answer."""
    answer = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        connection.connect(path)
        connection.sendall(b"show servers state\n")
        while chunk := connection.recv(65536):
            answer += chunk
    servers: dict[str, dict[str, tuple[str, str]]] = {}
    for line in answer.decode("utf-8", "replace").splitlines()[2:]:
        values = line.split()  # be_id be_name srv_id srv_name srv_addr op_state admin_state uweight iweight
        if len(values) > 8:
            servers.setdefault(values[1], {})[values[3]] = (values[7], values[8])
    return servers


def lost_by_a_reload(running: Mapping[str, Mapping[str, tuple[str, str]]]) -> list[str]:
    """What was set at runtime and not by the file, which HAProxy forgets when it reloads."""
    notes = []
    for backend, servers in running.items():
        others = [f"{name} {now}, not {own}" for name, (now, own) in servers.items() if now != own]
        if others:
            notes.append(
                f"HAProxy must reload for this, and then forgets the weights that were set at runtime in backend"
                f" `{backend}`: {', '.join(others)}"
            )
    return notes
