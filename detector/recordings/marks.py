"""Marks: a person's notes of what was done to a node, from when to when. They become the labels of recordings.

They are kept as JSON lines in `state_dir/marks.jsonl`, one for each begin or end. Lines are only appended: a recorder,
`slackwater mark` and `slackwater calibrate` may write at the same time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from slackwater.core import files
from slackwater.core.messages import is_name
from slackwater.detector.recordings.recording import Label

FILE = "marks.jsonl"
EVERY_NODE = "*"


class MarkError(ValueError):
    """A mark is not valid. The text says what is wrong and what was expected."""


@dataclass(frozen=True)
class Mark:
    """The begin of an interval (`end_unix_s` None), or a whole interval."""

    pool: str
    node: str
    """`*`: every node of the pool."""
    kind: str
    intensity: float
    start_unix_s: float
    end_unix_s: float | None = None


def check(mark: Mark) -> Mark:
    """The mark. Raises MarkError where it is not valid."""
    if not mark.kind or not is_name(mark.kind):
        raise MarkError(f"kind `{mark.kind}`: expected a name such as `dcopy` (letters, digits, - and _)")
    if mark.node != EVERY_NODE and not is_name(mark.node):
        raise MarkError(f"node `{mark.node}`: expected a node's name, or * for every node")
    if not 0 <= mark.intensity < float("inf"):
        raise MarkError(f"intensity {mark.intensity:g}: expected 0 or more")
    if mark.end_unix_s is not None and not mark.end_unix_s > mark.start_unix_s:
        raise MarkError(f"{mark.kind} on {mark.node}: it ends before it begins")
    return mark


def append(folder: Path, mark: Mark) -> None:
    """Appends a mark to the file. Raises MarkError, OSError."""
    check(mark)
    files.make_state_dir(folder)
    files.append(folder / FILE, f"{json.dumps(asdict(mark))}\n".encode())


def read(folder: Path) -> list[Mark]:
    """All marks, a begin and its end as one, in order of their begin. Raises MarkError for a damaged file."""
    path = folder / FILE
    marks: list[Mark] = []
    try:
        lines = files.bytes_of(path).decode().splitlines()
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines, start=1):
        try:
            mark = check(msgspec.json.decode(line, type=Mark))
        except (msgspec.MsgspecError, MarkError) as error:
            raise MarkError(f"{path}: line {number} is no mark: {error}") from None
        begun = next((known for known in marks if replace(mark, end_unix_s=None) == known), None)
        if begun is None:
            marks.append(mark)
        elif mark.end_unix_s is not None:
            marks[marks.index(begun)] = mark
    return sorted(marks, key=lambda mark: mark.start_unix_s)


def begin(folder: Path, mark: Mark) -> None:
    """Opens a mark. Raises MarkError when the same is open already, OSError."""
    if _open(folder, mark.pool, mark.node, mark.kind) is not None:
        raise MarkError(f"{mark.kind} on {mark.node} has begun already; end it first")
    append(folder, mark)


def end(folder: Path, pool: str, node: str, kind: str, end_unix_s: float) -> Mark:
    """Closes an open mark; returns the whole interval. Raises MarkError when none is open, OSError."""
    begun = _open(folder, pool, node, kind)
    if begun is None:
        raise MarkError(f"{kind} on {node} has not begun, so it cannot end")
    whole = replace(begun, end_unix_s=end_unix_s)
    append(folder, whole)
    return whole


def _open(folder: Path, pool: str, node: str, kind: str) -> Mark | None:
    for mark in reversed(read(folder)):
        if (mark.pool, mark.node, mark.kind) == (pool, node, kind) and mark.end_unix_s is None:
            return mark
    return None


def labels(folder: Path, pool: str, nodes: set[str], first_unix_s: float, last_unix_s: float) -> list[Label]:
    """The labels of a recording with these times: the marks that overlap it, cut to it. Open marks last to its end."""
    recording_labels = []
    for mark in read(folder):
        start = max(mark.start_unix_s, first_unix_s)
        stop = min(last_unix_s if mark.end_unix_s is None else mark.end_unix_s, last_unix_s)
        if mark.pool == pool and mark.node in (*nodes, EVERY_NODE) and stop > start:
            recording_labels.append(Label(mark.node, mark.kind, mark.intensity, start, stop))
    return recording_labels
