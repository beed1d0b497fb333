"""Addresses in what the roles write."""

from __future__ import annotations


def before_port(host: str) -> str:
    """A host name or an IP address as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class FilterModule:
    """The filters, by name."""

    def filters(self) -> dict:
        return {"before_port": before_port}
