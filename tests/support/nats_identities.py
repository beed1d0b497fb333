"""Identities of NATS for tests: NKeys, and what an operator signs with them, in the forms that NATS documents."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED, OPERATOR, ACCOUNT, USER = 18 << 3, 14 << 3, 0, 20 << 3


def _written(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@dataclass(frozen=True)
class Identity:
    """A key pair of one kind."""

    kind: int
    key: Ed25519PrivateKey

    @staticmethod
    def new(kind: int) -> Identity:
        return Identity(kind, Ed25519PrivateKey.generate())

    @property
    def public(self) -> str:
        return _written(bytes([self.kind]) + self.key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        head = bytes([SEED | self.kind >> 5, (self.kind & 31) << 3])
        return _written(head + self.key.private_bytes_raw())

    def signs(self, subject: Identity, name: str, claims: dict[str, object]) -> str:
        """A JWT in which this identity vouches for another one."""
        head = _url(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        body = {"jti": name, "iat": 1, "iss": self.public, "name": name, "sub": subject.public, "nats": claims}
        text = f"{head}.{_url(json.dumps(body).encode())}"
        return f"{text}.{_url(self.key.sign(text.encode()))}"


def credentials(token: str, user: Identity) -> str:
    """The text of a .creds file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
