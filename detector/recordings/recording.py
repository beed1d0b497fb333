"""Recordings: labelled Samples in one Parquet file, one row a Sample, one column a field (`traffic.rt_p95_ms`).

Sections, their fields and lists follow the Sample's own definition. Values that are not plain (`traffic.routes`, `pmu`,
`absent`) are JSON. docs/reference/recordings.md has the format for readers of other programs.

Labels are intervals: which node was interfered with, by what, how strongly, from when to when. They are JSON in the
file's metadata under `slackwater`, beside a description of how the recording was made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from slackwater.core.files import replacing
from slackwater.core.messages import Sample

FORMAT = 1
KEY = b"slackwater"
RECEIVED = "received_unix_s"
REQUIRED = ("node", "pool", "time_unix_s", "boot_id", "seq", "period_s")
EXPECTED = "expected a recording of `slackwater record` or `slackwater lab record`"
STATES_OF_KINDS = {
    "calm": "calm",
    "load": "calm",
    "deploy": "calm",
    "overload": "overload",
    "all_slow": "all_slow",
    "errors": "errors",
    "slow_database": "all_slow",
    "reload": "calm",
    "start": "calm",
    "clock_step": "calm",
    "flash_crowd": "calm",
    "own_backup": "calm",
}
"""Kinds of label that are no neighbour -> the state that is right for them. Every other kind is a noise maker."""


class RecordingError(Exception):
    """A recording cannot be used. The text says which file, what is wrong and what was expected."""


@dataclass(frozen=True)
class Label:
    """Something that was done to a node (`*`: to all) from `start_unix_s` to `end_unix_s`."""

    node: str
    kind: str
    """A noise maker (`llcprobe`, `dcopy`, `cpu`, ...) or a key of `STATES_OF_KINDS`."""
    intensity: float
    start_unix_s: float
    end_unix_s: float

    @property
    def state(self) -> str:
        """The state that a detector should find."""
        return STATES_OF_KINDS.get(self.kind, "interference")


@dataclass(frozen=True)
class Recording:
    """The contents of a file. Samples are in the order in which they were received."""

    samples: list[Sample]
    labels: list[Label]
    description: str
    path: str = ""
    nodes: list[str] = field(default_factory=list)
    received_unix_s: list[float] = field(default_factory=list)
    """The time at which each Sample was received, by the recorder's clock. A node's own clock may be stepped."""

    @property
    def seconds(self) -> float:
        """Time from the first Sample to the last."""
        return self.received_unix_s[-1] - self.received_unix_s[0]

    def later(self, by_s: float) -> Recording:
        """The same recording, `by_s` seconds later."""
        return replace(
            self,
            samples=[msgspec.structs.replace(sample, time_unix_s=sample.time_unix_s + by_s) for sample in self.samples],
            received_unix_s=[received_unix_s + by_s for received_unix_s in self.received_unix_s],
            labels=[
                replace(label, start_unix_s=label.start_unix_s + by_s, end_unix_s=label.end_unix_s + by_s)
                for label in self.labels
            ],
        )

    def truth(self, node: str, time_unix_s: float) -> str:
        """The state that is right for a node at a time."""
        label = self._label(node, time_unix_s)
        return label.state if label else "calm"

    def kind(self, node: str, time_unix_s: float) -> str:
        """The kind of a node's label at a time; empty without a label."""
        label = self._label(node, time_unix_s)
        return label.kind if label else ""

    def _label(self, node: str, time_unix_s: float) -> Label | None:
        """The most specific label of a node at a time: a noise before a label of the whole pool."""
        at_that_time = [
            label
            for label in self.labels
            if label.node in (node, "*") and label.start_unix_s <= time_unix_s < label.end_unix_s
        ]
        return max(at_that_time, key=lambda label: (label.state == "interference", label.state != "calm"), default=None)


