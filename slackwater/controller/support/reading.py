"""Reads files and runs programs for the bundle: no symbolic link is followed, and nothing takes for ever."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from errno import ELOOP, ENOTDIR
from pathlib import Path

from slackwater.core.files import as_owner

MOST_BYTES = 20_000_000
"""The newest bytes of one file or one program's output that are read."""
PROGRAM_WITHIN_S = 60.0
MOST_LISTED = 500


class NotRead(Exception):
    """Something could not be read; the text has the reason."""


def read_inside(folder: Path, *names: str, most_bytes: int = MOST_BYTES) -> bytes:
    """The end of a regular file below a folder; empty if it is not there.

    Neither the file nor a folder on the way from `folder` may be a symbolic link. Raises NotRead.
    """
    handle = -1
    try:
        with as_owner(folder):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            for number, name in enumerate(names):
                kind = 0 if number == len(names) - 1 else os.O_DIRECTORY
                below = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=handle)
                os.close(handle)
                handle = below
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotRead("no regular file")
        with os.fdopen(handle, "rb") as file:
            handle = -1
            file.seek(max(0, status.st_size - most_bytes))
            return file.read(most_bytes)
    except FileNotFoundError:
        return b""
    except OSError as error:
        link = error.errno in (ELOOP, ENOTDIR)  # open(2): O_NOFOLLOW, and with O_DIRECTORY
        why = "a symbolic link, which is not followed" if link else error.strerror or str(error)
        raise NotRead(why) from None
    finally:
        if handle >= 0:
            os.close(handle)


def listing(folder: Path, depth: int = 2) -> Iterator[str]:
    """Kind, mode, size, age and name of what is in a folder; links by themselves. Raises NotRead."""
    try:
        with as_owner(folder):
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise NotRead(error.strerror or str(error)) from None
    for entry in entries[:MOST_LISTED]:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        when = int(status.st_mtime)
        yield f"{stat.filemode(status.st_mode)} {status.st_uid:5} {status.st_size:12} {when} {entry.path}"
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from listing(Path(entry.path), depth - 1)


def output(*command: str, env: dict[str, str] | None = None, ok: Sequence[int] | None = None) -> str:
    """What a program prints, errors too. Raises NotRead if it is not there, hangs, or fails (unless in `ok`)."""
    environment = os.environ | {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "NO_COLOR": "1"} | (env or {})
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_WITHIN_S,
            env=environment,
        )
    except FileNotFoundError:
        raise NotRead(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise NotRead(f"{command[0]} took longer than {PROGRAM_WITHIN_S:g} s") from None
    except OSError as error:
        raise NotRead(f"{command[0]}: {error.strerror}") from None
    text = done.stdout[-MOST_BYTES:].decode("utf-8", "replace")
    if ok is not None and done.returncode not in ok:
        raise NotRead(f"{command[0]} ended with status {done.returncode}: {text.strip()[-200:]}")
    return text
