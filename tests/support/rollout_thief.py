"""A client of NATS that tries what it may not: who has stolen a node's key. Protocol: NATS client protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.nats_identities import USER, Identity

ANSWERS_WITHIN_S = 30.0


def subjects(nodes: list[str]) -> list[str]:
    """Every kind of subject that the parts use, those of NATS itself, and wildcards over them."""
    kinds = ["sample", "verdict", "order", "weight", "ask", "knobs", "change"]
    ours = [f"slackwater.{kind}.web.{node}" for kind in kinds for node in nodes]
    ours += [f"slackwater.sample.other.{nodes[0]}", "slackwater.change.web", "slackwater.change.other"]
    ours += ["slackwater.cycle.web", "slackwater.control.web", "slackwater.request.web", "slackwater.new.web"]
    ours += ["slackwater.controller-change.web", f"slackwater.controller-change.web.{nodes[0]}"]
    theirs = ["$JS.API.INFO", "$JS.API.STREAM.DELETE.KV_slackwater_lease", "$JS.API.STREAM.PURGE.KV_slackwater_lease"]
    theirs += [
        "$KV.slackwater_lease.web",
        "$SYS.REQ.SERVER.PING",
        "$SYS.ACCOUNT.$G.CONNECT",
        "_INBOX.any.1",
        "anything",
    ]
    return ours + theirs


WILDCARDS = [
    ">",
    "slackwater.>",
    "slackwater.sample.>",
    "slackwater.order.web.*",
    "$JS.>",
    "$KV.>",
    "$SYS.>",
    "_INBOX.>",
]


def new_seed() -> str:
    """The seed of a key that nobody knows."""
    return Identity.new(USER).seed


class Refused(Exception):
    """The server ended the connection, and what it said."""


class Thief:
    """One connection."""

    def __init__(self, broker: str, seed: str, authority: Path) -> None:
        host, port = broker.split(":")
        plain = socket.create_connection((host, int(port)), ANSWERS_WITHIN_S)
        info = json.loads(plain.makefile("rb", buffering=0).readline().removeprefix(b"INFO "))
        context = ssl.create_default_context(cafile=str(authority))
        self._socket = context.wrap_socket(plain, server_hostname=host)
        self._lines = self._socket.makefile("rb")
        hello = {"verbose": False, "pedantic": False, "lang": "test", "version": "1", "protocol": 1, "headers": True}
        if seed:
            identity = _identity(seed)
            signed = base64.urlsafe_b64encode(identity.key.sign(info["nonce"].encode())).decode().rstrip("=")
            hello |= {"nkey": identity.public, "sig": signed}
        self._send(f"CONNECT {json.dumps(hello)}\r\n")
        self.errors()  # raises when we are not let in

    def close(self) -> None:
        self._socket.close()

    def _send(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def errors(self) -> list[str]:
        """What the server complained of, up to its answer to a PING."""
        self._send("PING\r\n")
        lines: list[str] = []
        while line := self._lines.readline().decode():
            if line.startswith("PONG"):
                return lines
            if line.startswith("PING"):
                self._send("PONG\r\n")
            if line.startswith("-ERR"):
                lines.append(line.strip())
        raise Refused("; ".join(lines))

    def may_publish(self, subject: str) -> bool:
        self._send(f"PUB {subject} 2\r\nhi\r\n")
        return not any("Permissions Violation" in error for error in self.errors())

    def may_subscribe(self, subject: str) -> bool:
        number = os.urandom(4).hex()
        self._send(f"SUB {subject} {number}\r\nUNSUB {number}\r\n")
        return not any("Permissions Violation" in error for error in self.errors())

    def flood(self, subject: str, payloads: Iterable[bytes]) -> None:
        """Sends them all, as fast as the server takes them."""
        self._socket.sendall(
            b"".join(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload) for payload in payloads)
        )


def _identity(seed: str) -> Identity:
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
    return Identity(USER, Ed25519PrivateKey.from_private_bytes(raw))


@contextlib.contextmanager
def connect(broker: str, seed: str, authority: Path) -> Iterator[Thief]:
    thief = Thief(broker, seed, authority)
    try:
        yield thief
    finally:
        thief.close()


def is_refused(broker: str, seed: str, authority: Path) -> bool:
    """Whether the server doesn't let this key in; an empty one logs in without."""
    try:
        with connect(broker, seed, authority):
            return False
    except (Refused, ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return True
