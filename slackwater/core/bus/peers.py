"""Whose process is at the other end of a connection within this machine: the kernel knows it.

A port of this machine that its owner has left is free to any local user, so a password that is sent there goes to
whoever listens by then. The kernel's list of connections names the user of each end: proc_net_tcp of its documentation.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from pathlib import Path

LISTS = (Path("/proc/thread-self/net/tcp"), Path("/proc/thread-self/net/tcp6"))
ESTABLISHED = "01"
NOBODYS = "0"
"""The inode of a connection that no process has accepted, or that it has closed: its user means nothing."""
Ends = tuple[str, str]


def user_at(other: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user id of the process that has the other end of a connection: `other`, `own`: address and port of each end.
    None: no process of this machine has it. Raises OSError where the kernel does not show its connections."""
    wanted = _end(*other), _end(*own)
    for ends, user in _established():
        if ends == wanted:
            return user
    return None


def _established() -> Iterator[tuple[Ends, int]]:
    for file in LISTS:
        try:
            lines = file.open()
        except FileNotFoundError:  # a kernel without IPv6
            if file is LISTS[0]:
                raise
            continue
        with lines:
            next(lines)
            for line in lines:
                _, local, remote, state, *_, user, _, inode = line.split(maxsplit=10)[:10]
                if state == ESTABLISHED and inode != NOBODYS:
                    yield (_as_ipv4(local), _as_ipv4(remote)), int(user)


def _end(host: str, port: int) -> str:
    """As the kernel writes it: words of 32 bits in the machine's order, in hexadecimal."""
    address = ipaddress.ip_address(host)
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return _as_ipv4(f"{''.join(f'{word:08X}' for word in words)}:{port:04X}")


MAPPED = "".join(f"{word:08X}" for word in struct.unpack("=3I", ipaddress.ip_address("::ffff:0:0").packed[:12]))
"""The beginning of an IPv4 address in the form of IPv6."""


def _as_ipv4(end: str) -> str:
    return end.removeprefix(MAPPED) if len(end) > 13 else end
