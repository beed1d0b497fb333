"""Recordings: labelled Samples in one Parquet file, one row a Sample, one column a field (`traffic.rt_p95_ms`).

Labels are intervals (who was interfered with, by what, how strongly, from when to when) and stand, as JSON, in the
file's metadata under `slackwater`, beside a description of how the recording was made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from slackwater.messages import Counters, Cpu, Pressure, Sample, Sched, Traffic

FORMAT = 1
KEY = b"slackwater"
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "cpu": Cpu,
    "sched": Sched,
    "pressure": Pressure,
    "counters": Counters,
    "traffic": Traffic,
}
STATES_OF_KINDS = {
    "calm": "calm",
    "load": "calm",
    "deploy": "calm",
    "overload": "overload",
    "all_slow": "all_slow",
}
"""Kinds of label that are no neighbour, and the state that is right for them; every other kind is a noise maker."""


class RecordingError(Exception):
    """A recording that cannot be used; the text says which file, what is wrong and what was expected."""


@dataclass(frozen=True)
class Label:
    """From `start_unix_s` to `end_unix_s` this was done to a node (`*`: to all)."""

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
    """What a file held; Samples in order of time."""

    samples: list[Sample]
    labels: list[Label]
    description: str
    path: str = ""
    nodes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first Sample to the last."""
        return self.samples[-1].time_unix_s - self.samples[0].time_unix_s

    def truth(self, node: str, time_unix_s: float) -> str:
        """The state that is right for a node at a time."""
        for label in self.labels:
            if label.node in (node, "*") and label.start_unix_s <= time_unix_s < label.end_unix_s:
                return label.state
        return "calm"


def write(path: str | Path, samples: Sequence[Sample], labels: Sequence[Label], description: str) -> None:
    """Writes a recording, atomically. Raises RecordingError when there is no Sample; OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if not samples:
        raise RecordingError(f"{path}: not written: there is no Sample to record")
    for label in labels:
        if not label.end_unix_s > label.start_unix_s:
            raise RecordingError(f"{path}: not written: the label {label} ends before it starts")
    columns: dict[str, list[Any]] = {}
    for name in _plain_fields():
        columns[name] = [getattr(sample, name) for sample in samples]
    for section, struct in SECTIONS.items():
        for inner in struct.__struct_fields__:
            columns[f"{section}.{inner}"] = [
                None if (part := getattr(sample, section)) is None else getattr(part, inner) for sample in samples
            ]
    columns["absent"] = [json.dumps(sample.absent) for sample in samples]
    types = {name: _arrow_type(pa, kind) for name, kind in _column_kinds().items()}
    table = pa.table({name: pa.array(values, type=types[name]) for name, values in columns.items()})
    note = {"format": FORMAT, "description": description, "labels": [asdict(label) for label in labels]}
    table = table.replace_schema_metadata({KEY: json.dumps(note).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    pq.write_table(table, draft, compression="zstd")
    draft.replace(path)


def read(path: str | Path) -> Recording:
    """Reads a recording. Raises RecordingError for a file that is damaged, foreign or empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = "expected a recording of `slackwater lab record`"
    path = Path(path)
    try:
        table = pq.read_table(path)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error} ({expected})") from None
    except pa.ArrowException as error:
        raise RecordingError(f"{path}: damaged, or no Parquet file: {error} ({expected})") from None
    note = (table.schema.metadata or {}).get(KEY)
    if note is None:
        raise RecordingError(f"{path}: a Parquet file, but not a recording: it carries no labels ({expected})")
    try:
        content = json.loads(note)
        if content["format"] != FORMAT:
            raise RecordingError(f"{path}: format {content['format']}; this program reads format {FORMAT}")
        labels = msgspec.convert(content["labels"], list[Label])
        description = str(content["description"])
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise RecordingError(f"{path}: its labels cannot be read: {error!r}") from None
    lacks = [
        name for name in ("node", "pool", "time_unix_s", "boot_id", "seq", "period_s") if name not in table.column_names
    ]
    if lacks:
        raise RecordingError(f"{path}: columns are missing: {', '.join(lacks)} ({expected})")
    try:
        samples = [msgspec.convert(_nested(row), Sample) for row in table.to_pylist()]
    except (msgspec.ValidationError, ValueError) as error:
        raise RecordingError(f"{path}: a row is no Sample: {error}") from None
    if not samples:
        raise RecordingError(f"{path}: holds no Sample")
    samples.sort(key=lambda sample: sample.time_unix_s)
    nodes = sorted({sample.node for sample in samples})
    strangers = sorted({label.node for label in labels} - {*nodes, "*"})
    if strangers:
        raise RecordingError(f"{path}: labels name nodes without Samples: {', '.join(strangers)}")
    return Recording(samples, labels, description, str(path), nodes)


def _plain_fields() -> list[str]:
    return [name for name in Sample.__struct_fields__ if name not in SECTIONS and name != "absent"]


def _column_kinds() -> dict[str, Any]:
    kinds: dict[str, Any] = {
        info.name: info.type for info in msgspec.structs.fields(Sample) if info.name in _plain_fields()
    }
    for section, struct in SECTIONS.items():
        for info in msgspec.structs.fields(struct):
            kinds[f"{section}.{info.name}"] = info.type
    kinds["absent"] = str
    return kinds


def _arrow_type(pa: Any, kind: Any) -> Any:
    """Column type of a field: whole numbers, numbers or text."""
    inspected = msgspec.inspect.type_info(kind)
    inner = inspected.types if isinstance(inspected, msgspec.inspect.UnionType) else (inspected,)
    for one in inner:
        if isinstance(one, msgspec.inspect.IntType):
            return pa.int64()
        if isinstance(one, msgspec.inspect.FloatType):
            return pa.float64()
    return pa.string()


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    """A row back as the Sample's own shape; a section whose columns are all empty was absent."""
    nested: dict[str, Any] = {}
    for name, value in row.items():
        section, _, inner = name.partition(".")
        if value is None:
            continue
        if name == "absent":
            nested["absent"] = json.loads(value)
        elif inner:
            nested.setdefault(section, {})[inner] = value
        else:
            nested[name] = value
    return nested
