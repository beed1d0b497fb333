"""A guest of QEMU whose root is this machine's `/`, read-only, through virtiofs: every program here runs in it.

/run, /var/tmp, /proc, /sys, /dev and the network are its own. It is for what needs a whole machine: IP_VS, systemd,
cgroups of version 2.
"""

from __future__ import annotations

import resource
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.guest import INIT_SCRIPT, RunningGuest, end, start
from slackwater_lab.cluster.paths import DEBIAN
from tests.support import qemu

VIRTIOFSD = shutil.which("virtiofsd")
DRIVERS = ("virtio_pci", "virtio_console", "virtiofs")
CPU = "max,la57=off"
"""Without five-level page tables, which make software emulation slower."""
# Process 1 until this machine's `/` is the guest's.
INIT = f"""\
#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev &&
while read -r name; do $b insmod /modules/$name.ko; done </modules/order &&
$b mkdir /host && $b mount -t virtiofs -o ro,nosuid host /host &&
for folder in proc sys dev; do $b mount --move /$folder /host/$folder; done &&
D={shlex.quote(str(DEBIAN.resolve()))} exec $b switch_root /host {shlex.quote(str(INIT_SCRIPT))}
$b poweroff -f
"""


@dataclass(frozen=True)
class GuestSettings:
    """The settings of a guest."""

    drivers: Sequence[str] = ()
    """Modules of the kernel that are loaded besides those for files and commands."""
    cpus: int = 1
    memory_mib: int = 512
    line: str = ""
    """Comes behind the kernel's command line."""
    init: str = INIT
    devices: Sequence[str] = ()
    """Further options of QEMU."""


def missing() -> list[str]:
    """Names of the programs and files that are missing for such a guest."""
    return [*qemu.missing(), *([] if VIRTIOFSD else ["virtiofsd"])]


class Guest(RunningGuest):
    """A guest of QEMU."""

    def __init__(self, folder: Path, settings: GuestSettings, wrap: Sequence[str] = ()) -> None:
        """Boots it; `wait_ready` must follow. `folder`: for its log and what it boots from.

        `wrap`: the words before its programs' own that place them in a cgroup.
        """
        commands, guest_end = socket.socketpair()
        super().__init__(folder / "log", commands)
        initrd, listens_at = folder / "initrd", folder / "virtiofs"
        drivers = qemu.modules(*DRIVERS, *settings.drivers)
        initrd.write_bytes(qemu.archive(qemu.root_files(settings.init, drivers)))
        memory = f"memory-backend-memfd,id=memory,size={settings.memory_mib}M,share=on"
        more = [
            *("-object", memory, "-numa", "node,memdev=memory"),
            *("-chardev", f"file,id=log,path={self.log},append=on", "-serial", "chardev:log"),
            *("-chardev", f"socket,id=files,path={listens_at}"),
            *("-device", "vhost-user-fs-pci,chardev=files,tag=host,queue-size=1024"),
            *("-chardev", f"socket,id=commands,fd={guest_end.fileno()}", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=commands", *settings.devices),
        ]
        argv = qemu.command(
            initrd,
            more,
            line=f"loglevel=7 {settings.line}",
            cpu=CPU,
            cpus=settings.cpus,
            memory_mib=settings.memory_mib,
        )
        with self.log.open("ab") as log, socket.socket(socket.AF_UNIX) as listener, guest_end:
            listener.bind(str(listens_at))
            listener.listen(1)
            self._virtiofsd = _serve_files(listener, log.fileno(), wrap)
            self.process = start([*wrap, *argv], stdout=log, stderr=log, pass_fds=[guest_end.fileno()])

    def stop(self, wait_s: float = 15.0) -> None:
        super().stop(wait_s)
        end(self._virtiofsd, wait_s)  # By itself, since the guest is gone.


def _serve_files(listener: socket.socket, log: int, wrap: Sequence[str]) -> subprocess.Popen[bytes]:
    """virtiofsd for this machine's `/`, of which the guest keeps what it read, as it would of a disk of its own.

    The guest reads what this user may read. There is no sandbox: a normal user cannot make one.
    It holds a file for each that the guest knows: a user's usual limit (the soft one) is too low.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    argv = [*wrap, str(VIRTIOFSD), f"--fd={listener.fileno()}", "--shared-dir=/", "--readonly", "--cache=always"]
    argv += ["--sandbox=none", f"--rlimit-nofile={most_files}", "--log-level=warn"]
    return start(argv, stdout=log, stderr=log, pass_fds=[listener.fileno()])
