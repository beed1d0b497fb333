"""Files that readers, and a restart, find whole: the old content or the new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def text_of(path: Path) -> str:
    """The text of a file that a person wrote: UTF-8, with a byte order mark or without. Raises OSError, for another
    encoding too."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8 at byte {error.start}", str(path)) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft for the new content of a file, which takes its place at the end of the block. Raises OSError.

    Makes the folder. The draft does not outlive the block; after a power cut the new content may be missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def replace_durably(path: Path, data: bytes) -> None:
    """Replaces a file's content so that a power cut leaves the old one or the new one. Raises OSError."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        force_folder(path.parent.parent)
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    force_folder(path.parent)


def force_folder(folder: Path) -> None:
    """What was made, renamed or removed in a folder is on the disk after this. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
