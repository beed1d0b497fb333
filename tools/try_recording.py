"""Makes the recording that `slackwater try` plays: 50 s cut from a recording of the lab, in a form without pyarrow.

`python -m tools.try_recording` writes it; a test compares the file with what this makes.
"""

from __future__ import annotations

from pathlib import Path

from slackwater.core.files import replacing
from slackwater.detector.recordings import compact
from slackwater.detector.recordings.recording import Recording, read
from slackwater_lab.cluster.noise import NOISES

SOURCE = Path(__file__).resolve().parent.parent / "tests/recordings/events-other-load.parquet"
FROM_S, UNTIL_S = 57.0, 107.0
"""Of the source: a few calm seconds, then five noises of four kinds on all three hosts."""


def cut() -> Recording:
    """The part of the source, with the labels that are whole in it."""
    whole = read(SOURCE)
    first_unix_s = whole.received_unix_s[0]
    since, until = first_unix_s + FROM_S, first_unix_s + UNTIL_S
    kept = [
        (sample, received_s)
        for sample, received_s in zip(whole.samples, whole.received_unix_s, strict=True)
        if since <= received_s < until
    ]
    labels = [label for label in whole.labels if since <= label.start_unix_s and label.end_unix_s < until]
    samples, received = [sample for sample, _ in kept], [received_s for _, received_s in kept]
    description = f"seconds {FROM_S:g} to {UNTIL_S:g} of a recording: {whole.description}"
    return Recording(samples, labels, description, "", whole.nodes, received)


def content() -> bytes:
    """What the shipped file is to hold."""
    recording = cut()
    kinds = sorted({label.kind for label in recording.labels})
    return compact.encode(recording, {kind: NOISES[kind] for kind in kinds})


def main() -> None:
    """Writes the shipped file."""
    made = content()
    with replacing(compact.SHIPPED) as draft:
        draft.write_bytes(made)
    print(f"{compact.SHIPPED}: {len(made)} bytes")


if __name__ == "__main__":
    main()
