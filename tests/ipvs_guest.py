"""A real IP_VS for the tests: Debian's user-mode-linux, a kernel that runs as a process of this machine.

Its root is this machine's `/`, read-only, so every program here runs in it unchanged; one folder is writable by both.
The Linux that runs the tests needs no IP_VS, and nothing of its network is touched: the guest has its own.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbengine.lvs import Result
from lbengine.snapshot import BalancerUnreachable

REPOSITORY = Path(__file__).resolve().parent.parent
GUEST = REPOSITORY / "tests/guest"
DEBIAN = (REPOSITORY / ".build/debian").resolve()
KERNEL = DEBIAN / "usr/bin/linux.uml"
MODULES = DEBIAN / "usr/lib/uml/modules"
SCHEDULERS = ("rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "mh", "dh", "fo", "ovf", "lblc", "lblcr")
WANTED_MODULES = (*(f"ip_vs_{name}" for name in SCHEDULERS), "veth")
NEEDED = (KERNEL, DEBIAN / "sbin/ipvsadm", DEBIAN / "usr/sbin/keepalived", DEBIAN / "bin/busybox")
READY_WITHIN_S = 120.0
ANSWERS_WITHIN_S = 150.0
PYTHON = os.path.realpath(sys.executable)
ERRORS_FOLLOW = b"\n--- stderr\n"


@functools.cache
def why_not() -> str:
    """Why the guest cannot be had on this machine; empty where it can. A guest that then doesn't boot is a failure."""
    if platform.machine() != "x86_64":
        return f"user-mode-linux is for x86-64, this is {platform.machine()}"
    missing = [str(path.relative_to(DEBIAN)) for path in NEEDED if not path.exists()]
    if missing:
        return f"not in .build/debian: {', '.join(missing)} (run `make setup`)"
    asked = subprocess.run(
        [PYTHON, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, None, None) != 0)"], check=False
    )
    return "" if asked.returncode == 0 else "ptrace(2) is not allowed here, and user-mode-linux lives from it"


needs_ipvs = pytest.mark.skipif(bool(why_not()), reason=f"no IP_VS guest: {why_not()}")


def module_files() -> list[str]:
    """The modules to load, each after those it depends on (modules.dep lists them the other way round)."""
    (release,) = MODULES.iterdir()
    depends = dict(line.split(":", 1) for line in (release / "modules.dep").read_text().splitlines())
    paths = {Path(path).stem: path for path in depends}
    ordered: dict[str, None] = {}
    for name in WANTED_MODULES:
        path = paths[name]
        ordered |= dict.fromkeys([*reversed(depends[path].split()), path])
    return [str(release / path) for path in ordered]


def _place_of_memory() -> str:
    """Where the file of the guest's memory fits: in this machine's memory, else on its disk."""
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 300 * 2**20
    return str(shm) if roomy else tempfile.gettempdir()


class IpvsGuest:
    """A running guest. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        """Boots it; `folder` is the one that both sides write. Fails the test if it isn't ready in time."""
        self.folder = folder
        self._files = 0
        self._read = bytearray()
        (folder / "modules").write_text("".join(f"{path}\n" for path in module_files()))
        command = [
            *(str(KERNEL), "mem=256M", f"umid=sw{os.getpid()}", f"uml_dir={folder}"),
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={GUEST / 'init.sh'}"),
            *(f"S={folder}", f"D={DEBIAN}", "quiet", "con=null", "con0=fd:0,fd:1", "console=tty0"),
        ]
        # Its memory is a file in TMPDIR; PR_SET_PDEATHSIG: it must not outlive tests that were killed.
        libc = ctypes.CDLL(None)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": _place_of_memory()},
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(1, 9),
        )
        try:
            self._until(b"READY\n", READY_WITHIN_S)
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
        self._files += 1
        given = self.folder / f"stdin-{self._files}"
        given.write_text(stdin)
        _, printed = self.sh(
            f"{shlex.join(argv)} <{given} 2>/run/stderr; s=$?; printf '\\n--- stderr\\n%s\\n%s' \"$(</run/stderr)\" $s"
        )
        given.unlink()
        out, _, rest = printed.partition(ERRORS_FOLLOW.decode())
        errors, _, status = rest.rpartition("\n")
        if status == "127":
            raise BalancerUnreachable(f"{argv[0]}: not found in the guest")
        return Result(int(status), out, errors)

    # lbengine.keepalived.Files, of the guest: its /run and /proc are its own.

    def read(self, path: str) -> str | None:
        if path.startswith(f"{self.folder}/"):
            return Path(path).read_text() if Path(path).exists() else None
        # Without a new process where that can be: they are slow here. No shell variable holds a NUL.
        how = f"cat {path}" if path.endswith("/cmdline") else f'printf %s "$(<{path})"'
        status, printed = self.sh(f"[ -r {path} ] && {how}")
        return printed if status == 0 else None

    def replace(self, path: str, text: str) -> None:
        status, _ = self.sh(f"echo {shlex.quote(text.strip())} >{path}.new && mv {path}.new {path}")
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
        try:
            self._process.wait(15.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._process.stdout.close()

    def _until(self, mark: bytes, within_s: float) -> bytes:
        """What the console says before `mark`."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + within_s
        while mark not in self._read:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {mark!r} from the guest within {within_s:g} s, but: {bytes(self._read)!r}"
            if select.select([self._process.stdout], [], [], left_s)[0]:
                chunk = os.read(self._process.stdout.fileno(), 65536)
                assert chunk, f"the guest died: {bytes(self._read)!r}"
                self._read += chunk
        before, _, after = bytes(self._read).partition(mark)
        self._read = bytearray(after)
        return before


@contextmanager
def booted() -> Iterator[IpvsGuest]:
    """A guest, ended and cleaned up afterwards."""
    with tempfile.TemporaryDirectory(prefix="sw-ipvs-") as name:
        guest = IpvsGuest(Path(name))
        try:
            yield guest
        finally:
            guest.stop()
