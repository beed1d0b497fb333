"""Load by the lab's generator that goes on until it is told to end; every request that fails or is cut is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slackwater_lab.cluster.load import Demand, Floats, Load

PIECE_S = 10.0


class SteadyLoad:
    """Load in pieces of 10 s, one after the other, until the block ends; each waits for its last responses.

    The generator reads whole bodies: one that is shorter than it should be is an error, and is in `failed`.
    """

    def __init__(self, name: str, wrapped: Sequence[str], folder: Path, urls: Sequence[str], demand: Demand) -> None:
        """`wrapped` is oha's command, with arguments that `Demand` does not know, if any."""
        self.name = name
        self.requests = 0
        self.failed: list[str] = []
        self._what = wrapped, folder, urls, demand
        self._seconds: list[Floats] = []
        self._loaded_s = 0.0
        self._trouble: Exception | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                begin_s = time.monotonic()
                requests = Load(*self._what, PIECE_S).finish()
                self._loaded_s += time.monotonic() - begin_s
                self.requests += len(requests.seconds) + requests.lost_count
                self._seconds.append(requests.seconds)
                self.failed += [f"status {status}" for status in requests.status[requests.status != 200]]
                self.failed += [f"{count} times {why}" for why, count in requests.lost.items()]
        except Exception as error:
            self._trouble = error

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def describe(self) -> str:
        """What it came to, in a line; raises what ended the generator, if anything did."""
        if self._trouble is not None:
            raise self._trouble
        p50_ms, p99_ms = np.percentile(np.concatenate(self._seconds), [50, 99]) * 1000.0
        rate = self.requests / self._loaded_s
        return (
            f"{self.name}: {self.requests:,} requests, {rate:,.0f}/s, p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms,"
            f" failed: {self.failed or 'none'}"
        )
