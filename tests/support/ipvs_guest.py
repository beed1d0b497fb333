"""A real IP_VS for the tests: a guest with Debian's cloud kernel, in QEMU's software emulation.

Its root is this machine's `/`, read-only, through virtiofs, so every program here runs in it unchanged; /run, /var/tmp,
/proc, /sys, /dev and the network are its own. Commands go through a port for them alone; what its kernel says goes into
a log. The Linux that runs the tests needs no IP_VS, and nothing of its network is touched.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import resource
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.cluster.paths import DEBIAN
from lbengine.backends.ipvs.ipvs import Result
from lbengine.balancer import BalancerUnreachable
from tests.support import qemu_guest
from tests.support.paths import ROOT

GUEST = ROOT / "tests/guest"
VIRTIOFSD = shutil.which("virtiofsd")
SCHEDULERS = ("rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "mh", "dh", "fo", "ovf", "lblc", "lblcr")
MODULES = ("virtio_pci", "virtio_console", "virtiofs", *(f"ip_vs_{name}" for name in SCHEDULERS), "veth")
NEEDED = (DEBIAN / "sbin/ipvsadm", DEBIAN / "usr/sbin/keepalived")
# Without five-level page tables, which make software emulation slower.
CPU = "max,la57=off"
MEMORY_MIB = 512
READY, READY_WITHIN_S = b"READY\n", 120.0
ANSWERS_WITHIN_S = 150.0
PYTHON = os.path.realpath(sys.executable)
ERRORS_FOLLOW = b"\n--- stderr\n"
# Process 1 until this machine's `/` is the guest's.
INIT = f"""\
#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev &&
while read -r name; do $b insmod /modules/$name.ko; done </modules/order &&
$b mkdir /host && $b mount -t virtiofs -o ro,nosuid host /host &&
for folder in proc sys dev; do $b mount --move /$folder /host/$folder; done &&
D={shlex.quote(str(DEBIAN.resolve()))} exec $b switch_root /host {shlex.quote(str(GUEST / "init.sh"))}
$b poweroff -f
"""


@functools.cache
def why_not() -> str:
    """Why the guest cannot be had on this machine; empty where it can. A guest that then doesn't boot is a failure."""
    if platform.machine() != "x86_64":
        return f"the guest runs this machine's programs on x86-64, this is {platform.machine()}"
    lacks = [*qemu_guest.missing(), *(path.name for path in NEEDED if not path.exists())]
    lacks += [] if VIRTIOFSD else ["virtiofsd"]
    return f"not in .build: {', '.join(lacks)} (run `make setup`)" if lacks else ""


needs_ipvs = pytest.mark.skipif(bool(why_not()), reason=f"no IP_VS guest: {why_not()}")


