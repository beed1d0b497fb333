"""The address at which web servers reach the bus, and a certificate for it where the person has none."""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slackwater.controller.haproxy_init.first_settings import Wishes
from slackwater.core.bus import authority
from slackwater.core.bus.authority import AuthorityFiles, Write
from slackwater.core.config import ADDRESS_PATTERN, ControllerSettings, host_and_port, is_loopback

ANY_PORT = 9
"""Nothing is sent to it: the kernel only chooses a route."""


def with_certificate(wishes: Wishes, folder: Path) -> Wishes:
    """The wishes, with the files of a certificate of our own where other machines reach the bus and none is named.

    Raises ConfigError where no certificate can be made for the address.
    """
    named = wishes.tls_cert or wishes.tls_key or wishes.tls_ca
    if named or not re.search(ADDRESS_PATTERN, wishes.listen) or is_loopback(wishes.listen):
        return wishes
    files = AuthorityFiles(folder.absolute())
    authority.name_of(host_and_port(wishes.listen)[0])  # refuses before anything is written
    return replace(wishes, tls_cert=str(files.certificate), tls_key=str(files.key), tls_ca=str(files.authority))


def make_certificate(settings: ControllerSettings, folder: Path, write: Write) -> list[str]:
    """Makes the files that `with_certificate` has named; returns what was done, in words."""
    files, host = AuthorityFiles(folder.absolute()), host_and_port(settings.bus.listen)[0]
    made, until = authority.ensure(files, host, write, datetime.datetime.now(datetime.UTC))
    certificate = f"{files.certificate}: a certificate of {files.authority} for {host}, valid until {until:%Y-%m-%d}"
    if not made:
        return [f"{certificate}, was there"]
    reports = [f"made {certificate}; `slackwater init` with --force signs the next one"]
    if files.authority_key in made:
        reports.append(f"made {files.authority_key}, which signs it: keep it, and let nobody read it")
    return reports


def own_address(towards: Iterable[str]) -> str:
    """The address from which this machine reaches the first of these hosts that is an address and has a route.

    The word `ADDRESS` where there is none.
    """
    for host in towards:
        try:
            version = ipaddress.ip_address(host).version
            with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as way:
                way.connect((host, ANY_PORT))
                address: str = way.getsockname()[0]
        except (ValueError, OSError):  # a name, which may take long to look up; or no route
            continue
        return address if version == 4 else f"[{address}]"
    return "ADDRESS"
