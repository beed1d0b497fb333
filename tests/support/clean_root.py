"""Root file systems of a plain Debian or Ubuntu, without a network and without a running systemd: what is installed in
them is what apt finds in a folder of packages and in its archive.

Made once for each system and architecture by mmdebstrap (a minute; emulated, many), and kept below .build/clean-roots
until what it is made of changes. Another architecture than this machine's is emulated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import emulated
from tests.support.paths import ROOT
from tests.support.rollout_base import APT, DPKG
from tools.systems import System, own_architecture

FOLDER = ROOT / ".build/clean-roots"
ARCHIVE = ("haproxy", "nats-server", "systemd", "libstdc++6", "libpcap0.8", "libpfm4", "iproute2")
"""What our packages need, and the balancer."""
# Nothing is started by what is installed: there is no systemd.
NO_SERVICES = "#!/bin/sh\nexit 101\n"
# The mounts are gone with the command, however it ends.
FILL = 'for name in proc dev sys; do mount --rbind /$name "$0/$name"; done; exec chroot "$0" "$@"'
OWN = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Before a command: it sees a network of its own with nothing but loopback, and ends with all that it started."""


def why_not(architecture: str = "") -> str:
    """Why there can be no roots of an architecture (by default this machine's) here; empty when there can."""
    if os.geteuid() != 0:
        return "needs root, for a root file system of its own"
    if shutil.which("mmdebstrap") is None:
        return "needs mmdebstrap"
    if architecture in ("", own_architecture()):
        return ""
    return emulated.why_not() if architecture == "arm64" else f"{architecture} is not emulated here"


def own(architecture: str) -> tuple[str, ...]:
    """OWN, where programs of an architecture run."""
    return OWN if architecture == own_architecture() else (*emulated.PREFIX, *OWN)


def environment() -> dict[str, str]:
    """The environment of commands in a root: nothing of this machine but the path."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "COLUMNS": "120"}


def base(system: System, architecture: str) -> Path:
    """The unpacked root of a system, with packages in apt's archive; makes it when it is not there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kind = f"{system.release}-{architecture}"
    made_of = Path(__file__).read_bytes() + repr((system, system.sources(architecture))).encode()
    place = FOLDER / f"{kind}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    with (FOLDER / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            for old in FOLDER.glob(f"{kind}-*"):
                shutil.rmtree(old)
            fresh = Path(tempfile.mkdtemp(dir=FOLDER, prefix="new."))
            try:
                _bootstrap(system, architecture, fresh / "root")
                (fresh / "root").rename(place)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return place


def _bootstrap(system: System, architecture: str, root: Path) -> None:
    options = [f"--aptopt={option}" for option in (*APT, 'APT::Install-Recommends "false"')]
    options += [f"--dpkgopt={option}" for option in DPKG]
    options += ["--include=apt", "--skip=cleanup/apt/lists"]  # in Debian's smallest system, not in Ubuntu's
    prefix: tuple[str, ...] = ()
    if architecture != own_architecture():
        prefix = emulated.PREFIX
        options += [f"--architectures={architecture}", "--skip=check/qemu"]  # which looks for an installed emulator
    command = [*prefix, "mmdebstrap", "--variant=minbase", "--mode=root", *options]
    _run([*command, system.release, str(root), *system.sources(architecture)])
    (root / "usr/sbin/policy-rc.d").write_text(NO_SERVICES)
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    install = ["apt-get", "-qq", "-y", "install", "--download-only", *ARCHIVE, system.interpreter.name]
    _run([*prefix, "unshare", "--mount", "bash", "-ec", FILL, str(root), *install])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise AssertionError(f"`{' '.join(command[:4])} ...` failed:\n{(done.stdout + done.stderr)[-1500:]}")


class CleanRoot:
    """A copy of a system's root that may be changed; made by `clean_root`."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def popen(self, *words: str, user: str = "root", log: Path) -> subprocess.Popen[bytes]:
        """Starts a command in it, as one of its users."""
        with log.open("ab") as sink:
            return subprocess.Popen(
                ["chroot", f"--userspec={user}:{user}", str(self.place), *words],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment(),
            )

    def run(self, *words: str, check: bool = True, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Runs a command as root in it. Raises AssertionError when it fails and `check` is set."""
        done = subprocess.run(
            ["chroot", str(self.place), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise AssertionError(f"`{' '.join(words)}`: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def size_bytes(self) -> int:
        """What its files take, without apt's archive and lists."""
        skip = [f"--exclude={self.place}/{name}" for name in ("var/cache/apt", "var/lib/apt/lists", "srv", "tmp")]
        done = subprocess.run(["du", "-sx", "-B1", *skip, str(self.place)], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[0])


@contextmanager
def clean_root(system: System, architecture: str) -> Iterator[CleanRoot]:
    """A root of a system over the kept one, which stays as it is; it is gone with the block. For a process that was
    started with `own(architecture)`."""
    lower = base(system, architecture)
    folder = Path(tempfile.mkdtemp(dir=FOLDER, prefix="run."))
    folder.chmod(0o711)  # files of the service's user are read under that user's number, which may be one here too
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    place = folder / "root"
    layers = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work"
    if architecture != own_architecture():
        layers += ",userxattr"  # the only marks that a user namespace may set
    try:
        _run(["ip", "link", "set", "lo", "up"])
        _run(["mount", "-t", "overlay", "slackwater-test", "-o", layers, str(place)])
        for name in ("proc", "dev", "sys"):
            _run(["mount", "--rbind", f"/{name}", str(place / name)])
        yield CleanRoot(place)
    finally:
        # With all that is mounted in it, one by one not being allowed in a user namespace.
        subprocess.run(["umount", "--lazy", str(place)], check=False)
        if not place.is_mount():  # /dev is in it
            shutil.rmtree(folder, ignore_errors=True)
