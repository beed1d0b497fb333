"""The baselines' file. It is written every half minute, a few nodes a tick, so that no tick waits for thousands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from slackwater.core.files import bytes_of, write_whole
from slackwater.detector.features.baseline import LAST_HEARD, StoredBaselines
from slackwater.detector.judge import Judge

VERSION = 3
"""Version of the file. In 1 the probe's cycles had the name of hardware's; in 2 nodes had no age of their own."""
MAX_AGE_S = 7 * 86400.0
"""A stored baseline is dropped when its node was last heard of longer ago than this."""
EVERY_S = 30.0
NODES_A_STEP = 16


class BaselineCheckpoint:
    """Encodes the pools' baselines step by step; `step` returns the whole file's content every `EVERY_S`."""

    def __init__(self, judges: Mapping[str, Judge], now_s: float) -> None:
        self._judges = judges
        self._left: list[tuple[str, list[str]]] = []
        self._encoded: dict[str, dict[str, msgspec.Raw]] = {}
        self._began_s = now_s

    def step(self, now_s: float, now_unix_s: float) -> bytes | None:
        """The file's content once all nodes are encoded, else None. Call in each tick; `now_s` is monotonic seconds."""
        if not self._left and now_s - self._began_s < EVERY_S:
            return None
        if not self._left:
            self._began_s = now_s
            self._encoded = {pool: {} for pool in self._judges}
            for pool, judge in self._judges.items():
                nodes = judge.baseline_nodes()
                self._left += [
                    (pool, nodes[first : first + NODES_A_STEP]) for first in range(0, len(nodes), NODES_A_STEP)
                ]
        if self._left:
            pool, nodes = self._left.pop()
            for node, cells in self._judges[pool].export_baselines(now_unix_s, nodes).items():
                self._encoded[pool][node] = msgspec.Raw(msgspec.json.encode(cells))
        if self._left:
            return None
        encoded, self._encoded = self._encoded, {}
        return msgspec.json.encode({"v": VERSION, "pools": encoded})

    def due_s(self) -> float:
        """Time when `step` next has something to do, in monotonic seconds; in the middle of a file it has passed."""
        return self._began_s + (0.0 if self._left else EVERY_S)

    def whole(self, now_unix_s: float) -> bytes:
        """The file's content now, encoded in one go."""
        pools = {pool: judge.export_baselines(now_unix_s) for pool, judge in self._judges.items()}
        return msgspec.json.encode({"v": VERSION, "pools": pools})


def save(path: Path, content: bytes) -> None:
    """Writes the content of a `BaselineCheckpoint`, atomically. Raises OSError."""
    write_whole(path, content)


def load(path: Path, now_unix_s: float) -> dict[str, StoredBaselines]:
    """Reads a file that `save` wrote, without nodes that are too old: pool -> nodes; empty when there is no file.

    Raises ValueError for any other file.
    """
    try:
        content = msgspec.json.decode(bytes_of(path))
        if content["v"] != VERSION:
            raise ValueError(f"version {content['v']}, expected {VERSION}")
        pools = msgspec.convert(content["pools"], dict[str, StoredBaselines])
        return {
            pool: {
                node: cells for node, cells in nodes.items() if 0 <= now_unix_s - float(cells[LAST_HEARD]) <= MAX_AGE_S
            }
            for pool, nodes in pools.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not the detector's baselines: {error!r}") from None
