"""What the steps of tools/setup.py share: places, running commands with a log, and wrappers. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = (ROOT / ".build").resolve()
DEBIAN = BUILD / "debian"
BIN = BUILD / "bin"
VENV = BUILD / "venv"
STAMPS = BUILD / "stamps"
LOGS = BUILD / "logs"
MULTIARCH = f"{platform.machine()}-linux-gnu"

CARGO_PROGRESS = re.compile(r"Building \[[^\]]*\] +(\d+)/(\d+)")


class SetupError(Exception):
    """A step that cannot be done here; the message says what is missing and how to get it."""


def report(text: str) -> None:
    print(f"setup: {text}", flush=True)


def file_name(step: str) -> str:
    return step.replace(" ", "-")


def log_of(step: str) -> Path:
    """What the commands of a step printed."""
    return LOGS / f"{file_name(step)}.log"


def run(command: Sequence[str | Path], cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs a command with its output in the log of the step, whose name is the thread's; on failure shows the end."""
    log = log_of(threading.current_thread().name)
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        sink.flush()
        start = sink.tell()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        with log.open("rb") as source:
            source.seek(start)
            tail = source.read().decode(errors="replace").replace("\r", "\n").splitlines()[-15:]
        raise SetupError(
            f"`{' '.join(map(str, command[:4]))} ...` failed with status {done.returncode} (all of it: {log})\n  "
            + "\n  ".join(tail)
        )


def crates_built(log_text: str) -> str:
    """How far cargo is, such as `120 of 245 crates`; empty when it has not said so."""
    progress = CARGO_PROGRESS.findall(log_text)
    return f"{progress[-1][0]} of {progress[-1][1]} crates" if progress else ""


def need(program: str, how: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SetupError(f"{program} is not on this machine; {how}")
    return path


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def wrap(name: str, command: str) -> None:
    """A command in .build/bin."""
    BIN.mkdir(parents=True, exist_ok=True)
    (BIN / name).write_text(f"#!/bin/sh\n{command}\n")
    (BIN / name).chmod(0o755)


def contents(*names: str) -> Callable[[], list[bytes]]:
    """These files as inputs of a step, and where the checkout is."""
    return lambda: [str(ROOT).encode(), *((ROOT / name).read_bytes() for name in names)]
