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
from slackwater.core.messages.fields import LATEST_UNIX_S
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
    for unix_s in (mark.start_unix_s, mark.end_unix_s):
        if unix_s is not None and not 0 <= unix_s <= LATEST_UNIX_S:
            raise MarkError(f"{mark.kind} on {mark.node}: expected a time from 1970 to 2100, got {unix_s:g}")
    if mark.end_unix_s is not None and not mark.end_unix_s > mark.start_unix_s:
        raise MarkError(f"{mark.kind} on {mark.node}: it ends before it begins")
    return mark


def append(folder: Path, mark: Mark) -> None:
    """Appends a mark to the file. Raises MarkError, for a damaged file too, and OSError."""
    check(mark)
    read(folder)
    files.make_state_dir(folder)
    files.append(folder / FILE, f"{json.dumps(asdict(mark))}\n".encode())


def read(folder: Path, left_out: list[str] | None = None) -> list[Mark]:
    """All marks, a begin and its end as one, in order of their begin.

    Raises OSError, and MarkError for a line that is none. With a list such lines are left out, and named in it.
    """
    path = folder / FILE
    marks: list[Mark] = []
    try:
        lines = files.bytes_of(path).splitlines()
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines, start=1):
        try:
            mark = check(msgspec.json.decode(line, type=Mark))
        except (msgspec.MsgspecError, MarkError, UnicodeDecodeError) as error:
            fault = f"{path}: line {number} is no mark: {error}"
            if left_out is None:
                raise MarkError(f"{fault}; correct the line, or take it out") from None
            left_out.append(fault)
            continue
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


def labels(
    folder: Path, pool: str, nodes: set[str], first_unix_s: float, last_unix_s: float, left_out: list[str] | None = None
) -> list[Label]:
    """The labels of a recording with these times: the marks that overlap it, cut to it. Open marks last to its end.
    `left_out`: see `read`."""
    recording_labels = []
    for mark in read(folder, left_out):
        start = max(mark.start_unix_s, first_unix_s)
        stop = min(last_unix_s if mark.end_unix_s is None else mark.end_unix_s, last_unix_s)
        if mark.pool == pool and mark.node in (*nodes, EVERY_NODE) and stop > start:
            recording_labels.append(Label(mark.node, mark.kind, mark.intensity, start, stop))
    return recording_labels
