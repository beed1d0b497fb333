"""Records a live pool: its Samples from the bus until a stop, labelled by the marks of that time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings
from slackwater.core.messages import Sample
from slackwater.detector.recordings import marks
from slackwater.detector.recordings.recording import Recording, RecordingError, read, write

MAX_SAMPLES = 2_000_000
"""A recording ends at this number of Samples. They are kept in memory until it is written (about 4 KB each)."""
SHOW_EVERY_S = 10.0


async def collect(
    where: BusSettings,
    pool: str,
    seconds: float | None,
    stop: asyncio.Event,
    show: Callable[[str], None],
    begun: str,
) -> list[Sample]:
    """The Samples of a pool until `stop` is set, the seconds are over, or there are `MAX_SAMPLES`. Raises BusError.

    `show` is called with `begun` when the recording listens: Samples that are sent from then on are recorded.
    """
    samples: list[Sample] = []

    def take(sample: Sample) -> None:
        samples.append(sample)
        if len(samples) >= MAX_SAMPLES:
            stop.set()

    bus = await Bus.connect(where, "slackwater-record")
    loop = asyncio.get_running_loop()
    end_s = None if seconds is None else loop.time() + seconds
    try:
        await bus.subscribe("sample", take, pool=pool)
        await bus.flush()
        show(begun)
        while not stop.is_set() and (left := SHOW_EVERY_S if end_s is None else end_s - loop.time()) > 0:
            try:
                await asyncio.wait_for(stop.wait(), min(left, SHOW_EVERY_S))
            except TimeoutError:
                show(f"{len(samples)} Samples of {len({sample.node for sample in samples[-100_000:]})} nodes")
    finally:
        await bus.drain()
    return samples


def check(out: Path, folder: Path) -> None:
    """Finds at the beginning what would keep a recording from being saved. Raises RecordingError, MarkError."""
    marks.read(folder)
    folder_there = next(parent for parent in out.absolute().parents if parent.exists())  # others are made
    if out.is_dir() or not (folder_there.is_dir() and os.access(folder_there, os.W_OK | os.X_OK)):
        raise RecordingError(f"{out}: cannot be written; expected a file in a folder that this user may write to")


def save(out: Path, samples: list[Sample], pool: str, folder: Path, about: str, left_out: list[str]) -> Recording:
    """Writes a recording with the marks of `folder` as labels, and returns it. A line of theirs that is none by now is
    left out, and named in `left_out`: what was heard cannot be had again. Raises RecordingError, OSError."""
    if not samples:
        raise RecordingError(f"{out}: not written: no Sample of pool {pool} came; are the monitors running?")
    times = [sample.time_unix_s for sample in samples]
    labels = marks.labels(folder, pool, {sample.node for sample in samples}, min(times), max(times), left_out)
    write(out, samples, labels, about)
    return read(out)
