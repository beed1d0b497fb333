"""Kinds of sections and values in the settings: names, addresses, URLs, and what they look like."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from slackwater.core.messages import NAME_PATTERN, SERVER_PATTERN


class ConfigError(Exception):
    """A configuration that cannot be used; the text has the place, the fault and what was expected."""


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of all sections: an unknown key is an error."""


Positive = Annotated[float, Meta(gt=0)]
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS_PATTERN = rf"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):{_PORT}$(?!\n)"
Address = Annotated[str, Meta(pattern=ADDRESS_PATTERN)]
OPTIONAL_ADDRESS_PATTERN = rf"^$(?!\n)|{ADDRESS_PATTERN}"
OptionalAddress = Annotated[str, Meta(pattern=OPTIONAL_ADDRESS_PATTERN)]
URL_PATTERN = r"^$(?!\n)|^(nats|tls)://[^\s/]+$(?!\n)"
FilePath = Annotated[str, Meta(min_length=1)]
WEB_URL_PATTERN = r"^$(?!\n)|^https?://[^\s?#]+$(?!\n)"
HEADER_PATTERN = r"^[A-Za-z0-9-]*$(?!\n)"
PATTERNS_IN_WORDS = {
    **dict.fromkeys(
        (NAME_PATTERN, SERVER_PATTERN), "a name of letters, digits, `_`, `-`, `:` and `.` (no space, no `;`)"
    ),
    ADDRESS_PATTERN: "HOST:PORT",
    OPTIONAL_ADDRESS_PATTERN: 'HOST:PORT or ""',
    HEADER_PATTERN: "the name of an HTTP header",
    WEB_URL_PATTERN: 'http://HOST/PATH, https://HOST/PATH or ""',
    URL_PATTERN: 'nats://HOST:PORT, tls://HOST:PORT or ""',
}
"""What each pattern allows, for messages."""


def in_words(fault: str, patterns: Mapping[str, str] = PATTERNS_IN_WORDS) -> str:
    """msgspec's text of a fault, with what each pattern allows in place of the pattern."""
    for pattern, words in patterns.items():
        fault = fault.replace(f"`str` matching regex {pattern!r}", words)
    return fault


def host_and_port(address: str) -> tuple[str, int]:
    """Splits an `Address` that was accepted in the settings; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address; a host name other than `localhost` counts as outside."""
    return is_loopback_host(host_and_port(address)[0])


def is_loopback_host(host: str) -> bool:
    """As `is_loopback`, for a host without a port; also for an address that a socket names."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return ((isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped) or parsed).is_loopback
