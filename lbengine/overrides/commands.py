"""What people and the second stage ask of an engine: pauses, modes, pins, episodes ended by hand, drains and limits."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

from lbengine.balancer import BalancerError, Snapshot
from lbengine.baseline import Baseline, BaselineStore
from lbengine.decision.ramp import Position
from lbengine.inbox import Inbox
from lbengine.overrides.overrides import ByHand, may_pin
from lbengine.overrides.pause import Pause, PauseStore
from lbengine.overrides.temporary import Wishes
from lbengine.writer import Writer
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import Mode


class Asked(abc.ABC):
    """The part of an engine that answers; the engine has what stands here, and turns."""

    pool: PoolSettings
    settings: LbengineSettings
    inbox: Inbox
    acting: bool
    paused: Pause | None
    _who: str
    _wall: Callable[[], float]
    _store: BaselineStore
    _writer: Writer
    _pauses: PauseStore
    _by_hand: ByHand
    _wishes: Wishes
    _baselines: dict[str, Baseline] | None
    _put_back_due: bool
    _positions: dict[str, Position]
    _yielded: frozenset[str]
    _last: Snapshot | None

    @abc.abstractmethod
    def cycle(self, now_s: float) -> str: ...

    @abc.abstractmethod
    def _hands_off(self) -> str: ...

    @abc.abstractmethod
    def _node(self, server: str) -> str: ...

    def pause(self, by: str, why: str, now_s: float) -> str:
        """Puts the baseline weights back and keeps hands off until `resume`. Raises PauseError when it can't be kept.

        When the balancer can't be reached now, the weights are put back as soon as it can.
        """
        if self.paused is not None:
            return f"{self.pool.name}: {self._hands_off()} already"
        pause = Pause(by=by, why=why, since_unix_s=self._wall())
        self._pauses.save(pause)
        self._writer.note("pause", by, why)
        self._wishes.forget()
        self.paused = pause
        self._put_back_due = self._store.path.exists()
        try:
            return self.cycle(now_s)
        except BalancerError as error:
            return f"{self.pool.name}: {self._hands_off()}; the weights are put back when {self._who} answers ({error})"

    def resume(self, by: str, why: str, now_s: float) -> str:
        """Ends a pause; the weights that the balancer shows then are the baseline. Raises PauseError."""
        if self.paused is None:
            return f"{self.pool.name}: not paused"
        self._pauses.remove()
        self._writer.note("resume", by, why)
        self.paused = None
        self._put_back_due = self._put_back_due and not self.acting
        return self._then_cycle(f"resumed by {by}", now_s)

    def set_mode(self, mode: Mode, by: str, why: str, now_s: float) -> str:
        """Observes or acts from now on; to observe puts the baseline weights back first. Raises ByHandError."""
        before = self._by_hand.mode
        if mode == before:
            return f"{self.pool.name}: mode is {mode} already"
        self._by_hand.set_mode(mode)
        self._writer.try_record(self._writer.change("mode", self.pool.name, before, mode, why, by, applied=True))
        self.acting = self._writer.acting = mode == "act"
        self._wishes.forget()
        if self.acting:  # what was imagined in observe mode was never set
            self._positions, self._yielded, self._writer.limits = {}, frozenset(), {}
            self._put_back_due = self._put_back_due and self.paused is not None
        else:
            self._put_back_due = self._store.path.exists()
        return self._then_cycle(f"mode is {mode} by {by}", now_s)

    def pin(self, server: str, weight: int, for_s: float, by: str, why: str, now_s: float) -> str:
        """Holds a server at a weight, within the guard's bounds, for a time. Raises ByHandError."""
        may_pin(server, weight, self._baselines or {})
        self._by_hand.pin(server, weight, by, for_s, now_s, self._wall())
        told = f"{why + ': ' if why else ''}for {for_s:g} s"
        self._writer.try_record(self._writer.change("pin", server, None, weight, told, by, applied=True))
        return self._then_cycle(f"{server} is pinned at {weight} by {by} for {for_s:g} s", now_s)

    def unpin(self, server: str, by: str, why: str, now_s: float) -> str:
        """Ends a pin. Raises ByHandError when there is none."""
        self._by_hand.unpin(server)
        self._writer.try_record(self._writer.change("unpin", server, None, None, why, by, applied=True))
        return self._then_cycle(f"{server} is no longer pinned", now_s)

    def end_episode(self, node: str, by: str, why: str, now_s: float) -> str:
        """Takes a node for calm until the episode that it is in is over. Raises ByHandError."""
        self._by_hand.end_episode(self.inbox.fresh(now_s, self.settings.lease_s).get(node), node, by)
        self._writer.try_record(self._writer.change("end_episode", node, None, None, why, by, applied=True))
        return self._then_cycle(f"{node}'s episode was ended by hand by {by}", now_s)

    def acknowledge(self, node: str, by: str, why: str) -> str:
        """Records that somebody has seen it."""
        self._writer.try_record(self._writer.change("acknowledge", node, None, None, why, by, applied=True))
        return f"{self.pool.name}: {node} acknowledged by {by}"

    def _then_cycle(self, said: str, now_s: float) -> str:
        try:
            return f"{self.pool.name}: {said}; {self.cycle(now_s).removeprefix(f'{self.pool.name}: ')}"
        except BalancerError as error:
            return f"{self.pool.name}: {said}; {self._who} doesn't answer yet ({error})"

    def wish(self, question: Mapping[str, Any], now_s: float) -> str:
        """Takes what the second stage asks for; what it comes to is seen in the cycles. Raises ValueError."""
        if self.paused is not None or not self.acting:
            raise ValueError(self._hands_off())
        node = question.get("node")
        servers = [s.name for s in self._last.servers if self._node(s.name) == node] if self._last is not None else []
        if not servers:
            raise ValueError(f"no server of {self.pool.name} is the node {node!r}")
        told = [self._wishes.take(server, question, now_s) for server in servers]
        return f"{self.pool.name}: {'; '.join(told)}"
