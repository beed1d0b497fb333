"""The systems that there are packages for: setup brings their Python, packaging/ builds for them, and
`make clean-install` tries the packages on them, all by this one table. Standard library only."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.setup_base import BIN, BUILD, SetupError


@dataclass(frozen=True)
class Archive:
    """Where a distribution's packages come from."""

    url: str
    """Empty: where this machine gets Debian from."""
    keyring: Path
    """The keys that its lists are signed with."""
    parts: str
    others_url: str = ""
    """Where packages for other architectures than amd64 come from; empty: from the same place."""


@dataclass(frozen=True)
class System:
    """A release of a distribution."""

    title: str
    archive: Archive
    suites: tuple[str, ...]
    """Its name, and what its packages are also taken from."""
    python: str = ""
    """Version of its Python, such as `3.11`; empty where there are no packages for it."""
    suffix: str = ""
    """What follows the revision in the version of its controller's package, so that an upgrade of the system brings
    that package."""

    @property
    def release(self) -> str:
        """The name that apt knows it by, such as `bookworm`."""
        return self.suites[0]

    @property
    def folder(self) -> Path:
        """Where packages of it are unpacked."""
        return BUILD / self.title.lower().replace(" ", "-")

    @property
    def interpreter(self) -> Path:
        """Its Python on this machine."""
        return BIN / f"python{self.python}"

    def sources(self, architecture: str = "amd64") -> list[str]:
        """The lines that apt finds its packages by. Raises SetupError."""
        archive = self.archive
        url = archive.url or mirror()
        if architecture != "amd64" and archive.others_url:
            url = archive.others_url
        return [f"deb [signed-by={archive.keyring}] {url} {suite} {archive.parts}" for suite in self.suites]


def own_architecture() -> str:
    """Debian's name of this machine's; the kernel's where there are no packages for it."""
    machine = platform.machine()
    return next((name for name, other in MACHINES.items() if other == machine), machine)


def mirror() -> str:
    """Where this machine gets Debian 12 from. Raises SetupError."""
    targets = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(targets, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    mirrors = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    if "bookworm" not in mirrors:
        raise SetupError("apt names no source of Debian 12 (bookworm)")
    return mirrors["bookworm"]


DEBIAN = Archive("", Path("/usr/share/keyrings/debian-archive-keyring.gpg"), "main")
DEBIAN_12 = System("Debian 12", DEBIAN, ("bookworm",), "3.11")
DEBIAN_13 = System("Debian 13", DEBIAN, ("trixie",), "3.13", "+deb13")
UBUNTU = Archive(
    "http://archive.ubuntu.com/ubuntu",
    DEBIAN_13.folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg",  # unpacked by tools/setup_releases.py
    "main universe",
    "http://ports.ubuntu.com/ubuntu-ports",
)
UBUNTU_24_04 = System("Ubuntu 24.04", UBUNTU, ("noble", "noble-updates"), "3.12", "+ubuntu24.04")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The architectures that packages are built for, on each system: Debian's name -> that of Python and the kernel."""
SYSTEMS = {system.release: system for system in (DEBIAN_12, DEBIAN_13, UBUNTU_24_04)}
"""Those that there are packages for, by release."""
