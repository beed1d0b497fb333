"""Protection of the pages: strict headers, and on loopback only names of this host (against DNS rebinding).

Header meanings: https://www.w3.org/TR/CSP3/, https://owasp.org/www-project-secure-headers/.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from flask import Flask, Response, request

from slackwater.config import host_and_port

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
    """Sets the headers on every answer and refuses foreign host names (400): those that are not in `hosts`, and where
    `listen` is on loopback not of this host either. On another address without `hosts` every name is good."""
    host = host_and_port(listen)[0] if listen else "localhost"
    if is_loopback(host) or hosts:
        own = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host}
        app.config["TRUSTED_HOSTS"] = sorted(own | set(hosts))

    @app.after_request
    def _headers(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers[name] = value
        if request.endpoint != "static":
            response.headers.setdefault("Cache-Control", "no-store")
        return response