def write(
    path: str | Path,
    samples: Sequence[Sample],
    labels: Sequence[Label],
    description: str,
    received_unix_s: Sequence[float] | None = None,
) -> None:
    """Writes a recording, atomically. `received_unix_s`: time at which each Sample came; None: not known.

    Raises RecordingError when there is no Sample, or a label is wrong; OSError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if not samples:
        raise RecordingError(f"{path}: not written: there is no Sample to record")
    for label in labels:
        if not label.end_unix_s > label.start_unix_s:
            raise RecordingError(f"{path}: not written: the label {label} ends before it starts")
    columns = {
        column.name: pa.array([column.value(sample) for sample in samples], type=getattr(pa, column.type)())
        for column in _COLUMNS
    }
    if received_unix_s is not None:
        columns[RECEIVED] = pa.array(received_unix_s, type=pa.float64())
    table = pa.table(columns)
    note = {"format": FORMAT, "description": description, "labels": [asdict(label) for label in labels]}
    table = table.replace_schema_metadata({KEY: json.dumps(note).encode()})
    with replacing(path) as draft:
        pq.write_table(table, draft, compression="zstd")


def read(path: str | Path) -> Recording:
    """Reads a recording. Raises RecordingError for a file that is damaged, foreign or empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    try:
        table = pq.read_table(path)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error} ({EXPECTED})") from None
    except pa.ArrowException as error:
        raise RecordingError(f"{path}: damaged, or no Parquet file: {error} ({EXPECTED})") from None
    note = (table.schema.metadata or {}).get(KEY)
    if note is None:
        raise RecordingError(f"{path}: a Parquet file, but not a recording: it carries no labels ({EXPECTED})")
    try:
        content = json.loads(note)
        if content["format"] != FORMAT:
            raise RecordingError(f"{path}: format {content['format']}; this program reads format {FORMAT}")
        labels = msgspec.convert(content["labels"], list[Label])
        description = str(content["description"])
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise RecordingError(f"{path}: its labels cannot be read: {error!r}") from None
    lacks = [name for name in REQUIRED if name not in table.column_names]
    if lacks:
        raise RecordingError(f"{path}: columns are missing: {', '.join(lacks)} ({EXPECTED})")
    try:
        rows = table.to_pylist()
        samples = [msgspec.convert(_nested(row), Sample) for row in rows]
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise RecordingError(f"{path}: a row is no Sample: {error}") from None
    if not samples:
        raise RecordingError(f"{path}: holds no Sample")
    # A Sample without a time of receipt counts with its own time.
    stamped = zip(samples, (row.get(RECEIVED) for row in rows), strict=True)
    received = [sample.time_unix_s if unix_s is None else unix_s for sample, unix_s in stamped]
    for unix_s in received:
        if not isinstance(unix_s, int | float) or not math.isfinite(unix_s):
            raise RecordingError(f"{path}: {RECEIVED}: expected Unix times, got {unix_s!r}")
    order = sorted(range(len(samples)), key=lambda number: received[number])
    samples, received = [samples[number] for number in order], [received[number] for number in order]
    nodes = sorted({sample.node for sample in samples})
    strangers = sorted({label.node for label in labels} - {*nodes, "*"})
    if strangers:
        raise RecordingError(f"{path}: labels name nodes without Samples: {', '.join(strangers)}")
    return Recording(samples, labels, description, str(path), nodes, received)


@dataclass(frozen=True)
class _Column:
    """A column: a field of the Sample, or of one of its sections."""

    section: str
    """Empty for the Sample's own fields."""
    field: str
    type: Literal["string", "int64", "float64"]
    as_json: bool

    @property
    def name(self) -> str:
        return f"{self.section}.{self.field}" if self.section else self.field

    def value(self, sample: Sample) -> Any:
        """A Sample's value in the file."""
        part = getattr(sample, self.section) if self.section else sample
        if part is None:
            return None
        value = getattr(part, self.field)
        if not self.as_json:
            return value
        return msgspec.json.encode(value).decode() if value else None


def _columns(struct: type[msgspec.Struct], section: str = "") -> list[_Column]:
    """The columns of a struct; a section's fields stand in its place. A struct within a section is a column of JSON."""
    columns = []
    for info in msgspec.structs.fields(struct):
        inspected = msgspec.inspect.type_info(info.type)
        kinds = inspected.types if isinstance(inspected, msgspec.inspect.UnionType) else (inspected,)
        inner = next((kind for kind in kinds if isinstance(kind, msgspec.inspect.StructType)), None)
        if inner is not None and not section:
            columns += _columns(inner.cls, info.name)
        elif any(isinstance(kind, msgspec.inspect.IntType) for kind in kinds):
            columns.append(_Column(section, info.name, "int64", False))
        elif any(isinstance(kind, msgspec.inspect.FloatType) for kind in kinds):
            columns.append(_Column(section, info.name, "float64", False))
        else:
            plain = all(
                isinstance(kind, msgspec.inspect.StrType | msgspec.inspect.LiteralType | msgspec.inspect.NoneType)
                for kind in kinds
            )
            columns.append(_Column(section, info.name, "string", not plain))
    return columns


_COLUMNS = _columns(Sample)
_AS_JSON = {column.name for column in _COLUMNS if column.as_json}


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the Sample's own shape. A section whose columns are all empty was absent."""
    nested: dict[str, Any] = {}
    for name, value in row.items():
        section, _, inner = name.partition(".")
        if value is None:
            continue
        if name in _AS_JSON:
            value = json.loads(value)
        if inner:
            nested.setdefault(section, {})[inner] = value
        else:
            nested[name] = value
    return nested
