"""What operators have asked of a pool besides the pause: another mode, pinned weights, episodes ended by hand.

All of it ends by itself: a pin at its time, an ended episode with the Verdicts that it is about, a mode when the
configuration's mode changes. On disk, so that it outlives a restart. A pinned weight still passes the guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lbengine.baseline import Baseline, replace_durably
from lbengine.decision.decide import Pin
from slackwater.messages import Mode, Verdict


class ByHandError(Exception):
    """What was asked cannot be done or kept; the text says why."""


class Pinned(msgspec.Struct, frozen=True):
    """A pin as it is kept."""

    weight: int
    by: str
    for_s: float
    until_unix_s: float


class Ended(msgspec.Struct, frozen=True):
    """An episode that was ended by hand: the node's Verdicts of this state since then."""

    since_unix_s: float
    by: str


class Kept(msgspec.Struct):
    """The file."""

    mode: Mode | None = None
    instead_of: Mode | None = None
    """The configuration's mode when `mode` was asked for."""
    pins: dict[str, Pinned] = {}
    ended: dict[str, Ended] = {}
    """By node."""


@dataclass(frozen=True)
class _Store:
    path: Path

    def load(self) -> Kept:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, msgspec.DecodeError):
            return Kept(mode="observe", instead_of="act")  # somebody asked for something: hands off is the safe side

    def save(self, kept: Kept) -> None:
        try:
            if kept == Kept():
                self.path.unlink(missing_ok=True)
            else:
                replace_durably(self.path, msgspec.json.encode(kept) + b"\n")
        except OSError as error:
            raise ByHandError(f"{self.path}: cannot be kept: {error.strerror}; nothing was changed") from None


class ByHand:
    """The wishes in force for one pool. `now_s` is a monotonic clock, `wall_s` the wall's at the same moment."""

    def __init__(self, state_dir: Path, pool: str, configured: Mode) -> None:
        self._store = _Store(state_dir / f"by-hand-{pool}.json")
        self._kept = self._store.load()
        self._configured: Mode = configured
        self._until_s: dict[str, float] = {}

    @property
    def mode(self) -> Mode:
        """What the pool is to do: as asked for, while the configuration is what it was then."""
        asked = self._kept.mode
        return asked if asked is not None and self._kept.instead_of == self._configured else self._configured

    def set_mode(self, mode: Mode) -> None:
        """Raises ByHandError when it cannot be kept."""
        same = mode == self._configured
        self._change(mode=None if same else mode, instead_of=None if same else self._configured)

    def pin(self, server: str, weight: int, by: str, for_s: float, now_s: float, wall_s: float) -> None:
        """Raises ByHandError when it cannot be kept."""
        pinned = Pinned(weight, by, for_s, wall_s + for_s)
        self._change(pins={**self._kept.pins, server: pinned})
        self._until_s[server] = now_s + for_s

    def unpin(self, server: str) -> None:
        """Raises ByHandError when it is not pinned."""
        if server not in self._kept.pins:
            raise ByHandError(f"{server} is not pinned")
        self._change(pins={name: pinned for name, pinned in self._kept.pins.items() if name != server})
        self._until_s.pop(server, None)

    def pins(self, now_s: float, wall_s: float) -> dict[str, Pin]:
        """Those in force; one from before a restart lasts for what its wall time leaves, never longer than asked."""
        over = []
        for server, pinned in self._kept.pins.items():
            left_s = min(pinned.for_s, pinned.until_unix_s - wall_s)
            if now_s >= self._until_s.setdefault(server, now_s + left_s):
                over.append(server)
        for server in over:
            self.unpin(server)
        return {server: Pin(kept.weight, kept.by) for server, kept in self._kept.pins.items()}

    def end_episode(self, verdict: Verdict | None, node: str, by: str) -> None:
        """Raises ByHandError when the node is in no episode."""
        if verdict is None or verdict.state in ("calm", "unknown"):
            raise ByHandError(f"{node} is in no episode")
        self._change(ended={**self._kept.ended, node: Ended(verdict.since_unix_s, by)})

    def judged(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """The Verdicts, with those of an episode that was ended by hand as calm; a new episode counts again."""
        judged = dict(verdicts)
        over = []
        for node, ended in self._kept.ended.items():
            verdict = verdicts.get(node)
            if verdict is None:
                continue
            if verdict.state == "calm" or verdict.since_unix_s > ended.since_unix_s:
                over.append(node)
                continue
            why = f"its episode was ended by hand by {ended.by}"
            judged[node] = msgspec.structs.replace(verdict, state="calm", severity=0.0, path=[why])
        if over:
            self._change(ended={node: ended for node, ended in self._kept.ended.items() if node not in over})
        return judged

    def remarks(self) -> list[str]:
        """In words, for the cycle's sentence."""
        return [f"{node}'s episode was ended by hand by {ended.by}" for node, ended in self._kept.ended.items()]

    def _change(self, **fields: object) -> None:
        kept = msgspec.structs.replace(self._kept, **fields)
        self._store.save(kept)
        self._kept = kept


def may_pin(server: str, weight: int, baselines: Mapping[str, Baseline]) -> None:
    """Raises ByHandError for a server that is not governed or a weight above its baseline."""
    known = ", ".join(sorted(baselines)) or "none"
    if server not in baselines:
        raise ByHandError(f"no server `{server}` with a baseline weight; there are: {known}")
    if weight > baselines[server].weight:
        raise ByHandError(f"{server}'s baseline weight is {baselines[server].weight}; a pin may not be above it")
