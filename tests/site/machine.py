"""Machines of the test site: namespaces of their own, and Debian's packages where Debian puts them.

What `make setup` unpacked below .build/debian lies over the machine's own /usr, /etc and /var (overlayfs), so that each
program reads its packages' files at their usual places, unchanged. All of a machine's processes end with the process
that made it, however that ends: they are in a PID namespace whose first process is bound to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import DEBIAN, LabError, system_program
from slackwater_lab.cluster.process_use import ProcessUse, process_use
from slackwater_lab.cluster.spawn import Program, Running, call, placed, wait_until
from slackwater_lab.cluster.traces import start_ticks

READY_S = 30.0
END_WITHIN_S = 20.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HERE = Path(__file__).resolve().parent
FIRST_PROCESS = HERE / "machine.sh"
RUNS = "runs"
"""What the first process writes, in its machine's /run, when all is in place."""
Answer = TypeVar("Answer")
_setns = ctypes.CDLL(None, use_errno=True).setns


@dataclass
class Service(Running):
    """A program in a machine: a child of the nsenter that brought it there."""

    name: str
    outer: Program

    @property
    def pid(self) -> int | None:
        """The process id as this process sees it; None when it is gone."""
        number = self.outer.process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    @property
    def running(self) -> bool:
        return self.outer.running

    def log_end(self, lines: int = 12) -> str:
        return self.outer.log_end(lines)

    def ended_with(self) -> int | None:
        return self.outer.ended_with()

    def signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, wait_s: float = 15.0) -> None:
        self.signal(signal.SIGTERM)
        try:
            self.outer.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as the kernel does where memory is short."""
        self.signal(signal.SIGKILL)
        self.outer.process.wait()

    def use(self) -> ProcessUse | None:
        pid = self.pid
        return None if pid is None else process_use(pid)


class Machine:
    """One machine. `layer` holds its files above Debian's; `cgroup` is where its programs run."""

    def __init__(self, name: str, cgroups: Cgroups, cgroup: str, layer: Path, folder: Path) -> None:
        self.name = name
        self.cgroup = cgroup
        self.services: list[Service] = []
        self._cgroups = cgroups
        self._folder = folder
        mount = folder / name
        mount.mkdir()
        argv = [
            *(system_program("setpriv"), "--pdeathsig", "KILL"),
            *(system_program("unshare"), "--kill-child=KILL", "--fork", "--pid", "--mount", "--net"),
            *("/bin/sh", str(FIRST_PROCESS), str(mount), str(DEBIAN), str(layer)),
        ]
        argv = placed(argv, cgroups.procs_files(cgroup))
        self._first = Service(f"machine {name}", Program.start(f"machine {name}", argv, folder / f"{name}.log"))
        try:
            wait_until(self._runs, f"machine {name}", READY_S, watch=[self._first])
        except LabError:
            self.end()
            raise

    def _runs(self) -> bool:
        return self._first.pid is not None and self.place(f"/run/{RUNS}").exists()

    @property
    def pid(self) -> int:
        """The id of its first process. Raises LabError when it has ended."""
        pid = self._first.pid
        if pid is None:
            raise LabError(f"machine {self.name} has ended:\n  {self._first.log_end()}")
        return pid

    def place(self, path: str) -> Path:
        """Where a file of the machine is for this process."""
        return Path(f"/proc/{self.pid}/root{path}")

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the machine."""
        enter = [system_program("nsenter"), f"--target={self.pid}", "--mount", "--net", "--pid"]
        clean = ["/usr/bin/env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8"]
        return placed([*enter, *clean, *argv], self._cgroups.procs_files(self.cgroup))

    def beside(self, argv: Sequence[str], cgroup: str) -> list[str]:
        """The command that runs `argv` with this process's files in the machine's network, in another cgroup."""
        enter = [system_program("nsenter"), f"--net=/proc/{self.pid}/ns/net"]
        return placed([*enter, *argv], self._cgroups.procs_files(cgroup))

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Service:
        """Starts a service; what it prints is in the site's folder."""
        words = [f"{key}={value}" for key, value in (env or {}).items()]
        log = self._folder / f"{self.name}-{name}.log"
        program = Program.start(name, self.inside([*(["/usr/bin/env", *words] if words else []), *argv]), log)
        self.services.append(Service(name, program))
        return self.services[-1]

    def run(self, *argv: str, given: str = "", within_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, as root, with `given` to read. Whether it failed is for the caller to look at."""
        return subprocess.run(self.inside(argv), capture_output=True, text=True, input=given, timeout=within_s)

    def call(self, *argv: str) -> str:
        """Its output; raises LabError when it fails."""
        return call(self.inside(argv))

    def connect(self, host: str, port: int, within_s: float = 10.0) -> socket.socket:
        """A connection that was made in the machine's network."""
        return self.in_network(lambda: socket.create_connection((host, port), within_s))

    def in_network(self, made: Callable[[], Answer]) -> Answer:
        """What `made` gives in a thread in the machine's network."""
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def enter() -> None:
            try:
                with Path(f"/proc/{self.pid}/ns/net").open("rb") as space:
                    if _setns(space.fileno(), 0) != 0:
                        raise OSError(ctypes.get_errno(), f"machine {self.name}: its network cannot be entered")
                answers.append(made())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def end(self) -> None:
        """Ends it with all that runs in it."""
        for service in reversed(self.services):
            service.outer.process.poll()
        with contextlib.suppress(ProcessLookupError):
            self._first.outer.process.kill()
        self._first.outer.process.wait()
        for service in self.services:
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.outer.process.wait(5.0)


def owner_name() -> str:
    """What all that this process makes is named by: its id and its start, so that who comes later knows if it runs."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}"


def owner_runs(name: str) -> bool:
    """Whether the process of a name that begins as `owner_name` gave it still runs."""
    pid, ticks, *_ = [*name.split("-"), ""]
    return pid.isdigit() and str(start_ticks(int(pid))) == ticks


def remove_leftovers(cgroups: Cgroups, top: str, folder: Path) -> None:
    """Removes what processes that are gone have left: their cgroups in `top`, and their folders."""
    for root in cgroups.roots:
        for left in (root / top).glob("*-*"):
            if left.is_dir() and not owner_runs(left.name):
                cgroups.clear(f"{top}/{left.name}", END_WITHIN_S)
    for left in folder.glob("*-*"):
        if not owner_runs(left.name):
            shutil.rmtree(left, ignore_errors=True)
