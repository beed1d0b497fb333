"""The detector's process: Samples from the bus to the pools' judges, Verdicts back, baselines kept on disk.

It sleeps until Samples come or something is due: a node goes stale, the baselines are to be saved.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import ControllerSettings, DetectorSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.machine import controller_id
from slackwater.core.messages import Cycle, DecisionCause, Sample, Verdict
from slackwater.core.stopping import on_stop
from slackwater.detector import baseline_checkpoint
from slackwater.detector.alarm import Alarm
from slackwater.detector.classify import tree
from slackwater.detector.classify.reported import reported
from slackwater.detector.features import sample_decoder
from slackwater.detector.features.balancer_latency import response_times_ms
from slackwater.detector.features.columns import Row, row_of
from slackwater.detector.judge import Judge

log = logging.getLogger("detector")

LEAST_PAUSE_S = 0.001
REPEATED_AFTER_S = 1.5
"""A node's last Verdict is sent again when no other came for this long. Readers know by it that the detector runs,
however seldom the node sends Samples."""
HEARS_OF_WEIGHTS_WITHIN_S = 1.5
"""Longest wait for lbengine's first word on which servers are lowered, which it sends at least once a second. Before it
nothing is called calm."""
LOWERED_FOR: frozenset[DecisionCause | None] = frozenset(
    {"interference", "slow", "errors", "own_limit", "tried", "unknown", "waiting"}
)
"""Causes of a lowered weight with which a server was worse by itself, as far as lbengine knows. `tried`: in a trial
with few requests."""
ALIVE_EVERY_S = 5.0
"""The supervisor gets a heartbeat at least this often."""
NET_OBJECTS = 200_000
"""The garbage collector looks for cycles when there are this many more objects than before."""
BASELINES = "detector-baselines.json"


async def run(settings: ControllerSettings) -> None:
    """Judges until SIGTERM or SIGINT. Raises `slackwater.detector.classify.tree.ModelError` for an unusable model,
    BusError."""
    model = choose_model(settings.detector)
    bus = await Bus.connect(settings.controller_bus, "slackwater-detector")
    try:
        await Detector(settings, bus, model).run()
    finally:
        await bus.close()


def choose_model(settings: DetectorSettings) -> tree.Model:
    """The model that the settings name. Raises `slackwater.detector.classify.tree.ModelError`."""
    path = tree.path_of(settings.model)
    model = tree.load(path)
    log.info("judging by model %s, trained %s (%s)", model.name, model.metadata.get("trained", "?"), path)
    return model


def spare_the_collector() -> None:
    """Leaves all present objects out of garbage collection, and makes collections rare.

    A tick makes thousands of objects and drops them all; none is part of a cycle. By default Python looks through all
    living objects whenever some hundreds more were made, which took more than half of a busy detector's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NET_OBJECTS, 20, 20)


def _knows_requests(sample: Sample) -> bool:
    """Whether a Sample has a rate of requests. In a Sample of `sample_decoder` an absent rate is NaN."""
    rps = None if sample.traffic is None else sample.traffic.rps
    return rps is not None and not math.isnan(rps)


