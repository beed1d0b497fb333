"""The controller's signature under Orders: Ed25519 over the message's bytes as they are sent, in a header beside them.

`openssl genpkey -algorithm ed25519 -out orders.key` makes the key, `openssl pkey -in orders.key -pubout` prints the
public half, which is all that a node needs.
"""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from slackwater.core.files import as_owner, bytes_of

HEADER = "Slackwater-Signature"


class SigningError(Exception):
    """A key that cannot be used; the text has the file and the reason."""


class Signer:
    """Signs with one private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Reads a private key in PEM; raises SigningError, also when others than its owner may read it."""
        try:
            with as_owner(path):
                if path.stat().st_mode & 0o077:
                    raise SigningError(f"{path}: others than its owner may read it; chmod 600")
                data = bytes_of(path)
            key = load_pem_private_key(data, password=None)
        except OSError as error:
            raise SigningError(f"{path}: {error.strerror}") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise SigningError(f"{path}: no private key in PEM without a password") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningError(f"{path}: not an Ed25519 key (`openssl genpkey -algorithm ed25519`)")
        return cls(key)

    def headers(self, payload: bytes) -> dict[str, str]:
        """The headers to send with these bytes."""
        return {HEADER: base64.b64encode(self._key.sign(payload)).decode()}
