"""A port of a web server, and what it speaks: as in the monitor's `sniffer.ports`."""

from __future__ import annotations

import re
from typing import NamedTuple

PROTOCOLS = ("http1", "memcached", "unknown")
USUAL = {443: "unknown", 11211: "memcached"}
"""Port -> its protocol where the settings name none; that of all other ports is HTTP/1."""


class Port(NamedTuple):
    """One port; `protocol` is empty where it is the port's usual one."""

    number: int
    protocol: str = ""

    def __str__(self) -> str:
        return f"{self.number}:{self.protocol}" if self.protocol else str(self.number)


def port_of(number: int, protocol: str) -> Port:
    """The port, with its protocol only where that is not the usual one."""
    return Port(number, "" if protocol == USUAL.get(number, "http1") else protocol)


def parse_port(text: str) -> Port:
    """`80`, `8443:unknown`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})(?::(\w+))?", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= 65535 or (match[2] or "http1") not in PROTOCOLS:
        raise ValueError(
            f"{text!r}: expected a port from 1 to 65535, with what it speaks if that is not usual there, as in"
            f" 8443:unknown ({', '.join(PROTOCOLS)})"
        )
    return Port(int(match[1]), match[2] or "")
