"""What servers lost over time, as cells of a heat map: servers by times."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest

import msgspec

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, Losses
from slackwater.views.pool import NOTHING, duration
from slackwater.web.content.pool import episode_path, percent

RANGES = {"1h": (3600.0, 60.0), "24h": (86400.0, 900.0), "7d": (7 * 86400.0, 7200.0), "90d": (90 * 86400.0, 86400.0)}
"""Seconds of a heat map, and of one cell."""
MOST_LISTED = 60
"""Cells in the table that says the same as the picture."""
MAP_PX, ROW_PX = 900, (3, 18)
"""Height of the heat map, and of one of its rows at least and at most; as heat.js has them."""


class ServerHarm(msgspec.Struct):
    """What one server lost in the time of a heat map, a value a cell."""

    pool: str
    node: str
    lost_s: float
    """Seconds of its whole calm capacity that it lost: each episode counts its length times its highest severity."""
    lost: str
    """The same for people; a dash where nothing is known."""
    worst_url: str
    """The page of the episode that lost most in one cell; empty: there was none."""
    worst_unix_s: float | None
    """When that one began."""
    lost_percent: list[int | None]
    """Share of its calm capacity that was lost in each cell; None: nothing is known."""
    episodes: list[int]
    """Episodes in each cell."""
    worst_unix_ms: list[int]
    """When the worst of them began; 0: there was none."""


class HarmMap(msgspec.Struct):
    """What all servers lost from `since_unix_s` on, in steps of `step_s`."""

    since_unix_s: float
    until_unix_s: float
    step_s: float
    servers: list[ServerHarm]


class Cell(msgspec.Struct):
    """One cell in words."""

    pool: str
    node: str
    since_unix_s: float
    lost: str
    episodes: int
    url: str


def bounds(last: str, until_unix_s: float) -> tuple[float, float, float]:
    """Begin and end on whole steps, so that cells do not move as time passes; and the step."""
    last_s, step_s = RANGES[last]
    end = until_unix_s // step_s * step_s + (step_s if until_unix_s % step_s else 0.0)
    return end - last_s, end, step_s


def read(journal: Journal, pools: Sequence[PoolSettings], last: str, until_unix_s: float) -> HarmMap:
    """The heat map of a range that ends then. Raises JournalError."""
    since, until, step_s = bounds(last, until_unix_s)
    servers = []
    for pool in pools:
        for node, losses in sorted(journal.losses(pool.name, since, step_s, until).items()):
            servers.append(_harm(pool.name, node, losses))
    return HarmMap(since, until, step_s, servers)


def _harm(pool: str, node: str, losses: Losses) -> ServerHarm:
    cells = zip(losses.lost_s, losses.known_s, strict=True)
    worst = max(zip(losses.lost_s, losses.worst_unix_s, strict=True), key=lambda lost: (lost[1] is not None, lost[0]))[
        1
    ]
    total = sum(losses.lost_s)
    return ServerHarm(
        pool=pool,
        node=node,
        lost_s=round(total, 3),
        lost=duration(total) if total else "0 s",
        worst_url=episode_path(pool, node, worst) if worst is not None else "",
        worst_unix_s=worst,
        lost_percent=[round(100 * lost / known) if known > 0.0 else None for lost, known in cells],
        episodes=losses.episodes,
        worst_unix_ms=[0 if began is None else round(began * 1000) for began in losses.worst_unix_s],
    )


def narrower(last: str) -> str:
    """The shortest range that holds a whole cell of this one; empty where there is none that is shorter."""
    step_s = RANGES[last][1]
    fits = [name for name, (seconds, _) in RANGES.items() if step_s <= seconds < RANGES[last][0]]
    return fits[0] if fits else ""


def map_px(servers: int) -> int:
    """The heat map's height before the page's script has drawn it."""
    least, most = ROW_PX
    return servers * min(max(MAP_PX // max(servers, 1), least), most)


def cells(harm: HarmMap) -> tuple[list[Cell], int]:
    """The cells in which most was lost, and how many more had episodes."""
    lost_cells = [
        (server.lost_percent[slot] or 0, slot, number)
        for number, server in enumerate(harm.servers)
        for slot, count in enumerate(server.episodes)
        if count
    ]
    shown = [
        Cell(
            pool=server.pool,
            node=server.node,
            since_unix_s=harm.since_unix_s + slot * harm.step_s,
            lost=NOTHING if server.lost_percent[slot] is None else percent(lost / 100),
            episodes=server.episodes[slot],
            url=episode_path(server.pool, server.node, server.worst_unix_ms[slot] / 1000.0),
        )
        for lost, slot, number in nlargest(MOST_LISTED, lost_cells)
        for server in [harm.servers[number]]
    ]
    return shown, len(lost_cells) - len(shown)
