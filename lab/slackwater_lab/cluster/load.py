"""Load by oha: open loop with corrected latency at a rate, or closed loop with a number of clients.

Corrected latency counts from the instant a request was due, so that a slow server cannot slow the measure down
(coordinated omission). One run is cut into phases afterwards by each request's due time.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.paths import LabError

Floats = NDArray[np.float64]
TIMEOUT_S = 30.0
FINISH_S = TIMEOUT_S + 15.0


@dataclass(frozen=True)
class Requests:
    """What was answered: due time (monotonic), response time and status of each; `lost` never got a response."""

    due_mono_s: Floats
    seconds: Floats
    status: NDArray[np.int64]
    lost: dict[str, int]
    late_s: Floats
    """By how much each was sent later than it was due."""

    @property
    def lost_count(self) -> int:
        return sum(self.lost.values())

    def generator_late_ms(self, connections: int) -> float:
        """How late the generator itself sent requests: the 99th percentile, in ms.

        A request that was due while all `connections` were taken waited for the servers, and does not count.
        """
        sent, ended = np.sort(self.due_mono_s + self.late_s), np.sort(self.due_mono_s + self.seconds)
        taken = np.searchsorted(sent, self.due_mono_s) - np.searchsorted(ended, self.due_mono_s, side="right")
        own_s = self.late_s[taken < connections]
        return 1e3 * float(np.percentile(own_s, 99)) if len(own_s) else 0.0


@dataclass(frozen=True)
class Demand:
    """Open loop at `rate_rps`, or closed loop of so many `clients`; both: a closed loop that asks no faster than so."""

    rate_rps: float | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        if self.rate_rps is None and self.clients is None:
            raise LabError("load: expected a rate or a number of clients")

    @property
    def connections(self) -> int:
        """Enough for a second of requests in flight, so that the loop stays open beside a slow host."""
        return self.clients if self.clients is not None else int(max(64, min(1000, self.rate_rps or 0)))

    def arguments(self) -> list[str]:
        rate = [] if self.rate_rps is None else ["-q", f"{self.rate_rps:g}"]
        # In a closed loop nobody waits to ask: a request is due when its client is free.
        corrected = ["--latency-correction"] if self.clients is None else []
        return [*rate, *corrected, "-c", str(self.connections)]


class Load:
    """A running generator; `finish` waits for its end and reads what it measured."""

    def __init__(
        self, wrapped: Sequence[str], folder: Path, urls: Sequence[str], demand: Demand, seconds: float
    ) -> None:
        """`wrapped` is oha's command without arguments, placed in its cgroup; results are in `folder` meanwhile."""
        stem = f"load-{time.monotonic_ns()}"
        self._database, self._summary, self._log = (folder / f"{stem}.{end}" for end in ("sqlite", "json", "log"))
        self._urls = folder / f"{stem}.urls"
        self._urls.write_text("\n".join(urls) + "\n")
        self.seconds = seconds
        argv = [
            *wrapped,
            *("--no-tui", "--urls-from-file", "-w", "-z", f"{seconds:g}s", "-t", f"{TIMEOUT_S:g}s"),
            *("--db-url", str(self._database), "--output-format", "json", "-o", str(self._summary)),
            *demand.arguments(),
            str(self._urls),
        ]
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, cwd="/"
            )
        self.begin_mono_s = time.monotonic()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raises LabError when the generator ended before its time."""
        if self.process.poll() is not None and time.monotonic() < self.begin_mono_s + self.seconds:
            raise LabError(f"oha ended early with status {self.process.returncode}: {self._log.read_text()[-800:]}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._clean()

    def _clean(self) -> None:
        for file in (self._database, self._summary, self._log, self._urls):
            file.unlink(missing_ok=True)

    def finish(self) -> Requests:
        """Waits for the end, including the requests under way; raises LabError when oha failed."""
        left = self.begin_mono_s + self.seconds + FINISH_S - time.monotonic()
        try:
            status = self.process.wait(max(1.0, left))
        except subprocess.TimeoutExpired:
            self.stop()
            raise LabError(f"oha did not end within {FINISH_S:g} s after its time") from None
        if status != 0:
            raise LabError(f"oha ended with status {status}: {self._log.read_text()[-800:]}")
        requests = read_results(self._database, self._summary, self.begin_mono_s)
        self._clean()
        return requests


class Stream(Background):
    """Load while it is entered: runs of some seconds, each begun as the time of the one before is over."""

    def __init__(self, start: Callable[[float], Load], piece_s: float) -> None:
        """`start` begins a run of so many seconds."""
        super().__init__("the load")
        self._start, self._piece_s = start, piece_s
        self._pieces: list[Load] = []

    def _run(self) -> None:
        while not self._end.is_set():
            last = self._start(self._piece_s)
            self._pieces.append(last)
            self._end.wait(last.begin_mono_s + last.seconds - time.monotonic())

    def check(self) -> None:
        """Raises LabError when a run ended early or could not begin."""
        super().check()
        if self._pieces:
            self._pieces[-1].check()

    def finish(self) -> Requests:
        """Waits for the end of the run that is under way, and puts them all together."""
        self.__exit__()
        return joined([piece.finish() for piece in self._pieces])


def joined(parts: Sequence[Requests]) -> Requests:
    """The requests of several runs as one, in order of due time."""
    lost: Counter[str] = Counter()
    for part in parts:
        lost.update(part.lost)
    due_mono_s = np.concatenate([part.due_mono_s for part in parts])
    order = np.argsort(due_mono_s, kind="stable")
    return Requests(
        due_mono_s[order],
        np.concatenate([part.seconds for part in parts])[order],
        np.concatenate([part.status for part in parts])[order],
        dict(lost),
        np.concatenate([part.late_s for part in parts])[order],
    )


def read_results(database: Path, summary: Path, begin_mono_s: float) -> Requests:
    """oha's SQLite of answered requests (its times count from its start) and the JSON that counts the others."""
    with sqlite3.connect(database) as store:
        rows = store.execute(
            "SELECT coalesce(start_latency_correction, start), duration, status, start FROM oha"
        ).fetchall()
    store.close()
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    lost = {str(why): int(count) for why, count in json.loads(summary.read_text())["errorDistribution"].items()}
    due_s, seconds, status, sent_s = table.T
    return Requests(due_s + begin_mono_s, seconds, status.astype(np.int64), lost, sent_s - due_s)
