"""Records a live pool: its Samples from the bus, until it is told to stop, labelled by the marks made meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from detector.recordings import marks
from detector.recordings.recording import Recording, RecordingError, read, write
from slackwater.bus.bus import Bus
from slackwater.config import BusSettings
from slackwater.messages import Sample

MAX_SAMPLES = 2_000_000
"""A recording ends at so many Samples; they are kept in memory until it is written (about 4 KB each)."""
SAY_EVERY_S = 10.0


async def collect(
    where: BusSettings,
    pool: str,
    seconds: float | None,
    stop: asyncio.Event,
    say: Callable[[str], None],
    begun: str,
) -> list[Sample]:
    """The Samples of a pool until `stop` is set, the seconds are over, or there are `MAX_SAMPLES`. Raises BusError.

    `begun` is said when it listens: what is sent from then on until `stop` is recorded.
    """
    heard: list[Sample] = []

    def take(sample: Sample) -> None:
        heard.append(sample)
        if len(heard) >= MAX_SAMPLES:
            stop.set()

    bus = await Bus.connect(where, "slackwater-record")
    loop = asyncio.get_running_loop()
    end_s = None if seconds is None else loop.time() + seconds
    try:
        await bus.subscribe("sample", take, pool=pool)
        await bus.flush()
        say(begun)
        while not stop.is_set() and (left := SAY_EVERY_S if end_s is None else end_s - loop.time()) > 0:
            try:
                await asyncio.wait_for(stop.wait(), min(left, SAY_EVERY_S))
            except TimeoutError:
                say(f"{len(heard)} Samples of {len({sample.node for sample in heard[-100_000:]})} nodes")
    finally:
        await bus.drain()
    return heard


def save(out: Path, heard: list[Sample], pool: str, folder: Path, about: str) -> Recording:
    """Writes a recording with the marks of `folder` as labels, and gives it. Raises RecordingError, MarkError."""
    if not heard:
        raise RecordingError(f"{out}: not written: no Sample of pool {pool} came; are the monitors running?")
    times = [sample.time_unix_s for sample in heard]
    labels = marks.labels(folder, pool, {sample.node for sample in heard}, min(times), max(times))
    write(out, heard, labels, about)
    return read(out)
