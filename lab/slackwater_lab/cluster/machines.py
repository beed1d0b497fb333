"""What a host is: a cgroup in a network namespace of this machine, or a virtual machine in that cgroup, whose kernel
is User Mode Linux.

Both see the same files at the same paths and start the same programs, so whoever uses a host need not know which it is.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from slackwater_lab.cluster import uml
from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.hosts import NETWORK_BITS, Host
from slackwater_lab.cluster.paths import LabError, system_program
from slackwater_lab.cluster.process_use import ProcessUse, parse
from slackwater_lab.cluster.spawn import Program, Running, placed, wait_until

HostKind = Literal["cgroup", "uml"]
MEMORY_MIB = 768
CLOCK_READINGS = 5
LOOK_S = 2.0
"""Seconds between two looks for programs of a guest that ended: each look takes some of its one slow CPU."""
PROGRAMS = "/run/programs"
MACHINE_ROOT = "/run/machine"
"""In a virtual machine: this machine's files, also where files of the guest lie over them."""

# Runs a program in a cgroup of its own, as systemd does with a service; leaves its process id and then its status.
SERVICE = (
    'unit=$1 log=$2; shift 2; group=/sys/fs/cgroup/system.slice/$unit.service; mkdir -p "$group"; '
    'echo $$ >"$group/cgroup.procs"; cd /; "$@" </dev/null >>"$log" 2>&1 & '
    f'echo $! >{PROGRAMS}/"$unit.pid"; wait $!; echo $? >{PROGRAMS}/"$unit.status"'
)


class Machine(Protocol):
    """A host that is up."""

    @property
    def host(self) -> Host:
        """Its name and address."""

    def start(self, name: str, argv: Sequence[str], log_name: str, env: Mapping[str, str] | None = None) -> Running:
        """Starts a program in it; its log is in the host's folder. Raises LabError."""

    def write(self, name: str, text: str) -> Path:
        """Writes a file into the host's folder, as the host sees it; gives its path. Raises LabError."""

    def set_clock(self, ahead_s: float = 0.0) -> None:
        """Sets its clock so far ahead of this machine's, where it has one of its own."""

    def stop(self) -> None:
        """Ends it, with all that runs in it."""


@dataclass(frozen=True)
class CgroupMachine:
    """A network namespace and a cgroup on this machine's kernel."""

    host: Host
    cgroups: Cgroups

    def start(self, name: str, argv: Sequence[str], log_name: str, env: Mapping[str, str] | None = None) -> Program:
        settings = [system_program("env"), *(f"{key}={value}" for key, value in env.items())] if env else []
        inside = self.host.inside([*settings, *argv], self.cgroups)
        return Program.start(f"{name} of {self.host.name}", inside, self.host.folder / log_name)

    def write(self, name: str, text: str) -> Path:
        path = self.host.folder / name
        path.write_text(text)
        return path

    def set_clock(self, ahead_s: float = 0.0) -> None:
        """The clock is this machine's."""

    def stop(self) -> None:
        """Its programs are the lab's own."""


