"""Power cuts between any two steps, and a disk that keeps only what was forced to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class PowerCut(BaseException):
    """Nothing after it runs, no `except Exception` sees it."""


class Cutter:
    """Ends everything at the n-th step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A step before and a step after a call."""

        def cut(*arguments: Any, **named: Any) -> Any:
            self.step()
            result = call(*arguments, **named)
            self.step()
            return result

        return cut


class Disk:
    """What of a folder has reached the disk: a file's contents and a folder's names, each at its last fsync (2).

    fsync (2): "Calling fsync() does not necessarily ensure that the entry in the directory containing the file has also
    reached disk. For that an explicit fsync() on a file descriptor for the directory is also needed." Code under test
    reaches it through `os.fsync` and `Path.open` (`in_force`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[int, bytes] = {}
        """Inode -> the bytes of its file."""
        self._names: dict[Path, dict[str, int | None]] = {folder: _names(folder)}
        """Folder -> its names and their inodes; None for a folder."""

    @contextmanager
    def in_force(self, cutter: Cutter) -> Iterator[None]:
        """Every step that changes a file or a folder is one before and after which the power may be cut."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "fsync", cutter.around(self._fsync))
            patched.setattr(Path, "open", cutter.around(self._open))
            for name in ("replace", "unlink", "mkdir"):
                patched.setattr(Path, name, cutter.around(getattr(Path, name)))
            yield

    def after_a_cut(self, to: Path, names_first: bool) -> Path:
        """A copy as the next start finds it; `names_first`: every name has reached the disk, contents have not."""

        def copy(folder: Path, to: Path) -> None:
            to.mkdir()
            for name, inode in (_names(folder) if names_first else self._names.get(folder, {})).items():
                if inode is None:
                    copy(folder / name, to / name)
                else:
                    (to / name).write_bytes(self._contents.get(inode, b""))

        copy(self.folder, to)
        return to

    def _fsync(self, handle: int) -> None:
        status, path = os.fstat(handle), Path(f"/proc/self/fd/{handle}").readlink()
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = _names(path)
        else:
            with open(path, "rb") as file:  # noqa: PTH123
                self._contents[status.st_ino] = file.read()

    def _open(self, path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        file = open(path, mode, *arguments, **named)  # noqa: PTH123, SIM115
        if "w" in mode:  # new or emptied, and the inode may have been another file's
            self._contents.pop(os.fstat(file.fileno()).st_ino, None)
        return file


def _names(folder: Path) -> dict[str, int | None]:
    return {entry.name: None if entry.is_dir() else entry.inode() for entry in os.scandir(folder)}
