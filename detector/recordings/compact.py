"""Recordings as lines of JSON, compressed with xz: what the base install reads, without pyarrow.

The first line describes the recording, each other line is a Sample with the time at which it was received. One is
shipped, for `slackwater try`; `tools/try_recording.py` cuts it from a recording of the lab.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import msgspec

from detector.recordings.recording import FORMAT, Label, Recording, RecordingError
from slackwater.files import bytes_of
from slackwater.messages import Sample

SHIPPED = Path(__file__).parent / "try.jsonl.xz"


class Head(msgspec.Struct):
    """The first line."""

    format: int
    description: str
    """How the recording was made, and on what machine."""
    labels: list[Label]
    noises: dict[str, str] = {}
    """What the kinds of its labels are, in words."""


class _Line(msgspec.Struct):
    received_unix_s: float
    sample: Sample


def encode(recording: Recording, noises: dict[str, str]) -> bytes:
    """The file's content; the same for the same recording."""
    lines: list[bytes] = [msgspec.json.encode(Head(FORMAT, recording.description, recording.labels, noises))]
    for received_unix_s, sample in zip(recording.received_unix_s, recording.samples, strict=True):
        lines.append(msgspec.json.encode(_Line(received_unix_s, sample)))
    return lzma.compress(b"\n".join(lines) + b"\n", preset=9 | lzma.PRESET_EXTREME)


def read(path: Path) -> tuple[Recording, dict[str, str]]:
    """The recording, and what its kinds of noise are. Raises RecordingError for a file that is damaged or empty."""
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
