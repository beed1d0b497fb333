"""Text from elsewhere as plain text: nothing in it moves a terminal's cursor, or hides or reorders what is beside it.

JSON is cleaned as a whole before it is decoded, so that no field of a message can be forgotten.
"""

from __future__ import annotations

from typing import Any

import msgspec

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_C1 = range(0x80, 0xA0)
_SEPARATORS = (0x2028, 0x2029)
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Marks that change the direction of writing: https://trojansource.codes"""
_PLAIN = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\N{SYMBOL FOR DELETE}"}
_PLAIN |= dict.fromkeys((*_C1, *_SEPARATORS, *_DIRECTIONS), _REPLACEMENT)


def plain_text(text: str) -> str:
    """The text with each control character replaced by its picture (`␛` for escape) or by U+FFFD."""
    return text.translate(_PLAIN)


def plain_json(data: bytes | str) -> bytes:
    """JSON with all of its texts as `plain_text` has them, names of fields included.

    Raises msgspec.DecodeError for what is no JSON, UnicodeDecodeError, and RecursionError where it is nested too deep.
    """
    # ASCII without an escape sequence has no control character but the last one: JSON forbids the others.
    raw = data.encode() if isinstance(data, str) else data
    if raw.isascii() and b"\\" not in raw and b"\x7f" not in raw:
        return raw
    return msgspec.json.encode(_plain(msgspec.json.decode(raw)))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(name): _plain(item) for name, item in value.items()}
    return value
