"""Where the lab finds its programs and keeps its files, and what it needs of the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / ".build"
BIN = BUILD / "bin"
DEBIAN = BUILD / "debian"

LAB_DIR = Path("/var/lib/slackwater-lab")
"""Everything that the lab writes. Not in the checkout: the web servers' user must be able to read it."""

LOCK_FILE = Path("/run/slackwater-lab.lock")

PREFIX = "swlab"
"""All links and namespaces of the lab begin so; nothing else is ever removed."""

PROGRAMS = ("haproxy", "apache2", "php-fpm8.2", "nats-server", "oha")
"""Programs that every lab needs; others are looked for when they are used."""
SYSTEM_PROGRAMS = {
    **{"ip": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux", "taskset": "util-linux"},
    "cc": "gcc and libc6-dev",
}
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


class LabError(Exception):
    """The lab cannot do what it was asked; the text says what is missing or what happened, and where."""


def program(name: str) -> str:
    """Path of a program that `make setup` brings; raises LabError when it is not there."""
    path = BIN / name
    if not path.exists():
        raise LabError(f"{path} is missing: run `make setup`")
    return str(path)


def debian_places(inside: str) -> list[Path]:
    """Where a file or folder of the Debian packages is: unpacked by `make setup`, or installed on the machine.

    `make setup` unpacks only what the machine lacks, so a package's dependencies may be in either place.
    """
    return [root / inside for root in (DEBIAN, Path("/")) if (root / inside).exists()]


def system_program(name: str) -> str:
    """Path of a program of the machine, also in the sbin folders that a user's PATH may lack."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        package = SYSTEM_PROGRAMS.get(name, name)
        raise LabError(f"`{name}` is not on this machine; it comes with Debian's {package}")
    return path


def missing_privileges(euid: int, status: str) -> list[str]:
    """The privileges that the lab lacks, in words; `status` is the text of /proc/self/status."""
    if euid != 0:
        return ["root (for network namespaces, veth pairs, cgroups and packet capture)"]
    line = next((row for row in status.splitlines() if row.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    return [
        f"{name} (for network namespaces and veth pairs)" for name, bit in CAPABILITIES.items() if not held >> bit & 1
    ]
