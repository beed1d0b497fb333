"""Proxies in front of the dashboard: whose headers are believed, and from where a request came.

A header proves nothing by itself: every program that reaches the port can send it, and on loopback that is every local
user's. So a proxy is an address of `web.proxies` and, with `web.proxy_secret_file`, whoever there knows the secret. Who
is logged in is believed only with the secret.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from pathlib import Path

from flask import Request

from slackwater.core.config.settings import WebSettings
from slackwater.core.files import text_of

log = logging.getLogger("slackwater.web")

SECRET_HEADER = "X-Slackwater-Secret"
LEAST_SECRET = 16
V6_NETWORK = 64
"""Bits: a customer, often a single host, has all addresses of such a network."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """The proxies of one configuration. What is wrong with the secret's file is logged; then no header is believed."""

    def __init__(self, settings: WebSettings) -> None:
        self._addresses = {address for text in settings.proxies if (address := address_of(text)) is not None}
        for text in settings.proxies:
            if address_of(text) is None:
                log.error("web.proxies: %r is no address, and no proxy is known by it", text)
        self._user_header = settings.proxy_user_header
        self._asks_secret = bool(settings.proxy_secret_file)
        self._secret = _secret(settings.proxy_secret_file) if self._asks_secret else b""
        if self._user_header and not self._secret:
            log.error(
                "web.proxy_user_header is not believed: every program on a proxy's host could send it; set"
                " web.proxy_secret_file, and have the proxy send the secret as %s",
                SECRET_HEADER,
            )

    def is_one(self, request: Request) -> bool:
        """Whether a proxy sent this request."""
        if address_of(request.remote_addr or "") not in self._addresses:
            return False
        return not self._asks_secret or self._knows_secret(request)

    def person(self, request: Request) -> str:
        """Whom the proxy names; empty: nobody."""
        if not self._user_header or not self.is_one(request) or not self._knows_secret(request):
            return ""
        return request.headers.get(self._user_header, "").strip()

    def client(self, request: Request) -> str:
        """The last address that no proxy has (`X-Forwarded-For`)."""
        address = request.remote_addr or ""
        forwarded = ",".join(request.headers.getlist("X-Forwarded-For")).split(",") if self.is_one(request) else []
        while forwarded and address_of(address) in self._addresses and address_of(forwarded[-1]) is not None:
            address = forwarded.pop().strip()
        return address

    def _knows_secret(self, request: Request) -> bool:
        given = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        return bool(self._secret) and hmac.compare_digest(given, self._secret)


def address_of(text: str) -> Address | None:
    """The address in a text; None for what is no address. An IPv4 address in IPv6 form becomes IPv4."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(text: str) -> str:
    """The network of one client: the IPv4 address, or the /64 of an IPv6 address. Other texts stay as they are."""
    address = address_of(text)
    if not isinstance(address, ipaddress.IPv6Address):
        return text if address is None else str(address)
    return str(ipaddress.ip_network((int(address), V6_NETWORK), strict=False))


def _secret(file: str) -> bytes:
    """The secret in the file; empty where it cannot be used."""
    path = Path(file)
    try:
        mode = path.stat().st_mode & 0o777
        secret = text_of(path).strip().encode()
    except OSError as error:
        log.error("web.proxy_secret_file: %s: %s", path, error.strerror)
        return b""
    if mode & 0o007:
        log.error(
            "web.proxy_secret_file: %s can be used by everybody on this machine (mode %04o); chmod 0640", path, mode
        )
    elif len(secret) < LEAST_SECRET:
        log.error("web.proxy_secret_file: %s has %d characters, expected at least %d", path, len(secret), LEAST_SECRET)
    else:
        return secret
    return b""
