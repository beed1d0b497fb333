"""Noise makers: one table, one small C program (`native/noise.c`), run in the `neighbour` cgroup of a host.

When the noise began and ended is known on both clocks: monotonic for durations, wall time for labels.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slackwater_lab.cluster.paths import LabError, system_program

READY_S = 30.0
LEFT_WITHIN_S = 2.0
"""A zombie that nobody fetches never leaves."""

NOISES: dict[str, str] = {
    "llcprobe": "random walk over twice the last-level cache",
    "dcopy": "copies between two buffers of together twice the last-level cache",
    "cpu": "arithmetic in registers",
    "disk": "writes, flushed to the disk after each 16 MiB",
    "pagecache": "drops its files from the page cache and reads them back",
    "flood": "datagrams to the host, as many as it can send",
    "forks": "many short-lived processes that write to memory they share",
}


def cache_mib(text: str) -> int:
    """MiB from a sysfs cache size such as `32768K` or `32M`."""
    number = int(text.strip().rstrip("KMG"))
    return max(1, number // 1024 if text.strip().endswith("K") else number)


def last_level_cache_mib(cpu0: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache that the kernel knows; 32 where it knows none."""
    sizes = [cache_mib(file.read_text()) for file in cpu0.glob("index*/size")]
    return max(sizes, default=32)


class Removable(Protocol):
    """Files that go with a noise, as a `tempfile.TemporaryDirectory`."""

    def cleanup(self) -> None: ...


@dataclass
class Noise:
    """A noise that is on until `stop`, or until its time is over."""

    host: str
    kind: str
    intensity: float
    process: subprocess.Popen[str]
    on_mono_s: float
    on_unix_s: float
    off_mono_s: float | None = field(default=None)
    off_unix_s: float | None = field(default=None)
    files: Removable | None = None
    """What the noise keeps on disk, removed with it."""

    def stop(self) -> None:
        """Ends the noise at once; the instants of its end are known afterwards. Harmless when it has ended."""
        if self.off_mono_s is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its children too
            self.process.wait()
            self.off_mono_s, self.off_unix_s = time.monotonic(), time.time()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self.files is not None:
                _wait_for_end(self.process.pid)
                self.files.cleanup()

    def check(self) -> None:
        """Raises LabError when it ended although nobody stopped it."""
        if self.off_mono_s is None and self.process.poll() is not None:
            raise LabError(f"the noise {self.kind} in {self.host} ended with status {self.process.returncode}")


def sleeper(seconds: float) -> subprocess.Popen[str]:
    """A process that does nothing, for what a noise does otherwise."""
    argv = [system_program("setpriv"), "--pdeathsig", "KILL", "sleep", f"{seconds:g}"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _wait_for_end(group: int) -> None:
    """Waits until all processes of a killed group are gone: they may still be writing files."""
    end_s = time.monotonic() + LEFT_WITHIN_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end_s:
            os.killpg(group, 0)
            time.sleep(0.005)


@dataclass
class Prepared:
    """A noise maker that fills its buffers and then waits for its word."""

    host: str
    kind: str
    intensity: float
    process: subprocess.Popen[str]
    is_filled: bool = False

    def give_up(self) -> None:
        """Ends it before it began."""
        self.process.kill()
        self.process.wait()

    def fill(self) -> None:
        """Waits until the buffers are filled. Raises LabError."""
        if not self.is_filled:
            self.hear("filled")
            self.is_filled = True

    def hear(self, expected: str) -> None:
        """Raises LabError, and ends it, when it says something else or nothing."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            answer = self.process.stdout.readline().strip() if ready.select(READY_S) else ""
        if answer != expected:
            self.give_up()
            problem = answer or f"it was not ready after {READY_S:g} s"
            raise LabError(f"the noise {self.kind} did not begin in {self.host}: {problem}")


def prepare(
    maker: str,
    host: str,
    kind: str,
    intensity: float,
    seconds: float,
    *,
    quota_cores: float,
    procs_files: Sequence[str],
    address: str = "127.0.0.1",
    wrap: Sequence[str] = (),
) -> Prepared:
    """A noise that waits for `begin`; from then on it lasts `seconds`, and no longer than the lab.

    `intensity` is the share of time in which each of its threads works: one thread for each core of the host's quota,
    begun ones included. It fills its buffers in the cgroup that `wrap` puts it in, which may take seconds on a busy
    machine, and then joins the neighbour's.
    """
    if kind not in NOISES:
        raise LabError(f"no noise `{kind}`; there are: {', '.join(NOISES)}")
    if not 0 < intensity <= 1:
        raise LabError(f"intensity {intensity:g}: expected more than 0 and at most 1")
    threads, mib = 2 * math.ceil(quota_cores), 2 * last_level_cache_mib()
    argv = [*wrap, maker, kind, f"{intensity:g}", f"{seconds:g}", str(threads), str(mib), address, *procs_files]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    return Prepared(host, kind, intensity, process)


def begin(waiting: Sequence[Prepared]) -> list[Noise]:
    """Has them all begin at the same moment, when the last has filled its buffers; they are on when this returns."""
    begun: list[Noise] = []
    try:
        for prepared in waiting:
            prepared.fill()
        for prepared in waiting:
            assert prepared.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `hear` gives the reason
                prepared.process.stdin.write("\n")
                prepared.process.stdin.close()
        for prepared in waiting:
            prepared.hear("on")
            on_mono_s, on_unix_s = time.monotonic(), time.time()
            begun.append(
                Noise(prepared.host, prepared.kind, prepared.intensity, prepared.process, on_mono_s, on_unix_s)
            )
    except LabError:
        for prepared in waiting:
            prepared.give_up()
        raise
    return begun
