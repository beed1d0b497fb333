"""Starts programs in a cgroup and, if asked, in a network namespace; waits for what they should bring about."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.paths import LabError, system_program
from slackwater_lab.cluster.process_use import ProcessUse, process_use

NATIVE = Path(__file__).resolve().parent.parent / "native"

# The shell joins the cgroups and then becomes the program, so that no moment is spent outside them. nsenter and
# not `ip netns exec`: the latter mounts a new /sys, in which there are no cgroups.
JOIN = 'until [ "$1" = -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'


def placed(argv: Sequence[str], procs_files: Sequence[str], netns: str | None = None) -> list[str]:
    """The command that joins the cgroups and the namespace and then is `argv`."""
    enter = [system_program("nsenter"), f"--net=/run/netns/{netns}"] if netns else []
    return ["/bin/sh", "-c", JOIN, "lab", *procs_files, "--", *enter, *argv]


def call(argv: Sequence[str]) -> str:
    """Runs a short command and gives its output; raises LabError with its message."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip()
        raise LabError(f"`{' '.join(argv)}` failed with status {done.returncode}: {message}")
    return done.stdout


def compiled(name: str, folder: Path) -> str:
    """Compiles a program of `lab/slackwater_lab/native` into a folder; gives its path."""
    target = folder / name
    call([system_program("cc"), "-O2", "-pthread", "-o", str(target), str(NATIVE / f"{name}.c")])
    return str(target)


class Running(ABC):
    """A program of the lab, wherever it runs."""

    name: str

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it has not ended."""

    @abstractmethod
    def log_end(self, lines: int = 12) -> str:
        """The end of its log."""

    @abstractmethod
    def ended_with(self) -> int | None:
        """Its status; None: it runs, or nobody knows."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal; nothing happens when it has ended."""

    @abstractmethod
    def stop(self, wait_s: float = 5.0) -> None:
        """Ends it by SIGTERM, by SIGKILL when it has not gone after `wait_s`."""

    @abstractmethod
    def use(self) -> ProcessUse | None:
        """The CPU time and memory used so far; None when the program is gone."""

    def check(self) -> None:
        """Raises LabError when it has ended."""
        if not self.running:
            raise LabError(f"{self.name} ended with status {self.ended_with()}:\n  {self.log_end()}")


@dataclass
class Program(Running):
    """A program on this machine; what it writes is in `log`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Program:
        """Starts it in a session of its own: Ctrl-C reaches the lab alone, which then ends it in order."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, cwd="/", env=env
            )
        return cls(name, process, log)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ended_with(self) -> int | None:
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def use(self) -> ProcessUse | None:
        return process_use(self.process.pid)

    def log_end(self, lines: int = 12) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n  ".join(text.splitlines()[-lines:])

    def stop(self, wait_s: float = 5.0) -> None:
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def wait_until(
    happened: Callable[[], bool], awaited: str, wait_s: float, *, watch: Sequence[Running] = (), poll_s: float = 0.05
) -> float:
    """Waits for an event and gives the seconds it took; raises LabError after `wait_s` or when a program ended."""
    begin = time.monotonic()
    while not happened():
        for watched in watch:
            watched.check()
        if time.monotonic() - begin > wait_s:
            logs = "".join(f"\n{watched.name} logged:\n  {watched.log_end()}" for watched in watch)
            raise LabError(f"waited {wait_s:g} s in vain for: {awaited}{logs}")
        time.sleep(poll_s)
    return time.monotonic() - begin
