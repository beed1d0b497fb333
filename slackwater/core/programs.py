"""Calls a site's own program with a JSON object on its standard input, limited in time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def why_not_callable(command: str) -> str:
    """Why a program could not be called, in words; empty where it could."""
    if not Path(command).is_absolute():
        return f"{command}: expected the whole path of a program"
    if not Path(command).is_file():
        return f"{command}: there is no such program"
    return "" if os.access(command, os.X_OK) else f"{command}: it may not be run by this user"


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


async def call(command: str, about: dict[str, Any], timeout_s: float, *, dies_with_us: bool = False) -> ProgramEnd:
    """Calls `command` and waits for its end. When this is cancelled, or the time is over, it is killed with its
    children. `dies_with_us`: it is killed too when our process is, however that ends."""
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent if dies_with_us else None,
        )
    except OSError as error:
        return ProgramEnd(None, error=str(error.strerror or error))
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
