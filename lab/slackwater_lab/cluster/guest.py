"""A guest: a kernel of its own that is booted, and takes commands through a port for them alone. What it prints goes
into a log."""

from __future__ import annotations

import ctypes
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slackwater_lab.cluster.paths import LabError

INIT_SCRIPT = Path(__file__).resolve().parent.parent / "native/guest-init.sh"
READY, READY_WITHIN_S = b"READY\n", 120.0
ANSWERS_WITHIN_S = 150.0
LAST_LINES = 60
LIBC = ctypes.CDLL(None)


def quoted(text: str) -> str:
    """The text quoted as one word of one line for the guest's bash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


def start(argv: Sequence[str | Path], *, stdin: int = subprocess.DEVNULL, **how: Any) -> subprocess.Popen[bytes]:
    """Starts a program that ends with its parent, even if that is killed, and that gets no Ctrl-C."""
    parent_dies = 1  # PR_SET_PDEATHSIG
    return subprocess.Popen(
        argv, stdin=stdin, start_new_session=True, preexec_fn=lambda: LIBC.prctl(parent_dies, 9), **how
    )


def last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-LAST_LINES:])


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
        log = last_lines(self.log.read_text(errors="replace"))
        return f"the guest {event}, but {bytes(self._read[-2000:])!r}; the end of its log:\n{log}"


def end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Waits for a program that is about to end; kills it if that takes long."""
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
