"""A real IP_VS for the tests: a guest with Debian's cloud kernel, in QEMU's software emulation.

The Linux that runs the tests needs no IP_VS, and nothing of its network is touched.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater.lbengine.backends.ipvs.ipvs import CommandResult
from slackwater.lbengine.balancer import BalancerUnreachable
from slackwater_lab.cluster.guest import GuestSilent, quoted
from slackwater_lab.cluster.paths import DEBIAN
from tests.support import qemu_guest
from tests.support.paths import ROOT
from tests.support.qemu_guest import Guest, GuestSettings

GUEST = ROOT / "tests/guest"
SCHEDULERS = ("rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "mh", "dh", "fo", "ovf", "lblc", "lblcr")
NEEDED = (DEBIAN / "sbin/ipvsadm", DEBIAN / "usr/sbin/keepalived")
PYTHON = os.path.realpath(sys.executable)
ERRORS_FOLLOW = b"\n--- stderr\n"
LIBRARIES = ":".join(str(DEBIAN.resolve() / folder / "x86_64-linux-gnu") for folder in ("usr/lib", "lib"))
INIT = qemu_guest.INIT.replace("exec ", f"LIBRARIES={shlex.quote(LIBRARIES)} exec ")
SETTINGS = GuestSettings(drivers=(*(f"ip_vs_{name}" for name in SCHEDULERS), "veth"), cpus=2, init=INIT)


@functools.cache
def why_not() -> str:
    """Why the guest cannot be had on this machine; empty where it can. A guest that then doesn't boot is a failure."""
    if platform.machine() != "x86_64":
        return f"the guest runs this machine's programs on x86-64, this is {platform.machine()}"
    lacks = [*qemu_guest.missing(), *(path.name for path in NEEDED if not path.exists())]
    return f"not in .build: {', '.join(lacks)} (run `make setup`)" if lacks else ""


needs_ipvs = pytest.mark.skipif(bool(why_not()), reason=f"no IP_VS guest: {why_not()}")


class IpvsGuest(Guest):
    """A running guest with an empty table."""

    def __init__(self, folder: Path, settings: GuestSettings = SETTINGS) -> None:
        """Raises LabError if it isn't ready in time."""
        folder.mkdir(exist_ok=True)
        super().__init__(folder, settings)
        self.wait_ready()
        try:
            self.ok("ipvsadm -Ln")
        except BaseException:
            self.stop()
            raise

    def run(self, argv: list[str], stdin: str = "") -> CommandResult:
        """What lbengine's doors run their commands with: here, in the guest."""
        _, printed = self.sh(
            f"printf %s {quoted(stdin)} >/run/stdin; {shlex.join(argv)} </run/stdin 2>/run/stderr; s=$?;"
            " printf '\\n--- stderr\\n%s\\n%s' \"$(</run/stderr)\" $s"
        )
        out, _, rest = printed.partition(ERRORS_FOLLOW.decode())
        errors, _, status = rest.rpartition("\n")
        if status == "127":
            raise BalancerUnreachable(f"{argv[0]}: not found in the guest")
        return CommandResult(int(status), out, errors)

    # slackwater.lbengine.backends.keepalived.keepalived.Files, of the guest: its /run and /proc are its own.

    def read(self, path: str) -> str | None:
        # Without a new process where that can be: they are slow here. No shell variable holds a NUL.
        how = f"cat {path}" if path.endswith("/cmdline") else f'printf %s "$(<{path})"'
        status, printed = self.sh(f"[ -r {path} ] && {how}")
        return printed if status == 0 else None

    def replace(self, path: str, text: str) -> None:
        status, _ = self.sh(f"printf %s {quoted(text)} >{path}.new && mv {path}.new {path}")
        if status != 0:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def matching(self, pattern: str) -> list[str]:
        return self.sh(f"for f in {pattern}; do [ -f $f -a ! -x $f ] && echo $f; done")[1].split()

    def is_writable_folder(self, path: str) -> bool:
        return self.sh(f"test -d {path} -a -w {path}")[0] == 0


@contextmanager
def booted(*, init: str = INIT, line: str = "") -> Iterator[IpvsGuest]:
    """A guest, ended and cleaned up afterwards."""
    with tempfile.TemporaryDirectory(prefix="sw-ipvs-") as name:
        settings = replace(SETTINGS, init=init, line=line)
        try:
            running = IpvsGuest(Path(name), settings)
        except GuestSilent as hung:  # One emulated boot of thousands hangs, on a busy machine.
            print(f"booted once more: {hung}", file=sys.stderr)
            running = IpvsGuest(Path(name, "again"), settings)
        try:
            yield running
        finally:
            running.stop()
