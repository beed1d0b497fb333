"""A measurement in cells: what is asked for is a list of them, and each that is done is a line of JSON in a data file.

So the same command goes on where it was stopped, on another day too, and a page is drawn from the file alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from jinja2 import Environment, PackageLoader

from slackwater_lab.experiment.recording import ExperimentError


class Line(Protocol):
    """A cell that is done; `v` is the line's format."""

    @property
    def v(self) -> int: ...


L = TypeVar("L", bound=Line)
T = TypeVar("T")
R = TypeVar("R")
REPORT_EVERY_S = 15.0
LONGEST_S = 3600.0
"""The longest time that a cell may take."""


def _whole_lines(data: bytes) -> bytes:
    """The data without a last line that is incomplete because the machine stopped while writing it."""
    return data[: data.rfind(b"\n") + 1]


def read(path: Path, kind: type[L], form: int, line_name: str) -> list[L]:
    """A data file's lines, oldest first; none where there is no file. `line_name` is a line in words.

    Raises ExperimentError, OSError.
    """
    if not path.exists():
        return []
    decoded = []
    for number, line in enumerate(_whole_lines(path.read_bytes()).splitlines(), start=1):
        try:
            cell = msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            raise ExperimentError(f"{path}, line {number}: not {line_name}: {error}") from None
        if cell.v != form:
            raise ExperimentError(f"{path}, line {number}: format {cell.v}; this program reads format {form}")
        decoded.append(cell)
    return decoded


def append(path: Path, line: object) -> None:
    """Adds a line to a data file; after this it outlives a power cut. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(len(_whole_lines(file.read())))
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def until(minutes: float | None) -> float:
    """The instant (monotonic) after which nothing is begun; for ever without `minutes`."""
    return time.monotonic() + 60.0 * minutes if minutes else float("inf")


def side_by_side(
    work: Callable[[T], R],
    left: Sequence[T],
    total: int,
    unit: str,
    progress: Callable[[str], None],
    until_mono_s: float = float("inf"),
    jobs: int | None = None,
) -> Iterator[R]:
    """What `work` gives for each cell that is left, in the order in which they are done, in as many processes (`jobs`;
    None: all processors). What is not done by `until_mono_s` is given up."""
    if not left:
        return
    done = total - len(left)
    began = reported = time.monotonic()
    context = multiprocessing.get_context("forkserver")
    with context.Pool(jobs or len(os.sched_getaffinity(0))) as pool:
        results = pool.imap_unordered(work, left)
        for number in range(1, len(left) + 1):
            try:
                result = results.next(timeout=max(0.0, min(until_mono_s - time.monotonic(), LONGEST_S)))
            except multiprocessing.TimeoutError:
                progress(f"time is up: {len(left) - number + 1} of {total} {unit} are left; the same command goes on")
                return
            yield result
            now = time.monotonic()
            if now - reported >= REPORT_EVERY_S:
                reported = now
                left_s = (now - began) / number * (len(left) - number)
                progress(f"{done + number} of {total} {unit}; about {left_s / 60:.0f} min left")


@dataclass(frozen=True)
class Pieces:
    """The options of a measurement in pieces."""

    data: Path | None
    page: Path | None
    replay: bool
    """Nothing is measured: only the page is written again."""
    until_mono_s: float

    def keep(self, line: object) -> None:
        """Adds a line to the data file, if there is one. Raises OSError."""
        if self.data is not None:
            append(self.data, line)

    def write_page(self, page: Callable[[str, str], str]) -> None:
        """Writes the page, if one was asked for. `page` makes it from the paths of the data file and of the page, which
        its commands name. Raises OSError."""
        if self.page is not None:
            self.page.write_text(page(str(self.data), str(self.page)))


def templates(package: str) -> Environment:
    """The pages of a package, in Markdown."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
