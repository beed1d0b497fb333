"""Debian and Ubuntu hosts with a systemd of their own, on this machine: systemd-nspawn over an overlay of a
system's root file system.

Each host has its own network namespace, on a bridge that leads nowhere else, and its own subtree of cgroups. They are
no security boundary. No host may set the clock: nspawn takes CAP_SYS_TIME away, and commands come over SSH.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.rollout_base import FOLDER, base
from tools.systems import DEBIAN_12, System

BRIDGE = "swtest0"
NETWORK = "10.77.0"
PREFIX = "swt-"
LOCK = Path("/run/slackwater-test-hosts.lock")
V2 = next((Path(p) for p in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(p, "cgroup.procs").exists()), None)
SYSTEMD_V1 = Path("/sys/fs/cgroup/systemd")
UP_WITHIN_S = 120.0


def why_not() -> str:
    """Why there can be no hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "needs root, for containers with a systemd of their own"
    for program in ("mmdebstrap", "systemd-nspawn", "ssh", "ssh-keygen", "ansible-playbook"):
        if shutil.which(program) is None:
            return f"needs {program}"
    return "" if V2 else "needs cgroups of version 2"


def run(*command: str | Path, check: bool = True, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if check and done.returncode:
        raise AssertionError(f"`{' '.join(map(str, command))}`: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait_until(holds: Callable[[], bool], event: str, within_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {event}"
        time.sleep(0.3)


@dataclass
class Host:
    """One machine: its name, its address, what runs on it, and the process that runs it."""

    name: str
    address: str
    folder: Path
    system: System
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """Its file system as this machine sees it."""
        return self.folder / "root"

    @property
    def init(self) -> int | None:
        """Its process 1, by its number on this machine."""
        if self.process is None:
            return None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = children.read_text().split() if children.exists() else []
        return int(pids[0]) if pids else None


@dataclass
class Hosts:
    """All of a test; made by `hosts()`."""

    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def key(self) -> Path:
        return self.folder / "id"

    def up(self, names: Sequence[str], systems: Mapping[str, System] | None = None) -> None:
        """Boots hosts side by side, and waits until their systemd is done and sshd answers. Known ones boot again; new
        ones are of `systems`, or of Debian 12."""
        for name in names:
            if name not in self.hosts:
                system = (systems or {}).get(name, DEBIAN_12)
                self.hosts[name] = Host(name, f"{NETWORK}.{10 + len(self.hosts)}", self.folder / name, system)
        for name in names:
            self._start(self.hosts[name])
        for name in names:
            self._wait(self.hosts[name])

    def ssh(
        self, name: str, command: str, *, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command as root over SSH."""
        options = [word for option in self.ssh_options() for word in ("-o", option)]
        address = f"root@{self.hosts[name].address}"
        return run("ssh", "-i", self.key, *options, address, command, check=check, timeout_s=timeout_s)

    def ssh_options(self) -> list[str]:
        persist = f"ControlPath={self.folder}/%C"
        known = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=10"]
        return [*known, "ControlMaster=auto", "ControlPersist=60", persist]

    def power_off(self, name: str) -> None:
        """Pulls the plug: the host's processes are killed, and nothing of them runs on."""
        host = self.hosts[name]
        if (init := host.init) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        self._end(host)

    def down(self) -> None:
        for host in self.hosts.values():
            with contextlib.suppress(Exception):
                self.power_off(host.name)

    def _start(self, host: Host) -> None:
        host.folder.mkdir(exist_ok=True)
        for inside in ("upper", "work", "root"):
            (host.folder / inside).mkdir(exist_ok=True)
        layers = f"lowerdir={base(host.system)},upperdir={host.folder}/upper,workdir={host.folder}/work"
        run("mount", "-t", "overlay", PREFIX + host.name, "-o", layers, host.root)
        (host.root / "etc/hostname").write_text(host.name + "\n")
        (host.root / "etc/hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{other.address} {other.name}\n" for other in self.hosts.values())
        )
        (host.root / "etc/resolv.conf").write_text("")
        (host.root / "root/.ssh/authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        net = PREFIX + host.name
        run("ip", "netns", "add", net)
        run("ip", "link", "add", net, "type", "veth", "peer", "name", "eth0", "netns", net)
        run("ip", "link", "set", net, "master", BRIDGE, "up")
        run("ip", "-n", net, "link", "set", "lo", "up")
        run("ip", "-n", net, "link", "set", "eth0", "up")
        run("ip", "-n", net, "addr", "add", f"{host.address}/24", "dev", "eth0")
        cgroups = [folder / net for folder in (V2, SYSTEMD_V1) if folder and folder.exists()]
        for cgroup in cgroups:
            cgroup.mkdir(exist_ok=True)
        # `--keep-unit` puts the host below the cgroup that nspawn is started in: each needs one of its own.
        enter = " ".join(f"echo $$ > {cgroup}/cgroup.procs;" for cgroup in cgroups) + ' exec "$@"'
        command = ["systemd-nspawn", "--quiet", "--settings=no", "--boot", "--register=no", "--keep-unit"]
        command += ["--link-journal=no", f"--machine={net}", f"--hostname={host.name}", f"--directory={host.root}"]
        command += ["--resolv-conf=off", "--timezone=off", f"--network-namespace-path=/run/netns/{net}"]
        command += ["--capability=CAP_NET_ADMIN,CAP_PERFMON,CAP_SYS_NICE", "--console=read-only"]
        with (host.folder / "console.log").open("ab") as console:
            host.process = subprocess.Popen(
                ["bash", "-c", enter, "-", *command],
                env={
                    **os.environ,
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
                },
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def _wait(self, host: Host) -> None:
        deadline_s = time.monotonic() + UP_WITHIN_S
        state = ""
        while time.monotonic() < deadline_s:
            done = self.ssh(host.name, "systemctl is-system-running --wait", check=False)
            state = done.stdout.strip() or done.stderr.strip()
            if state in ("running", "degraded"):
                return
            time.sleep(0.2)
        log = (host.folder / "console.log").read_text(errors="replace")[-1500:]
        raise AssertionError(f"{host.name} is not up ({state}):\n{log}")

    def _end(self, host: Host) -> None:
        if host.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(15)
            if host.process.poll() is None:
                host.process.kill()
                host.process.wait(15)
            host.process = None
        net = PREFIX + host.name
        run("umount", host.root, check=False).returncode and run("umount", "-l", host.root, check=False)
        run("ip", "link", "del", net, check=False)
        run("ip", "netns", "del", net, check=False)
        for folder in (V2, SYSTEMD_V1):
            if folder and (folder / net).exists():
                run("find", folder / net, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";", check=False)


@contextlib.contextmanager
def hosts() -> Iterator[Hosts]:
    """A network for hosts, one at a time on this machine; everything is taken down at the end, also after a failure."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        FOLDER.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=FOLDER, prefix="run."))
        run("ip", "link", "del", BRIDGE, check=False)  # of a run that was killed
        ours = Hosts(folder)
        try:
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", ours.key)
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            yield ours
        finally:
            ours.down()
            run("ip", "link", "del", BRIDGE, check=False)
            shutil.rmtree(folder, ignore_errors=True)
