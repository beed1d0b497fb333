"""Recordings: what is written comes back, and what is no recording is refused in words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.core import messages
from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import KEY, RECEIVED, Label, RecordingError, read, write
from tests.support.paths import EXAMPLES
from tests.support.synthetic_cluster import START_UNIX_S, Cluster


def samples(seconds: float = 2.0) -> list[Sample]:
    return [sample for _, batch in Cluster().run(seconds) for sample in batch]


LABELS = [Label("host1", "llcprobe", 0.8, START_UNIX_S + 0.5, START_UNIX_S + 1.5)]


def test_samples_labels_and_description_come_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "one.parquet"
    write(path, samples(), LABELS, "three hosts, events, 250 requests/s")
    recording = read(path)
    assert recording.samples == sorted(samples(), key=lambda sample: sample.time_unix_s)
    assert recording.labels == LABELS
    assert recording.description == "three hosts, events, 250 requests/s"
    assert recording.nodes == ["host1", "host2", "host3"]
    assert recording.truth("host1", START_UNIX_S + 1.0) == "interference"
    assert recording.truth("host1", START_UNIX_S + 1.5) == "calm"
    assert recording.truth("host2", START_UNIX_S + 1.0) == "calm"
    assert [entry.name for entry in path.parent.iterdir()] == ["one.parquet"], "no draft is left behind"


def test_the_golden_samples_come_back_with_their_absent_values_and_reasons(tmp_path: Path) -> None:
    decoded = [messages.decode("sample", path.read_bytes()) for path in sorted(EXAMPLES.glob("sample-*.json"))]
    golden = [sample for sample in decoded if isinstance(sample, Sample)]
    assert golden
    write(tmp_path / "golden.parquet", golden, [], "golden")
    by_node = {sample.node: sample for sample in read(tmp_path / "golden.parquet").samples}
    for sample in golden:
        assert by_node[sample.node] == sample


def test_columns_are_flat_and_dotted_and_typed(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    write(path, samples(), LABELS, "")
    schema = pq.read_schema(path)
    for name, kind in {"node": pa.string(), "seq": pa.int64(), "traffic.rt_p95_ms": pa.float64()}.items():
        assert schema.field(name).type == kind
    assert json.loads(schema.metadata[KEY])["labels"] == [msgspec.to_builtins(LABELS[0])]


def test_kinds_of_labels_that_are_no_neighbour_say_so() -> None:
    kinds = {kind: Label("*", kind, 1.0, 0.0, 1.0).state for kind in ("load", "overload", "all_slow", "dcopy")}
    assert kinds == {"load": "calm", "overload": "overload", "all_slow": "all_slow", "dcopy": "interference"}


def test_nothing_and_labels_that_end_before_they_start_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no Sample to record"):
        write(tmp_path / "one.parquet", [], [], "")
    with pytest.raises(RecordingError, match="ends before it starts"):
        write(tmp_path / "one.parquet", samples(), [Label("host1", "cpu", 1.0, 5.0, 5.0)], "")
    assert list(tmp_path.iterdir()) == []


def damaged(path: Path) -> None:
    write(path, samples(), LABELS, "")
    path.write_bytes(path.read_bytes()[:-200])


def garbled(path: Path) -> None:
    path.write_bytes(b"PAR1 but not really PAR1")


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)


def other_format(path: Path) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({KEY: json.dumps({"format": 99}).encode()})
    pq.write_table(table, path)


def lacking(path: Path) -> None:
    note = {"format": 1, "description": "", "labels": []}
    pq.write_table(pa.table({"node": ["n"]}).replace_schema_metadata({KEY: json.dumps(note).encode()}), path)


def wrong_type(path: Path) -> None:
    write(path, samples(), LABELS, "")
    table = pq.read_table(path)
    spot = table.column_names.index("traffic.rps")
    pq.write_table(table.set_column(spot, "traffic.rps", pa.array(["many"] * len(table))), path)


def deep_labels(path: Path) -> None:
    deep = b'{"format": 1, "labels": ' + b"[" * 50_000
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({KEY: deep}), path)


def endless_time(path: Path) -> None:
    write(path, samples(), LABELS, "")
    table = pq.read_table(path)
    pq.write_table(table.append_column(RECEIVED, pa.array([math.inf] * len(table))), path)


def strange_label(path: Path) -> None:
    write(path, samples(), [Label("host9", "cpu", 1.0, START_UNIX_S, START_UNIX_S + 1)], "")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (damaged, "damaged, or no Parquet file|cannot be read"),
        (garbled, "damaged, or no Parquet file|cannot be read"),
        (foreign, "not a recording: it carries no labels"),
        (other_format, "format 99; this program reads format 1"),
        (lacking, "columns are missing: pool, time_unix_s, boot_id, seq, period_s"),
        (wrong_type, r"a row is no Sample: .*traffic\.rps"),
        (deep_labels, "its labels cannot be read"),
        (endless_time, "received_unix_s: expected Unix times, got inf"),
        (strange_label, "labels name nodes without Samples: host9"),
        (lambda _: None, "cannot be read"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_name_and_what_is_wrong(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "bad.parquet"
    make(path)
    with pytest.raises(RecordingError, match=says) as caught:
        read(path)
    assert str(path) in str(caught.value)