class VirtualMachine:
    """A guest of User Mode Linux with one CPU, in the host's `web` cgroup."""

    def __init__(self, host: Host, cgroups: Cgroups) -> None:
        """Boots it; `wait_ready` must follow. Raises LabError where its kernel is missing."""
        if lacks := uml.missing():
            raise LabError(f"no virtual machines here; missing: {', '.join(lacks)}")
        folder = host.folder / "guest"
        folder.mkdir(parents=True)
        network = f"transport=tap,ifname={host.link},depth=128,gro=1,mac=02:00:00:53:57:{host.number:02x}"
        self.host = host
        self.guest = uml.UmlGuest(
            folder, host.name, network, MEMORY_MIB, placed(host.pin, cgroups.procs_files(host.web))
        )
        self._ended: dict[str, int] = {}
        self._asked_mono_s = 0.0

    def wait_ready(self) -> None:
        """Waits until the guest is up and has its address and a copy of the host's folder. Raises LabError."""
        self.guest.wait_ready()
        folder, own = shlex.quote(str(self.host.folder)), "/run/own"
        for line in (
            f"mkdir -p {PROGRAMS} {MACHINE_ROOT} /dev/shm; mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind / {MACHINE_ROOT}",
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir /sys/fs/cgroup/system.slice",
            f"ip link set eth0 up && ip addr add {self.host.address}/{NETWORK_BITS} dev eth0",
            f"mkdir {own} && cp -a {folder}/. {own}/ && mount --bind {own} {folder}",
        ):
            self.guest.ok(line)

    def set_clock(self, ahead_s: float = 0.0) -> None:
        """Shifts the clock by what it lacks, so that the time this takes does not matter."""
        difference_s = ahead_s - self.clock_offset_s()
        code = f"import time; time.clock_settime(time.CLOCK_REALTIME, time.time() + {difference_s:.6f})"
        self.guest.ok(shlex.join([sys.executable, "-I", "-S", "-c", code]))

    def clock_offset_s(self) -> float:
        """Seconds by which the guest's clock is ahead; the quickest of some readings counts."""
        readings: list[tuple[float, float]] = []
        for _ in range(CLOCK_READINGS):
            begin_s = time.time()
            guest_s = float(self.guest.ok("echo $EPOCHREALTIME"))
            end_s = time.time()
            readings.append((end_s - begin_s, guest_s - (begin_s + end_s) / 2))
        return min(readings)[1]

    def start(
        self, name: str, argv: Sequence[str], log_name: str, env: Mapping[str, str] | None = None
    ) -> GuestProgram:
        settings = ["env", *(f"{key}={value}" for key, value in env.items())] if env else []
        self._ended.pop(name, None)
        self.guest.ok(f"rm -f {PROGRAMS}/{shlex.quote(name)}.*")
        words = shlex.join([name, str(self.host.folder / log_name), *settings, *argv])
        self.guest.ok(f"setsid bash -c {shlex.quote(SERVICE)} service {words} </dev/null >/dev/null 2>&1 &")
        pid_file = f"{PROGRAMS}/{shlex.quote(name)}.pid"
        wait_until(lambda: self.guest.sh(f"test -s {pid_file}")[0] == 0, f"{name} in {self.host.name}", 30.0)
        return GuestProgram(f"{name} of {self.host.name}", self, name, int(self.guest.ok(f"cat {pid_file}")), log_name)

    def write(self, name: str, text: str) -> Path:
        path = self.host.folder / name
        self.guest.write(path, text)
        return path

    def status_of(self, unit: str, at_once: bool = False) -> int | None:
        """The status a program ended with; None while it runs. As it was at most `LOOK_S` ago, but for `at_once`."""
        if not self.guest.running:
            raise LabError(f"{self.host.name} ended with status {self.guest.process.returncode}: see {self.guest.log}")
        if at_once or time.monotonic() - self._asked_mono_s >= LOOK_S:
            lines = self.guest.ok(
                f'cd {PROGRAMS}; for f in *.status; do read -r s <"$f" && echo "${{f%.status}} $s"; done 2>/dev/null; :'
            )
            self._ended = {name: int(status) for name, status in map(str.split, lines.splitlines())}
            self._asked_mono_s = time.monotonic()
        return self._ended.get(unit)

    def stop(self) -> None:
        self.guest.stop(wait_s=2.0)


@dataclass
class GuestProgram(Running):
    """A program in a virtual machine."""

    name: str
    machine: VirtualMachine = field(repr=False)
    unit: str
    pid: int
    """Process id in the guest."""
    log_name: str

    @property
    def running(self) -> bool:
        return self.ended_with() is None

    def ended_with(self) -> int | None:
        return self.machine.status_of(self.unit)

    def use(self) -> ProcessUse | None:
        """The program's use, as the guest counts it."""
        status, text = self.machine.guest.sh(f"cat /proc/{self.pid}/stat /proc/{self.pid}/statm")
        return parse(*text.splitlines()[:2]) if status == 0 else None

    def log_end(self, lines: int = 12) -> str:
        log = shlex.quote(str(self.machine.host.folder / self.log_name))
        return "\n  ".join(self.machine.guest.sh(f"tail -n {lines} {log}")[1].splitlines())

    def signal(self, number: signal.Signals) -> None:
        self.machine.guest.sh(f"kill -{number.value} {self.pid}")

    def stop(self, wait_s: float = 5.0) -> None:
        if not self.machine.guest.running or self.machine.status_of(self.unit, at_once=True) is not None:
            return
        for number, within_s in ((signal.SIGTERM, wait_s), (signal.SIGKILL, wait_s)):
            self.signal(number)
            end_s = time.monotonic() + within_s
            while time.monotonic() < end_s:
                if self.machine.status_of(self.unit, at_once=True) is not None:
                    return
                time.sleep(0.1)
        raise LabError(f"{self.name} does not end")
