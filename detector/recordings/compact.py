"""Recordings as lines of JSON, compressed with xz. The base install reads them, without pyarrow.

The first line describes the recording. Each other line is a Sample with the time at which it was received. A recording
is shipped for `slackwater try`; `tools/try_recording.py` cuts it from a recording of the lab.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import msgspec

from slackwater.core.files import bytes_of
from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import FORMAT, Label, Recording, RecordingError

SHIPPED = Path(__file__).parent / "try.jsonl.xz"


class Head(msgspec.Struct):
    """The first line of the file."""

    format: int
    description: str
    """How the recording was made, and on what machine."""
    labels: list[Label]
    noises: dict[str, str] = {}
    """Kind of its labels -> its description."""


class _Line(msgspec.Struct):
    received_unix_s: float
    sample: Sample


def encode(recording: Recording, noises: dict[str, str]) -> bytes:
    """The file's content. Equal recordings give equal bytes."""
    lines: list[bytes] = [msgspec.json.encode(Head(FORMAT, recording.description, recording.labels, noises))]
    for received_unix_s, sample in zip(recording.received_unix_s, recording.samples, strict=True):
        lines.append(msgspec.json.encode(_Line(received_unix_s, sample)))
    return lzma.compress(b"\n".join(lines) + b"\n", preset=9 | lzma.PRESET_EXTREME)


def read(path: Path) -> tuple[Recording, dict[str, str]]:
    """The recording, and the descriptions of its kinds of noise. Raises RecordingError for a damaged or empty file."""
    try:
        first, *rest = lzma.decompress(bytes_of(path)).splitlines()
        head = msgspec.json.decode(first, type=Head)
        if head.format != FORMAT:
            raise RecordingError(f"{path}: format {head.format}; this program reads format {FORMAT}")
        decoder = msgspec.json.Decoder(_Line)
        lines = [decoder.decode(line) for line in rest]
    except (OSError, ValueError, EOFError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise RecordingError(f"{path}: cannot be read as a compact recording: {error}") from None
    if not lines:
        raise RecordingError(f"{path}: holds no Sample")
    samples = [line.sample for line in lines]
    received = [line.received_unix_s for line in lines]
    nodes = sorted({sample.node for sample in samples})
    return Recording(samples, head.labels, head.description, str(path), nodes, received), head.noises
