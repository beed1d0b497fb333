"""Noise by stress-ng, Debian's package: its stressors as neighbours, beside the lab's own
(`lab/slackwater_lab/cluster/noise.py`).

stress-ng takes a while to begin. It does so aside; when all its workers are at work they join the neighbour's cgroup
together, so that the onset is an instant here too. It knows no share of time, so it is always on in full, and its files
are in a folder of their own that goes with it.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError, program, system_program

READY_S = 30.0
JOIN_ROUNDS = 100

STRESSORS: dict[str, tuple[str, ...]] = {
    "stress-cpu": ("--cpu", "{workers}", "--cpu-method", "all"),
    "stress-cache": ("--cache", "{workers}"),
    "stress-stream": ("--stream", "{workers}"),
    "stress-vm": ("--vm", "{workers}", "--vm-bytes", "128m"),
    "stress-hdd": ("--hdd", "{workers}", "--hdd-bytes", "64m"),
}
"""Kind -> stress-ng's options (stress-ng(1)): arithmetic of all kinds; cache thrashing; memory bandwidth as STREAM
measures it; mapping, writing and checking of memory; writes to files."""


def start(
    host: str,
    kind: str,
    intensity: float,
    seconds: float,
    *,
    quota_cores: float,
    procs_files: Sequence[str],
    folder: Path,
    wrap: Sequence[str] = (),
) -> Noise:
    """Starts a stressor and waits until it is on; it ends itself after `seconds` and with the lab.

    Two workers for each begun core of quota, as many as the lab's own noises have threads. `wrap` is the cgroup in
    which it begins. Raises LabError.
    """
    if intensity != 1.0:
        raise LabError(f"intensity {intensity:g}: stress-ng's {kind} works all the time, expected 1")
    workers = 2 * math.ceil(quota_cores)
    files = tempfile.TemporaryDirectory(prefix="stress-", dir=folder)
    options = [option.format(workers=workers) for option in STRESSORS[kind]]
    argv = [
        *wrap,
        *(system_program("setpriv"), "--pdeathsig", "KILL", program("stress-ng"), "--quiet", *options),
        *("--timeout", f"{math.ceil(seconds)}s", "--temp-path", files.name),
    ]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    noise = Noise(host, kind, intensity, process, time.monotonic(), time.time(), files=files)
    try:
        _wait(noise, workers)
        join(process.pid, procs_files)
    except BaseException:
        noise.stop()
        raise
    noise.on_mono_s, noise.on_unix_s = time.monotonic(), time.time()
    return noise


def _wait(noise: Noise, workers: int) -> None:
    """Waits until all workers work."""
    end_s = time.monotonic() + READY_S
    while at_work(noise.process.pid) < workers:
        status = noise.process.poll()
        if status is not None or time.monotonic() > end_s:
            output = noise.process.stdout.read().strip() if status is not None and noise.process.stdout else ""
            raise LabError(f"stress-ng's {noise.kind} did not begin in {noise.host}: {output or f'status {status}'}")
        time.sleep(0.005)


def members(group: int) -> list[int]:
    """Processes of a process group that have not ended (proc(5), fields 5 and 3 of stat)."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            pids.append(int(stat.parent.name))
    return pids


def at_work(group: int) -> int:
    """How many workers are in their loop: stress-ng writes it into their names."""
    count = 0
    for pid in members(group):
        try:
            count += b"[run]" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return count


def join(group: int, procs_files: Sequence[str]) -> None:
    """Moves all processes of a group into cgroups, also those that are born meanwhile. Raises LabError."""
    moved: set[int] = set()
    for _ in range(JOIN_ROUNDS):
        fresh = set(members(group)) - moved
        if not fresh:
            return
        for pid in fresh:
            for file in procs_files:
                try:
                    Path(file).write_text(f"{pid}\n")
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise LabError(f"{file}: process {pid} cannot join: {error}") from None
        moved |= fresh
    raise LabError(f"process group {group} does not come to rest: it was followed {JOIN_ROUNDS} times")
