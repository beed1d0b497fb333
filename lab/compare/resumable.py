"""What a comparison and a grid share: a plan on disk, and going on where it was interrupted."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from lab.experiment.recording import ExperimentError
from slackwater.files import replacing


class Planned(Protocol):
    """A plan as it is on disk; `v` is its format."""

    @property
    def v(self) -> int: ...


P = TypeVar("P", bound=Planned)
T = TypeVar("T")
R = TypeVar("R")
REPORT_EVERY_S = 15.0
LONGEST_S = 3600.0
"""That one piece of work may take."""


def save(path: Path, plan: object) -> None:
    """Writes a plan, atomically. Raises OSError."""
    with replacing(path) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def load(path: Path, kind: type[P], form: int, what: str) -> P:
    """Reads the plan of `what`. Raises ExperimentError when there is none, or it is damaged."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ExperimentError(f"{path} is missing: expected the folder of {what}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ExperimentError(f"{path}: not the plan of {what}: {error}") from None
    if found.v != form:
        raise ExperimentError(f"{path}: format {found.v}; this program reads format {form}")
    return found


def whole_lines(data: bytes) -> bytes:
    """Without the last line, if that was cut where the machine stopped while it was written."""
    return data[: data.rfind(b"\n") + 1]


def read_lines(path: Path, kind: type[P], form: int, what: str) -> list[P]:
    """A data file's lines, oldest first; none where there is no file. `what` is a line in words.

    Raises ExperimentError, OSError.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(whole_lines(path.read_bytes()).splitlines(), start=1):
        try:
            one = msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            raise ExperimentError(f"{path}, line {number}: not {what}: {error}") from None
        if one.v != form:
            raise ExperimentError(f"{path}, line {number}: format {one.v}; this program reads format {form}")
        found.append(one)
    return found


def append(path: Path, one: object) -> None:
    """Adds a line to a data file; after this it outlives a power cut. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(len(whole_lines(file.read())))
        file.write(msgspec.json.encode(one) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def paced(
    left: Sequence[T], total: int, unit: str, progress: Callable[[str], None], until_mono_s: float = float("inf")
) -> Iterator[T]:
    """What is left to measure, one after the other; none that would end after `until_mono_s`."""
    if left and len(left) < total:
        progress(f"going on: {total - len(left)} of {total} {unit} are recorded")
    took_s: list[float] = []
    for done, one in enumerate(left, start=1):
        began = time.monotonic()
        if began + max(took_s, default=0.0) > until_mono_s:
            progress(f"time is up: {len(left) - done + 1} of {total} {unit} are left; the same command goes on")
            return
        yield one
        took_s.append(time.monotonic() - began)
        left_s = sum(took_s) / done * (len(left) - done)
        progress(f"{total - len(left) + done} of {total}; about {left_s / 60:.0f} min left")


def side_by_side(
    work: Callable[[T], R],
    left: Sequence[T],
    total: int,
    unit: str,
    progress: Callable[[str], None],
    until_mono_s: float = float("inf"),
    jobs: int | None = None,
) -> Iterator[R]:
    """What `work` gives for each that is left, in the order in which they are done, in as many processes (`jobs`; None:
    all processors). What is not done by `until_mono_s` is given up."""
    if not left:
        return
    done = total - len(left)
    began = reported = time.monotonic()
    context = multiprocessing.get_context("forkserver")
    with context.Pool(jobs or len(os.sched_getaffinity(0))) as pool:
        results = pool.imap_unordered(work, left)
        for number in range(1, len(left) + 1):
            try:
                found = results.next(timeout=max(0.0, min(until_mono_s - time.monotonic(), LONGEST_S)))
            except multiprocessing.TimeoutError:
                progress(f"time is up: {len(left) - number + 1} of {total} {unit} are left; the same command goes on")
                return
            yield found
            now = time.monotonic()
            if now - reported >= REPORT_EVERY_S:
                reported = now
                left_s = (now - began) / number * (len(left) - number)
                progress(f"{done + number} of {total} {unit}; about {left_s / 60:.0f} min left")
