"""The detector's process: Samples from the bus to the pools' judges, Verdicts back, baselines kept on disk."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path
from typing import Any

from detector import baseline, reading, tree
from detector.columns import Row, row_of
from detector.judge import Judge
from slackwater.bus import Bus
from slackwater.config import ControllerSettings, DetectorSettings
from slackwater.messages import Sample, Verdict

log = logging.getLogger("detector")

SAVE_EVERY_S = 30.0
BASELINES = "detector-baselines.json"


async def run(settings: ControllerSettings) -> None:
    """Judges until SIGTERM or SIGINT. Raises `detector.tree.ModelError` for an unusable model, BusError."""
    model = choose_model(settings.detector)
    bus = await Bus.connect(settings.bus, "slackwater-detector")
    try:
        await Detector(settings, bus, model).run()
    finally:
        await bus.close()


def choose_model(settings: DetectorSettings) -> tree.Model | None:
    """The model that the settings name; None stands for the thresholds. Raises `detector.tree.ModelError`."""
    if settings.model == "thresholds":
        log.info("judging by the stated thresholds, as configured")
        return None
    path = Path(settings.model) if settings.model else tree.SHIPPED
    if not settings.model and not path.exists():
        log.warning("no model is shipped (%s is not there): judging by the stated thresholds", path)
        return None
    model = tree.load(path)
    log.info("judging by model %s, trained %s (%s)", model.name, model.metadata.get("trained", "?"), path)
    return model


class Detector:
    """One judge a pool, and the loop that feeds them."""

    def __init__(self, settings: ControllerSettings, bus: Bus, model: tree.Model | None) -> None:
        self._settings = settings
        self._bus = bus
        self._path = Path(settings.state_dir) / BASELINES
        self._judges = {
            pool.name: Judge(
                pool.name,
                stale_after_s=settings.detector.stale_after_s,
                calm_dwell_s=settings.detector.calm_dwell_s,
                model=model,
            )
            for pool in settings.pool
        }
        self._arrived: dict[str, list[Row]] = {name: [] for name in self._judges}
        self._state: dict[tuple[str, str], str] = {}
        self._stop = asyncio.Event()
        self._saved_s = time.monotonic()

    async def run(self) -> None:
        """Until a stop is asked for; the baselines are saved then too."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._restore()
        for pool in self._judges:
            await self._bus.subscribe("sample", self._keep, pool=pool, decode=reading.decode)
        tick_s = self._settings.detector.tick_s
        while not self._stop.is_set():
            await self._tick(time.monotonic())
            try:
                await asyncio.wait_for(self._stop.wait(), tick_s)
            except TimeoutError:
                continue
        await asyncio.to_thread(self._save, self._export())

    def _keep(self, sample: Sample) -> None:
        """Keeps a Sample for the next tick."""
        self._arrived[sample.pool].append(row_of(sample))

    async def _tick(self, now_s: float) -> None:
        for pool, judge in self._judges.items():
            arrived, self._arrived[pool] = self._arrived[pool], []
            for verdict in judge.take(now_s, arrived):
                self._tell(verdict)
                await self._bus.publish(verdict)
        if now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            await asyncio.to_thread(self._save, self._export())

    def _tell(self, verdict: Verdict) -> None:
        """One log line per change of state."""
        key = (verdict.pool, verdict.node)
        before = self._state.get(key)
        if before == verdict.state:
            return
        self._state[key] = verdict.state
        log.info("%s/%s: %s -> %s: %s", *key, before or "new", verdict.state, "; ".join(verdict.path))

    # -- baselines --------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        try:
            pools = baseline.load(self._path, time.time())
        except ValueError as error:
            log.warning("%s: the baselines are learnt anew", error)
            return
        for pool, judge in self._judges.items():
            if pool in pools:
                judge.restore_baselines(pools[pool])
                log.info("%s: baselines of %d nodes read from %s", pool, len(pools[pool]), self._path)

    def _export(self) -> dict[str, dict[str, Any]]:
        return {pool: judge.export_baselines() for pool, judge in self._judges.items()}

    def _save(self, pools: dict[str, dict[str, Any]]) -> None:
        try:
            baseline.save(self._path, pools, time.time())
        except OSError as error:
            log.warning("%s: baselines not saved: %s", self._path, error)
