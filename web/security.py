"""Protection of the pages: strict headers, and on loopback only names of this host (against DNS rebinding).

Header meanings: https://www.w3.org/TR/CSP3/, https://owasp.org/www-project-secure-headers/.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence

from flask import Flask, Response, request
from werkzeug.exceptions import SecurityError

from slackwater.core.config import host_and_port

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """True for localhost and the loopback addresses."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def protect(app: Flask, listen: str, hosts: Sequence[str] = ()) -> None:
    """Sets the headers on every answer, and refuses foreign host names (400): those that are neither in `hosts` nor of
    this host. Where `listen` is not on loopback, and there are no `hosts`, every name is good."""
    host = host_and_port(listen)[0] if listen else "localhost"
    names = {"localhost", "127.0.0.1", "::1", host, *hosts} if is_loopback(host) or hosts else set()
    own = {_spelt(name.strip("[]")) for name in names}

    @app.before_request
    def _own_names_only() -> None:
        if own and not _is_own(request.headers.get("Host", ""), own):
            raise SecurityError(f"{request.headers.get('Host', '')!r} is no name of this site; see `web.hosts`")

    @app.after_request
    def _headers(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers[name] = value
        if request.endpoint != "static":
            response.headers.setdefault("Cache-Control", "no-store")
        return response


def _is_own(header: str, own: Collection[str]) -> bool:
    """Whether a Host header (RFC 9110, 7.2) has one of these names, or one below a name that begins with a dot."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@?#\s]+))(?::[0-9]{1,5})?", header)
    if match is None:
        return False
    name = _spelt(match[1] or match[2])
    return name in own or any(domain.startswith(".") and name.endswith(domain) for domain in own)


def _spelt(name: str) -> str:
    """One spelling of each name: an IPv6 address has several."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")
