"""A guest of QEMU whose root is this machine's `/`, read-only, through virtiofs: every program here runs in it.

/run, /var/tmp, /proc, /sys, /dev and the network are its own. Commands go through a port for them alone; what its
kernel says goes into a log.
"""

from __future__ import annotations

import resource
import select
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster import qemu
from slackwater_lab.cluster.paths import DEBIAN, LabError

INIT_SCRIPT = Path(__file__).resolve().parent.parent / "native/guest-init.sh"
VIRTIOFSD = shutil.which("virtiofsd")
DRIVERS = ("virtio_pci", "virtio_console", "virtiofs")
READY, READY_WITHIN_S = b"READY\n", 120.0
ANSWERS_WITHIN_S = 150.0
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
    accelerators: Sequence[str] = ("tcg",)
    """QEMU takes the first that works here."""
    # Without five-level page tables, which make software emulation slower.
    cpu: str = "max,la57=off"
    line: str = ""
    """Comes behind the kernel's command line."""
    init: str = INIT
    devices: Sequence[str] = ()
    """Further options of QEMU."""


def missing() -> list[str]:
    """Names of the programs and files that are missing for such a guest."""
    return [*qemu.missing(), *([] if VIRTIOFSD else ["virtiofsd"])]


def quoted(text: str) -> str:
    """The text quoted as one word of one line for the guest's bash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


class GuestSilent(LabError):
    """A guest runs but did not print the expected text in time."""


class RunningGuest:
    """A guest of any kind. Its commands run in turn, whichever thread sends them."""

    log: Path
    """What its kernel printed."""
    process: subprocess.Popen[bytes]
    """The guest's own, whose end is the guest's."""

    def __init__(self, log: Path, commands: socket.socket) -> None:
        """`commands`: this end of its port for commands."""
        self.log = log
        self._commands = commands
        self._read = bytearray()
        self._one_at_a_time = threading.Lock()

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> None:
        """Until it takes commands. Raises LabError, with its last words, where it ends, GuestSilent where it takes too
        long; it is ended then."""
        try:
            self._until(READY, within_s)
        except BaseException:
            self.stop()
            raise

    def sh(self, command: str) -> tuple[int, str]:
        """Runs one shell line; its exit status, and what it printed on both outputs. Raises LabError."""
        if "\n" in command:
            raise LabError(f"a command for a guest is one line, this has more: {command!r}")
        with self._one_at_a_time:
            try:
                self._commands.sendall(command.encode() + b"\n")
            except OSError as error:
                raise LabError(self._failure(f"takes no commands: {error}")) from None
            printed = self._until(b"--- RC=", ANSWERS_WITHIN_S)
            status = int(self._until(b"\n", ANSWERS_WITHIN_S))
        return status, printed.decode(errors="replace")

    def ok(self, command: str) -> str:
        """Runs a shell line that must succeed; gives its output. Raises LabError."""
        status, printed = self.sh(command)
        if status != 0:
            raise LabError(f"`{command}` in the guest: status {status}: {printed}")
        return printed

    def write(self, path: str | Path, text: str) -> None:
        """Writes a file of the guest's own. Raises LabError."""
        self.ok(f"printf %s {quoted(text)} >{shlex.quote(str(path))}")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, wait_s: float = 15.0) -> None:
        """Powers it off; kills it if that takes long."""
        self._commands.close()
        end(self.process, wait_s)

    def _until(self, mark: bytes, within_s: float) -> bytes:
        """The guest's output on its port before `mark`. Raises LabError."""
        deadline_s = time.monotonic() + within_s
        while mark not in self._read:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise GuestSilent(self._failure(f"said no {mark!r} within {within_s:g} s"))
            if select.select([self._commands], [], [], left_s)[0]:
                chunk = self._commands.recv(65536)
                if not chunk:
                    raise LabError(self._failure("ended"))
                self._read += chunk
        before, _, after = bytes(self._read).partition(mark)
        self._read = bytearray(after)
        return before

    def _failure(self, event: str) -> str:
        """An error text with the end of the guest's output and log."""
        log = qemu.last_lines(self.log.read_text(errors="replace"))
        return f"the guest {event}, but {bytes(self._read[-2000:])!r}; the end of its log:\n{log}"


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
            cpu=settings.cpu,
            cpus=settings.cpus,
            memory_mib=settings.memory_mib,
            accelerators=settings.accelerators,
        )
        with self.log.open("ab") as log, socket.socket(socket.AF_UNIX) as listener, guest_end:
            listener.bind(str(listens_at))
            listener.listen(1)
            self._virtiofsd = _serve_files(listener, log.fileno(), wrap)
            self.process = qemu.start([*wrap, *argv], stdout=log, stderr=log, pass_fds=[guest_end.fileno()])

    def stop(self, wait_s: float = 15.0) -> None:
        super().stop(wait_s)
        end(self._virtiofsd, wait_s)  # By itself, since the guest is gone.


def end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Waits for a program that is about to end; kills it if that takes long."""
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _serve_files(listener: socket.socket, log: int, wrap: Sequence[str]) -> subprocess.Popen[bytes]:
    """virtiofsd for this machine's `/`, of which the guest keeps what it read, as it would of a disk of its own.

    The guest reads what this user may read. There is no sandbox: a normal user cannot make one.
    It holds a file for each that the guest knows: a user's usual limit (the soft one) is too low.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    argv = [*wrap, str(VIRTIOFSD), f"--fd={listener.fileno()}", "--shared-dir=/", "--readonly", "--cache=always"]
    argv += ["--sandbox=none", f"--rlimit-nofile={most_files}", "--log-level=warn"]
    return qemu.start(argv, stdout=log, stderr=log, pass_fds=[listener.fileno()])
