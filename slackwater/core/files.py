"""Files: with whose rights they are opened, and replaced so that readers and a restart find them whole.

Root's commands work in folders of other users, who may put a link in the place of any file there. So root reads, makes
and removes files below such a folder with the rights of that user. The kernel then refuses what a link leads to, and
the files that root's command leaves belong to the service's user. All other modules open files by this one;
`tests/project/test_opened_files.py` has the few that may do so themselves, with the reason.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SERVICE_USER = "slackwater"
"""The user of the controller's package."""
PRIVATE = 0o600
LARGEST_BYTES = 16 << 20
"""The largest file that root reads in another user's folder: ten times a baseline of 5,000 servers."""
STATE_DIR_MODE = 0o750
"""The mode that systemd gives the folder for the unit (StateDirectoryMode=)."""


class FileUser(NamedTuple):
    """The ids of a user and of a group."""

    uid: int
    gid: int


# --- with whose rights


def in_hands_of(path: Path) -> FileUser | None:
    """The user who can put something else at this path; None: root alone.

    That is the owner of the last folder or link on the way that is not root's. Links of root's lead where root wants.
    Who owns a file itself says nothing: a file of root's may have been linked there.
    """
    return _not_roots(path.absolute()) or _not_roots(Path(os.path.realpath(path)))


def _not_roots(path: Path) -> FileUser | None:
    owner = None
    for part in (*reversed(path.parents), path):
        try:
            here = part.lstat()
        except OSError:
            break
        if here.st_uid and _is_known(here.st_uid) and (stat.S_ISDIR(here.st_mode) or stat.S_ISLNK(here.st_mode)):
            owner = FileUser(here.st_uid, here.st_gid)
    return owner


@contextmanager
def as_owner(path: Path) -> Iterator[FileUser | None]:
    """For root: opens the files of the block with the rights of the user who has `path` in hands, and gives that user.

    It holds for this thread. For all other users, and where root alone has it in hands, nothing is changed. Nothing is
    imported in the block: Python's own files may be root's alone. A codec's first use is an import. Raises
    PermissionError where this root may not act for others.
    """
    user = in_hands_of(path) if os.geteuid() == 0 else None
    if user is None:
        yield None
        return
    if os.getgroups():  # root needs none for itself, and none of its groups counts for the other user
        os.setgroups([])
    before = _use(user)
    try:
        yield user
    finally:
        _use(before)


def _use(user: FileUser) -> FileUser:
    """Has the kernel check this thread's use of files against these ids (setfsuid(2)); returns the ids before."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    before = FileUser(libc.setfsuid(-1), libc.setfsgid(-1))  # -1 is nobody's: the ids stay, and are told
    libc.setfsgid(user.gid)
    libc.setfsuid(user.uid)
    if (libc.setfsuid(-1), libc.setfsgid(-1)) != user:
        libc.setfsuid(before.uid)
        libc.setfsgid(before.gid)
        raise PermissionError(errno.EPERM, f"may not act for user {user.uid}, who owns the folder")
    return before


@functools.cache
def _is_known(uid: int) -> bool:
    """Whether the id is one of this user namespace. All other users are shown as one id, which owns nothing here."""
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    return any(int(first) <= uid < int(first) + int(count) for first, _, count in lines)


# --- reading


def bytes_of(path: Path) -> bytes:
    """What a file holds. Raises OSError; in another user's folder for a pipe or a device too, which may never end, and
    for a file of more than LARGEST_BYTES."""
    with as_owner(path) as other:
        if other is None:
            return path.read_bytes()
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "no regular file", str(path))
            if len(data := file.read(LARGEST_BYTES + 1)) > LARGEST_BYTES:
                raise OSError(errno.EFBIG, f"more than {LARGEST_BYTES} bytes", str(path))
            return data


def text_of(path: Path) -> str:
    """The text of a file that a person wrote: UTF-8, with a byte order mark or without. Raises OSError, for another
    encoding too."""
    return _decoded(bytes_of(path), path)


def secret_of(path: Path) -> tuple[str, int]:
    """The text (`text_of`), and who may read it: the file's mode."""
    with as_owner(path):
        data, mode = bytes_of(path), stat.S_IMODE(path.stat().st_mode)
    return _decoded(data, path), mode


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8 at byte {error.start}", str(path)) from None


def exists(path: Path) -> bool:
    """Whether something is there, also a link to nowhere. Raises PermissionError where that cannot be seen."""
    with as_owner(path):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


# --- writing


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A draft for the new content of a file, which takes its place at the end of the block. Raises OSError.

    Makes the folder. `mode` is what the umask leaves of it. The draft does not outlive the block; after a power cut the
    new content may be missing. In the block root has the rights of who has the file in hands (`as_owner`).
    """
    with as_owner(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        os.close(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replaces a file's content; a reader finds the old or the new one. Raises OSError."""
    with replacing(path, mode) as draft:
        draft.write_bytes(data)


def replace_durably(path: Path, data: bytes, mode: int = 0o666) -> None:
    """As `write_whole`, so that a power cut too leaves the old content or the new one. Raises OSError."""
    with as_owner(path):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            force_folder(path.parent.parent)
        with replacing(path, mode) as draft, draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        force_folder(path.parent)


def append(path: Path, data: bytes) -> None:
    """Adds to a file, which is made if it is not there. Raises OSError."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(data)


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all; one that is so already is left alone."""
    with as_owner(path):
        with contextlib.suppress(OSError):  # one that cannot be read is replaced
            if bytes_of(path) == text.encode() and not path.stat().st_mode & 0o077:
                return
        write_whole(path, text.encode(), PRIVATE)


def open_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file that is no link; a pipe in its place is not waited for. Raises OSError."""
    with as_owner(path):
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)


def remove(path: Path) -> None:
    """Removes a file, if it is there. Raises OSError."""
    with as_owner(path):
        path.unlink(missing_ok=True)


def force_folder(folder: Path) -> None:
    """What was made, renamed or removed in a folder is on the disk after this. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- folders


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner can use. Raises OSError."""
    with as_owner(folder):
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def make_state_dir(folder: Path) -> None:
    """Makes the controller's folder if it is not there: closed to others, and for the service's user if root makes it
    and there is one. Raises OSError."""
    with as_owner(folder):
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=STATE_DIR_MODE)
    if os.geteuid() == 0 and in_hands_of(folder) is None:
        with contextlib.suppress(KeyError):  # without the package
            service = pwd.getpwnam(SERVICE_USER)
            os.chown(folder, service.pw_uid, service.pw_gid)
