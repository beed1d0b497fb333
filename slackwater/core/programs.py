"""Calls a site's own program with a JSON object on its standard input, limited in time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MOST_LINES, MOST_BYTES = 200, 300
"""Of what a program prints: so many lines of so many bytes are passed on."""
PRINTED_WITHIN_S = 0.5
"""After its end what it has printed is read within this time."""
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    status: int | None
    """Its exit status; negative: the signal that killed it. None: it could not be called, or was killed by us."""
    is_late: bool = False
    """It ran longer than it may, and was killed."""
    error: str = ""
    """Why it could not be called."""
    last_line: str = ""
    """The last line that it printed, where it was listened to."""


def why_not_callable(command: str) -> str:
    """Why a program could not be called, in words; empty where it could."""
    if not Path(command).is_absolute():
        return f"{command}: expected the whole path of a program"
    if not Path(command).is_file():
        return f"{command}: there is no such program"
    return "" if os.access(command, os.X_OK) else f"{command}: it may not be run by this user"


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class _Output(asyncio.Protocol):
    """What a program prints, line by line: the first `MOST_LINES` are passed on, and the last one is kept.

    It is read to its end, though nobody may listen any more: what the program leaves behind must not fail at a print.
    """

    def __init__(self, heard: Callable[[str], None]) -> None:
        self.last_line = ""
        self.ended = asyncio.Event()
        self._heard, self._rest, self._count = heard, b"", 0

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MOST_BYTES]
        for line in lines:
            self._line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._line(self._rest)
        self.ended.set()

    def _line(self, line: bytes) -> None:
        raw = line[:MOST_BYTES].decode(errors="replace")
        text = "".join(letter if letter.isprintable() else " " for letter in raw).strip()
        if not text:
            return
        self.last_line, self._count = text, self._count + 1
        if self._count <= MOST_LINES:
            self._heard(text)
        elif self._count == MOST_LINES + 1:
            self._heard("what it prints more is left out")


async def call(
    command: str,
    about: dict[str, Any],
    timeout_s: float,
    *,
    dies_with_us: bool = False,
    heard: Callable[[str], None] | None = None,
) -> ProgramEnd:
    """Calls `command` and waits for its end. When this is cancelled, or the time is over, it is killed with its
    children. `dies_with_us`: it is killed too when our process is, however that ends. `heard` gets the lines that it
    prints, on either output."""
    output, writer = (None, None) if heard is None else await _listened_to(heard)
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL if writer is None else writer,
            stderr=asyncio.subprocess.DEVNULL if writer is None else writer,
            start_new_session=True,
            preexec_fn=_die_with_parent if dies_with_us else None,
        )
    except OSError as error:
        return ProgramEnd(None, error=str(error.strerror or error))
    finally:
        if writer is not None:
            os.close(writer)
    end = await _end_of(process, about, timeout_s)
    if output is None:
        return end
    with contextlib.suppress(TimeoutError):  # what it has left behind may hold its output open
        await asyncio.wait_for(output.ended.wait(), PRINTED_WITHIN_S)
    return replace(end, last_line=output.last_line)


async def _listened_to(heard: Callable[[str], None]) -> tuple[_Output, int]:
    """The output of a program that is to be started, and the descriptor that it prints to."""
    reader, writer = os.pipe()
    output = _Output(heard)
    await asyncio.get_running_loop().connect_read_pipe(lambda: output, os.fdopen(reader, "rb", buffering=0))
    return output, writer


async def _end_of(process: Process, about: dict[str, Any], timeout_s: float) -> ProgramEnd:
    try:
        async with asyncio.timeout(timeout_s):
            await process.communicate(json.dumps(about).encode() + b"\n")
        return ProgramEnd(process.returncode)
    except TimeoutError:
        return ProgramEnd(None, is_late=True)
    finally:
        # The program leads a session of its own, so its children are killed too.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