def quoted(text: str) -> str:
    """As one word of one line for the guest's bash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


def _many_files() -> None:
    """virtiofsd keeps a file open for each that the guest knows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class IpvsGuest:
    """A running guest. Not for several threads at once."""

    def __init__(self, folder: Path, *, init: str = INIT, line: str = "") -> None:
        """Boots it. `folder`: for its log and what it boots from; `line`: comes behind the kernel's command line.

        Fails the test if it isn't ready in time.
        """
        self._log = folder / "log"
        self._read = bytearray()
        initrd, listens_at = folder / "initrd", folder / "virtiofs"
        initrd.write_bytes(qemu_guest.archive(qemu_guest.root_files(init, qemu_guest.modules(*MODULES))))
        more = [
            *("-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on", "-numa", "node,memdev=memory"),
            *("-chardev", f"file,id=log,path={self._log},append=on", "-serial", "chardev:log"),
            *("-chardev", f"socket,id=files,path={listens_at}"),
            *("-device", "vhost-user-fs-pci,chardev=files,tag=host,queue-size=1024"),
            *("-chardev", "stdio,id=commands,signal=off", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=commands"),
        ]
        argv = qemu_guest.command(initrd, more, line=f"loglevel=6 {line}", cpu=CPU, cpus=2, memory_mib=MEMORY_MIB)
        with self._log.open("ab") as log, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(listens_at))
            listener.listen(1)
            self._virtiofsd = _serve_files(listener, log.fileno())
            self._process = qemu_guest.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            self._until(READY, READY_WITHIN_S)
        except BaseException:
            self.stop()
            raise

    def sh(self, command: str) -> tuple[int, str]:
        """Runs one shell line; its exit status, and what it printed on both outputs."""
        assert "\n" not in command
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        printed = self._until(b"--- RC=", ANSWERS_WITHIN_S)
        status = int(self._until(b"\n", ANSWERS_WITHIN_S))
        return status, printed.decode(errors="replace")

    def ok(self, command: str) -> str:
        """As `sh`, for what must succeed."""
        status, printed = self.sh(command)
        assert status == 0, f"`{command}` in the guest: status {status}: {printed}"
        return printed

    def run(self, argv: list[str], stdin: str = "") -> Result:
        """What lbengine's doors run their commands with: here, in the guest."""
        _, printed = self.sh(
            f"printf %s {quoted(stdin)} >/run/stdin; {shlex.join(argv)} </run/stdin 2>/run/stderr; s=$?;"
            " printf '\\n--- stderr\\n%s\\n%s' \"$(</run/stderr)\" $s"
        )
        out, _, rest = printed.partition(ERRORS_FOLLOW.decode())
        errors, _, status = rest.rpartition("\n")
        if status == "127":
            raise BalancerUnreachable(f"{argv[0]}: not found in the guest")
        return Result(int(status), out, errors)

    # lbengine.keepalived.Files, of the guest: its /run and /proc are its own.

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
        return self.sh(f"ls -d {pattern} 2>/dev/null")[1].split()

    def is_writable_folder(self, path: str) -> bool:
        return self.sh(f"test -d {path} -a -w {path}")[0] == 0

    def stop(self) -> None:
        """Powers it off; kills it if that takes long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        for process in (self._process, self._virtiofsd):  # The second ends when the first is gone.
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process.stdout.close()

    def _until(self, mark: bytes, within_s: float) -> bytes:
        """What the guest says on its port before `mark`."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + within_s
        while mark not in self._read:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self._failure(f"said no {mark!r} within {within_s:g} s")
            if select.select([self._process.stdout], [], [], left_s)[0]:
                chunk = os.read(self._process.stdout.fileno(), 65536)
                assert chunk, self._failure("ended")
                self._read += chunk
        before, _, after = bytes(self._read).partition(mark)
        self._read = bytearray(after)
        return before

    def _failure(self, what: str) -> str:
        """What went wrong, with the guest's last words."""
        log = qemu_guest.last_lines(self._log.read_text(errors="replace"))
        return f"the guest {what}, but {bytes(self._read[-2000:])!r}; the end of its log:\n{log}"


def _serve_files(listener: socket.socket, log: int) -> subprocess.Popen[bytes]:
    """virtiofsd for this machine's `/`. Who isn't root needs a namespace in which chroot is allowed."""
    argv = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    argv += [str(VIRTIOFSD), f"--fd={listener.fileno()}", "-f", "--rlimit-nofile=0"]
    argv += ["-o", "source=/,sandbox=chroot,cache=always,log_level=warn"]
    return qemu_guest.start(argv, stdout=log, stderr=log, pass_fds=[listener.fileno()])


@contextmanager
def booted(*, init: str = INIT, line: str = "") -> Iterator[IpvsGuest]:
    """A guest, ended and cleaned up afterwards."""
    with tempfile.TemporaryDirectory(prefix="sw-ipvs-") as name:
        guest = IpvsGuest(Path(name), init=init, line=line)
        try:
            yield guest
        finally:
            guest.stop()
