"""The archive: texts in order of their worth, as many as fit into the limit; each goes through the scrubber."""

from __future__ import annotations

import io
import os
import tarfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slackwater.controller.support.scrub import Scrubber
from slackwater.core.messages import plain_text

RESERVED_BYTES = 24_000
"""Room for the list of contents, and for the archive's own structure."""
ENTRY_BYTES = 600
"""What an entry takes beside its text, compressed."""
LEAST_CUT_BYTES = 2_000
"""A text of which less than this would be left is left out whole."""
OF_LINES = (".txt", ".log", ".jsonl")
"""Names of texts that may lose their oldest lines."""
HEAD = """Slackwater's support bundle, made {made}.

Secrets were removed in {removed} places: values of settings that hold or name one, what their files hold, passwords,
hashes, tokens and private keys wherever they appeared. Comments of settings files are left out.
Names of servers, pools and people, addresses and reasons that people gave are in it. Read it before you send it.

"""


class BundleError(Exception):
    """The bundle cannot be written; the text has the file and the reason."""


class ArchivedFile(msgspec.Struct):
    """A file of the archive."""

    name: str
    bytes: int
    cut: bool = False
    """Its oldest lines are left out, so that it fits."""


class Contents(msgspec.Struct):
    """What is in an archive, and what is not."""

    files: list[ArchivedFile]
    left_out: dict[str, str]
    """Name and reason."""
    secrets_removed: int


@dataclass
class _Text:
    name: str
    data: bytes
    cut: bool = False


class Bundle:
    """Gathers texts; what is added first is kept first."""

    def __init__(self, scrubber: Scrubber) -> None:
        self.scrubber = scrubber
        self._texts: list[_Text] = []
        self._left_out: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        """A text, without the secrets that are known by now."""
        self._texts.append(_Text(name, self.scrubber.text(text).encode("utf-8", "replace")))

    def left_out(self, name: str, reason: str) -> None:
        self._left_out[name] = plain_text(self.scrubber.text(reason))

    def pack(self, name: str, most_bytes: int) -> tuple[bytes, Contents]:
        """The archive, of at most so many bytes, and its contents. Raises BundleError if nothing fits."""
        room = most_bytes - RESERVED_BYTES
        while room > 0:
            chosen, contents = self._choose(room)
            data = _archive(name, [*_described(contents), *chosen])
            if len(data) <= most_bytes:
                return data, contents
            room = int(room * 0.9)
        raise BundleError(f"nothing fits into {most_bytes} bytes")

    def _choose(self, room: int) -> tuple[list[_Text], Contents]:
        chosen: list[_Text] = []
        left_out = dict(self._left_out)
        for text in self._texts:
            fitting = _fit(text, room - ENTRY_BYTES)
            if fitting is None:
                left_out[text.name] = f"{len(text.data)} bytes do not fit into the limit (--max-mb)"
                continue
            room -= len(zlib.compress(fitting.data)) + ENTRY_BYTES
            chosen.append(fitting)
        files = [ArchivedFile(text.name, len(text.data), text.cut) for text in chosen]
        return chosen, Contents(files, left_out, self.scrubber.removed)


def _fit(text: _Text, room: int) -> _Text | None:
    """The text, or its newest lines, so that it takes at most `room` bytes compressed; None if too little is left."""
    data, cut = text.data, False
    while (size := len(zlib.compress(data))) > room:
        keep = int(len(data) * 0.9 * max(0, room) / size)
        if keep < LEAST_CUT_BYTES or not text.name.endswith(OF_LINES):
            return None
        data = data[-keep:].partition(b"\n")[2]
        cut = True
    return _Text(text.name, data, cut)


def _described(contents: Contents) -> list[_Text]:
    lines = [HEAD.format(made=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), removed=contents.secrets_removed)]
    lines += ["In it:\n"]
    lines += [
        f"  {file.name}: {file.bytes} bytes{', the newest lines' if file.cut else ''}\n" for file in contents.files
    ]
    lines += ["\nLeft out:\n"] if contents.left_out else []
    lines += [f"  {name}: {reason}\n" for name, reason in contents.left_out.items()]
    return [
        _Text("README.txt", "".join(lines).encode()),
        _Text("contents.json", msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"),
    ]


def _archive(folder: str, texts: list[_Text]) -> bytes:
    """A .tar.gz of regular files only, owned by nobody in particular."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=9) as archive:
        for text in texts:
            info = tarfile.TarInfo(f"{folder}/{text.name}")
            info.size, info.mode, info.mtime = len(text.data), 0o600, int(time.time())
            archive.addfile(info, io.BytesIO(text.data))
    return made.getvalue()


def write_private(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner may read. Raises BundleError; no part of a file is left then."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BundleError(f"{path}: is there already; name another file with --out") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BundleError(f"{path}: cannot be written: {error.strerror}") from None
