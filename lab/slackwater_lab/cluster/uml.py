"""A guest of User Mode Linux: a kernel of its own that runs as processes of this machine, and so at nearly its speed.

Its root is this machine's `/`, read-only, by the kernel's own hostfs. /run, /var/tmp, /proc, /sys, /dev and the network
are its own. It has one CPU: of its processes, one runs at a time. A neighbour on this machine takes time from them as
a hypervisor's other guests would, and the guest's kernel does not know of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from slackwater_lab.cluster.guest import INIT_SCRIPT, RunningGuest, start
from slackwater_lab.cluster.paths import BUILD, DEBIAN

KERNEL = BUILD / "uml/linux"
UML_INIT = INIT_SCRIPT.with_name("uml-init.sh")
PORT = "/dev/ttyS0"


def missing() -> list[str]:
    """What is missing for such a guest, with the way to get it."""
    return [] if KERNEL.exists() else ["the kernel of User Mode Linux (run `make setup-guests`)"]


class UmlGuest(RunningGuest):
    """A guest of User Mode Linux."""

    def __init__(self, folder: Path, name: str, network: str, memory_mib: int, wrap: Sequence[str] = ()) -> None:
        """Boots it; `wait_ready` must follow. `folder`: for its log and its kernel's own files.

        `network`: the options of its network card. `wrap`: the words before its programs' own that place them in a
        cgroup.
        """
        commands, guest_end = socket.socketpair()
        super().__init__(folder / "log", commands)
        argv = [
            *(str(KERNEL), f"umid={name}", f"uml_dir={folder}/", f"mem={memory_mib}M", "seccomp=on"),
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={UML_INIT}", f"vec0:{network}"),
            *("con=null", "con0=null,fd:1", f"ssl0=fd:{guest_end.fileno()}", f"PORT={PORT}"),
            f"D={DEBIAN.resolve()}",
        ]
        # Without a home, its kernel ends at once. What is its memory is a file in TMPDIR.
        environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "TMPDIR": "/dev/shm"}
        with self.log.open("ab") as log, guest_end:
            argv = [*wrap, *argv]
            self.process = start(argv, stdout=log, stderr=log, pass_fds=[guest_end.fileno()], env=environment)

    def stop(self, wait_s: float = 15.0) -> None:
        super().stop(wait_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the processes that its programs ran in