class Detector:
    """One judge a pool, and the loop that feeds them."""

    def __init__(self, settings: ControllerSettings, bus: Bus, model: tree.Model) -> None:
        self._settings = settings
        self._bus = bus
        self._path = Path(settings.state_dir) / BASELINES
        self._judges = {pool.name: Judge.of(pool.name, settings.detector, model) for pool in settings.pool}
        self._judges_outside = model.judges_outside
        for judge in self._judges.values():
            judge.controller = controller_id(settings.state_dir)
        self._arrived: dict[str, list[Row]] = {name: [] for name in self._judges}
        self._state: dict[tuple[str, str], str] = {}
        self._sent: dict[tuple[str, str], tuple[Verdict, float]] = {}
        """(pool, node) -> (last Verdict, time when it was sent), the oldest first."""
        self._is_stopped = False
        self._alarm = Alarm()
        self._silent: set[str] = set()
        """Pools of which no Cycle has come yet."""
        self._judges_from_s = 0.0
        """Time from which silent pools are judged too."""
        self._not_before_s = 0.0
        """No tick begins before this time."""
        self._checkpoint = baseline_checkpoint.BaselineCheckpoint(self._judges, time.monotonic())

    async def run(self) -> None:
        """Judges until SIGTERM or SIGINT, then saves the baselines."""
        on_stop(self._end)
        self._restore()
        for pool in self._judges:
            await self._bus.subscribe("sample", self._take_sample, pool=pool, decode=sample_decoder.decode)
        for settings in self._settings.pool:
            await self._bus.subscribe("cycle", partial(self._take_cycle, settings.servers), pool=settings.name)
        self.listen(time.monotonic())
        spare_the_collector()
        heartbeat = Heartbeat()
        while not self._is_stopped:
            began_s = time.monotonic()
            await self._tick(began_s)
            heartbeat.beat()
            await self._sleep(began_s + self._settings.detector.tick_s)
        await asyncio.to_thread(self._save, self._checkpoint.whole(time.time()))

    def listen(self, now_s: float) -> None:
        """From now on no pool is judged before lbengine's first Cycle, or `HEARS_OF_WEIGHTS_WITHIN_S` without one."""
        self._silent, self._judges_from_s = set(self._judges), now_s + HEARS_OF_WEIGHTS_WITHIN_S

    def _end(self) -> None:
        self._is_stopped = True
        self._alarm.ring()

    async def _sleep(self, not_before_s: float) -> None:
        """Sleeps until a Sample came or something is due, and at least until `not_before_s`, so that Samples that come
        together are judged together. The stop ends it at once."""
        self._not_before_s = not_before_s
        due_s = 0.0 if any(self._arrived.values()) else self.due_s()
        await self._alarm.sleep_until(max(due_s, self._pause_until_s()))

    def _pause_until_s(self) -> float:
        return max(self._not_before_s, time.monotonic() + LEAST_PAUSE_S)

    def due_s(self) -> float:
        """Time when there is something to do without a message, in monotonic seconds."""
        judges = (judge.sorter.due_s() for judge in self._judges.values())
        oldest = next(iter(self._sent.values()), None)
        again_s = math.inf if oldest is None else oldest[1] + REPEATED_AFTER_S
        return min(time.monotonic() + ALIVE_EVERY_S, again_s, self._checkpoint.due_s(), *judges)

    def _take_sample(self, sample: Sample) -> None:
        """Keeps a Sample for the next tick. The balancer's are not judged where the model has no tree for them, or
        where they only say why nothing is known of the requests."""
        if sample.source == "balancer" and not (self._judges_outside and _knows_requests(sample)):
            return
        self._arrived[sample.pool].append(row_of(sample))
        self._alarm.bring_forward(self._pause_until_s())

    def _take_cycle(self, node_of: Mapping[str, str], cycle: Cycle) -> None:
        judge = self._judges[cycle.pool]
        judge.report_balancer_latency(time.monotonic(), response_times_ms(cycle, node_of))
        judge.failures.report(time.monotonic(), reported(cycle, node_of), judge.sorter.slot)
        judge.lowered = {
            node_of.get(server.server, server.server)
            for server in cycle.servers
            if cycle.mode == "act" and server.weight < server.full_weight and server.cause in LOWERED_FOR
        }
        self._silent.discard(cycle.pool)

    async def _tick(self, now_s: float) -> None:
        for pool, judge in self._judges.items():
            if pool in self._silent and now_s < self._judges_from_s:
                continue
            arrived, self._arrived[pool] = self._arrived[pool], []
            for verdict in judge.take(now_s, arrived):
                self._log_change(verdict)
                await self._send(verdict, now_s)
        while (oldest := next(iter(self._sent.values()), None)) and now_s - oldest[1] >= REPEATED_AFTER_S:
            await self._send(oldest[0], now_s)
        content = self._checkpoint.step(now_s, time.time())
        if content is not None:
            await asyncio.to_thread(self._save, content)

    async def _send(self, verdict: Verdict, now_s: float) -> None:
        """Publishes a Verdict, and keeps it to be repeated. Those of `unknown` are not kept: the judge repeats them."""
        key = (verdict.pool, verdict.node)
        self._sent.pop(key, None)
        if verdict.state != "unknown":
            self._sent[key] = verdict, now_s
        await self._bus.publish(verdict)

    def _log_change(self, verdict: Verdict) -> None:
        """Logs a change of a node's state."""
        key = (verdict.pool, verdict.node)
        before = self._state.get(key)
        if before == verdict.state:
            return
        self._state[key] = verdict.state
        log.info("%s/%s: %s -> %s: %s", *key, before or "new", verdict.state, "; ".join(verdict.path))

    # -- baselines --------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        try:
            pools = baseline_checkpoint.load(self._path, time.time())
        except ValueError as error:
            log.warning("%s: the baselines are learnt anew", error)
            return
        for pool, judge in self._judges.items():
            if pool in pools:
                judge.restore_baselines(pools[pool])
                log.info("%s: baselines of %d nodes read from %s", pool, len(pools[pool]), self._path)

    def _save(self, content: bytes) -> None:
        try:
            baseline_checkpoint.save(self._path, content)
        except OSError as error:
            log.warning("%s: baselines not saved: %s", self._path, error)
