"""The player: a recording's Samples to the real detector, its Verdicts to the real engine, and all to a real journal.

Only the clock and the balancer are the player's. The clock shows the time of the recording. The balancer shows the
weights that were in force then, and refuses to set any.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from slackwater.controller.playback.clock import Clock
from slackwater.controller.playback.events import End, EpisodeBegin, EpisodeEnd, Event, Noise, Opened, WouldChange
from slackwater.controller.playback.pool import BALANCE, RecordedBalancer
from slackwater.core.config import ControllerSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.receipt import Receipt
from slackwater.core.messages import Change, Message, State, Verdict
from slackwater.detector.classify.tree import SHIPPED, load
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.train.replay import batches
from slackwater.detector.train.scores import score
from slackwater.lbengine.engine import Engine
from slackwater.views.why import SLOW

FLUSH_S = 0.5
"""The journal's process writes at this interval too."""
AFTER_END_S = 1.0
"""The clock stands here at the end, past the last message and before anything counts as old."""
BEFORE_S = 4.0
"""An episode is compared with this time before it."""


class Player:
    """Plays one recording once. Times in it are seconds since the recording's first Sample."""

    def __init__(
        self, recording: Recording, kinds: Mapping[str, str], settings: ControllerSettings, clock: Clock
    ) -> None:
        self._recording, self._kinds, self._clock = recording, kinds, clock
        self._pool, self._lbengine = settings.pool[0], settings.lbengine
        self._start_unix_s = recording.received_unix_s[0]
        model = load(SHIPPED)
        self._judge = Judge.of(self._pool.name, settings.detector, model)
        self.opened = Opened(
            description=recording.description,
            recorded_unix_s=self._start_unix_s,
            seconds=recording.seconds,
            nodes=recording.nodes,
            noises=dict(kinds),
            model=f"{model.name}, trained {model.metadata.get('trained', 'at an unknown time')}",
            law=self._pool.law,
            balance=BALANCE,
        )
        self._balancer = RecordedBalancer(recording.nodes)
        folder = Path(settings.state_dir)
        self.journal = Journal.open(journal_path(folder), clock=clock)
        self._engine = Engine(self._pool, self._lbengine, folder, self.journal, balancer=self._balancer, wall=clock)
        self._receipt = Receipt(clock)
        self._waiting: list[Message] = []
        self._flushed_s = 0.0
        self._verdicts: list[Verdict] = []
        self._state: dict[str, tuple[State, float]] = {}
        self._changes = 0

    def close(self) -> None:
        self.journal.close()

    def play(self, wait: Callable[[float], None]) -> Iterator[Event]:
        """All that happens, in order. `wait` is called with each time before what happens then."""
        yield self.opened
        noises = sorted(self._noises(), key=lambda noise: noise.at_s)
        cycle_s = self._lbengine.cycle_s
        due_s = 0.0
        for now_s, samples in batches(self._recording):
            while due_s < now_s:
                yield from self._cycle(due_s, wait)
                due_s += cycle_s
            self._go_to(now_s, wait)
            while noises and noises[0].at_s <= now_s:
                yield noises.pop(0)
            verdicts = self._judge.tick(now_s, samples)
            for sample in samples:
                self._balancer.count(sample)
            self._waiting += [self._receipt.dated(sample) for sample in samples]
            self._waiting += [self._receipt.dated(verdict) for verdict in verdicts]
            at_unix_s = self._start_unix_s + now_s  # as the events have it; a Verdict has the time of its Sample
            self._verdicts += [msgspec.structs.replace(verdict, time_unix_s=at_unix_s) for verdict in verdicts]
            for verdict in verdicts:
                yield from self._episode(now_s, verdict)
            news = [self._engine.inbox.put(verdict, now_s) for verdict in verdicts]
            if any(news):
                yield from self._cycle(now_s, wait)
                due_s = now_s + cycle_s
        yield from noises
        self._flush(now_s)
        self._clock.now_unix_s += AFTER_END_S
        yield self._end(now_s)

    def _go_to(self, now_s: float, wait: Callable[[float], None]) -> None:
        if now_s - self._flushed_s >= FLUSH_S:
            self._flush(now_s)
        wait(now_s)
        self._clock.now_unix_s = self._start_unix_s + now_s

    def _flush(self, now_s: float) -> None:
        self.journal.record(*self._waiting)
        self._waiting.clear()
        self._flushed_s = now_s

    def _cycle(self, now_s: float, wait: Callable[[float], None]) -> Iterator[Event]:
        """One turn of the engine, as `slackwater.lbengine.service` takes it."""
        self._go_to(now_s, wait)
        self._engine.cycle(now_s)
        while self._engine.outbox:
            message = self._engine.outbox.popleft()
            self._waiting.append(message)
            if isinstance(message, Change):
                self._changes += 1
                yield WouldChange(at_s=now_s, change=message)
        self._engine.settle()

    def _noises(self) -> Iterator[Noise]:
        for label in self._recording.labels:
            for at_unix_s, begins in ((label.start_unix_s, True), (label.end_unix_s, False)):
                what = self._kinds.get(label.kind, label.kind)
                yield Noise(
                    at_s=at_unix_s - self._start_unix_s, node=label.node, kind=label.kind, what=what, begins=begins
                )

    def _episode(self, now_s: float, verdict: Verdict) -> Iterator[Event]:
        """The event of a Verdict whose state is another than before."""
        before, since_unix_s = self._state.get(verdict.node, ("calm", 0.0))
        if verdict.state == before:
            return
        self._state[verdict.node] = (verdict.state, verdict.since_unix_s)
        if verdict.state in SLOW:
            yield EpisodeBegin(
                at_s=now_s, node=verdict.node, state=verdict.state, resource=verdict.resource, because=verdict.path
            )
        elif before in SLOW:
            until_unix_s = verdict.since_unix_s
            yield EpisodeEnd(
                at_s=now_s,
                node=verdict.node,
                state=before,
                lasted_s=max(0.0, until_unix_s - since_unix_s),
                p95_before_ms=self._p95_ms(verdict.node, since_unix_s - BEFORE_S, since_unix_s - 1.0),
                p95_during_ms=self._p95_ms(verdict.node, since_unix_s, until_unix_s),
                because=verdict.path,
            )

    def _p95_ms(self, node: str, since_unix_s: float, until_unix_s: float) -> float | None:
        """The median of a node's p95 response times."""
        p95s_ms = [
            verdict.rt_p95_ms
            for verdict in self._verdicts
            if verdict.node == node
            and since_unix_s <= verdict.time_unix_s < until_unix_s
            and verdict.rt_p95_ms is not None
        ]
        return statistics.median(p95s_ms) if p95s_ms else None

    def _end(self, now_s: float) -> End:
        scores = score(self._recording, self._verdicts)
        delays_s = [noise.delay_s for noise in scores.noises if noise.delay_s is not None]
        return End(
            at_s=now_s,
            noises=len(scores.noises),
            found=len(delays_s),
            delay_s=statistics.median(delays_s) if delays_s else None,
            false_episodes=scores.false_episodes,
            changes=self._changes,
            description=self.opened.description,
        )
