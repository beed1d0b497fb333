"""Public keys of NATS users, in the form of github.com/nats-io/nkeys: a kind, the key and a checksum, in base 32."""

from __future__ import annotations

import base64
import binascii

USER = 20 << 3
"""The first byte of a user's public key, which makes its text begin with U."""
KEY_BYTES = 32


def nkey_text(head: bytes, raw: bytes) -> str:
    body = head + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def is_public_user_key(text: object) -> bool:
    """Whether this is the text of a user's public key, and nothing else."""
    if not isinstance(text, str):
        return False
    try:
        body = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:  # also of letters that are not ASCII
        return False
    return body[:1] == bytes([USER]) and len(body) == 3 + KEY_BYTES and nkey_text(body[:1], body[1:-2]) == text
