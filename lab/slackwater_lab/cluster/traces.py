"""What there is of a lab on this machine: what it needs, whether one is up, what is left of it, and its removal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.hosts import TOP, network_traces, remove_network
from slackwater_lab.cluster.paths import (
    LAB_DIR,
    LOCK_FILE,
    PROGRAMS,
    SYSTEM_PROGRAMS,
    LabError,
    missing_privileges,
    program,
    system_program,
)
from slackwater_lab.cluster.spawn import call

END_WITHIN_S = 60.0
STATE_FILE = LAB_DIR / "state.json"


def missing() -> list[str]:
    """What the lab lacks on this machine, each with the way to get it; empty: it can start."""
    lacks = missing_privileges(os.geteuid(), Path("/proc/self/status").read_text())
    for check, names in ((program, PROGRAMS), (system_program, tuple(SYSTEM_PROGRAMS))):
        for name in names:
            try:
                check(name)
            except LabError as error:
                lacks.append(str(error))
    try:
        cgroups = Cgroups.of_this_machine()
        if not lacks and not cgroups.writable():
            lacks.append(f"{', '.join(map(str, cgroups.roots))}: cgroups can be seen but not made here")
    except LabError as error:
        lacks.append(str(error))
    return lacks


def traces() -> list[str]:
    """The traces of a lab on this machine, in words."""
    spaces, links = network_traces()
    leftovers = [f"namespace {name}" for name in spaces] + [f"link {name}" for name in links]
    with contextlib.suppress(LabError):
        cgroups = Cgroups.of_this_machine()
        if cgroups.exists(TOP):
            leftovers.append(f"cgroup {TOP} with {len(cgroups.pids(TOP))} processes")
    return leftovers + ([f"folder {LAB_DIR}"] if LAB_DIR.exists() else [])


def state() -> dict[str, Any] | None:
    """The state file of the lab that is up; None when there is none."""
    try:
        return dict(json.loads(STATE_FILE.read_text()))
    except (OSError, ValueError):
        return None


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rsplit(")", 1)[1].split()[19])


@contextlib.contextmanager
def locked(wait_s: float = 0.0) -> Iterator[bool]:
    """Tries to be the only lab on the machine; gives whether it is."""
    with LOCK_FILE.open("a") as file:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(0.1)
                continue
            yield True
            return


def is_up() -> bool:
    """Whether a lab runs; it needs no right to write the lock."""
    try:
        with LOCK_FILE.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def mounts_below(mounts: str) -> list[str]:
    """Mount points within the lab's folder, the innermost first; `mounts` is the text of /proc/mounts."""
    places = [line.split()[1] for line in mounts.splitlines() if line.split()[1].startswith(f"{LAB_DIR}/")]
    return sorted(places, key=len, reverse=True)


def sweep() -> None:
    """Removes every trace of a lab; the caller holds the lock."""
    with contextlib.suppress(LabError):
        Cgroups.of_this_machine().clear(TOP, END_WITHIN_S)
    remove_network()
    for place in mounts_below(Path("/proc/mounts").read_text()):
        call([system_program("umount"), "--lazy", place])
    if LAB_DIR.is_symlink():
        raise LabError(f"{LAB_DIR} is a symbolic link: not the lab's doing, please look at it")
    shutil.rmtree(LAB_DIR, ignore_errors=True)


def down(wait_s: float = 60.0) -> list[str]:
    """Ends the lab that is up, if any, and clears up after one that crashed; gives what there was.

    The owner of a running lab is asked first (SIGTERM, it then tears down in order) and killed after `wait_s`.
    """
    if os.geteuid() != 0:
        raise LabError("`lab down` needs root")
    removed = traces()
    owner = (state() or {}).get("owner", {})
    with locked() as is_ours:
        if is_ours:
            sweep()
            return removed
    pid = int(owner.get("pid", 0))
    if not pid or start_ticks(pid) != owner.get("start_ticks"):
        raise LabError(f"another process holds {LOCK_FILE} and did not write who it is; is a lab just starting?")
    os.kill(pid, signal.SIGTERM)
    with locked(wait_s) as is_ours:
        if is_ours:
            sweep()
            return removed
    if start_ticks(pid) == owner.get("start_ticks"):
        os.kill(pid, signal.SIGKILL)
    with locked(5.0) as is_ours:
        if not is_ours:
            raise LabError(f"process {pid} holds {LOCK_FILE} and does not end")
        sweep()
    return removed
