"""`python -m tests.support.emulated COMMAND ...`: a command to which arm64 programs are like any other, on a machine of
another kind. QEMU's user emulator runs them, on this machine's kernel.

Linux starts it through binfmt_misc, which the command has for itself in a user namespace with the same users (Linux 6.7
or newer): nothing is registered on this machine. As everywhere in a user namespace, devices cannot be made.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import signal
import sys
from pathlib import Path

from tools.setup_arm64 import EMULATOR

PREFIX = (sys.executable, "-m", "tests.support.emulated")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PR_SET_PDEATHSIG = 1
# The head of a program's file: 64 bits, little-endian, System V or Linux; a program, fixed or not; AArch64 (183).
MAGIC = rb"\x7fELF\x02\x01\x01\x00" + rb"\x00" * 8 + rb"\x02\x00\xb7\x00"
MASK = rb"\xff" * 7 + rb"\x00" + rb"\xff" * 8 + rb"\xfe\xff\xff\xff"
# Opened here, so that it need not be there in a root file system; gives the program its name as it was called.
FLAGS = b"FP"
USERS = "0 0 65536"
"""All, each under its own number."""

libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Why arm64 programs cannot be run like this here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root, for a user namespace with all users"
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    if release < (6, 7):
        return f"needs Linux 6.7 or newer, whose binfmt_misc a namespace has for itself; this is {platform.release()}"
    if "\tbinfmt_misc\n" not in Path("/proc/filesystems").read_text():
        return "this kernel has no binfmt_misc"
    return "" if shutil.which(EMULATOR) else f"needs {EMULATOR}: make setup-arm64"


def checked(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def enter(say: int, hear: int, command: list[str]) -> None:
    """The new process: waits until it is root in its namespace, registers the emulator, and becomes the command."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "a user namespace")
    os.write(say, b"1")
    os.read(hear, 1)
    os.setgid(0)
    os.setuid(0)
    checked(libc.mount(b"binfmt_misc", bytes(BINFMT), b"binfmt_misc", 0, None), f"mounting {BINFMT}")
    program = os.fsencode(shutil.which(EMULATOR) or EMULATOR)
    (BINFMT / "register").write_bytes(b":".join((b"", b"slackwater", b"M", b"", MAGIC, MASK, program, FLAGS)))
    os.execvp(command[0], command)


def main() -> int:
    command = sys.argv[1:]
    if not command:
        sys.exit("expected a command; example: python -m tests.support.emulated chroot ROOT uname -m")
    if why := why_not():
        sys.exit(f"error: {why}")
    its_read, our_write = os.pipe()
    our_read, its_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter(its_write, its_read, command)
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
        os._exit(125)
    os.close(its_write)
    if os.read(our_read, 1):
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(USERS)
        os.write(our_write, b"1")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
