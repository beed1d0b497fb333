"""How `slackwater status` and `slackwater log` look on a terminal, and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from slackwater.core import messages
from slackwater.core.messages import Change, State
from slackwater.views.change_lines import who
from slackwater.views.pool import PoolStatus, describe_change
from slackwater.views.reasons import expected, of_change
from slackwater.views.row import CONDITIONS, SYMBOLS, WORDS, Row, duration
from slackwater.views.standing import standing

__all__ = ["PoolStatus", "as_json", "change_as_json", "change_as_line", "console", "show", "watch"]

PIPE_COLUMNS = 240
"""Width without a terminal: lines are not wrapped for a file or grep."""
LEAST_REASON_COLUMNS = 40
"""Where a terminal leaves less room beside the figures, the reasons stand below them."""
NODE, STATE, SINCE, WEIGHT, SESSIONS, CPU, WHY = "node", "state", "since", "weight", "sessions", "cpu", "why"
"""Headings of `slackwater status`."""
STYLES: dict[State, str] = {
    "calm": "green",
    "interference": "bold red",
    "slow": "bold red",
    "errors": "bold red",
    "overload": "yellow",
    "all_slow": "magenta",
    "unknown": "dim",
}


def show(views: list[PoolStatus], now_unix_s: float, out: Console | None = None) -> None:
    """Prints the pools' tables."""
    out = out or console()
    out.print(_render(views, now_unix_s, out))


def watch(look: Callable[[], list[PoolStatus]], now_unix_s: Callable[[], float], every_s: float) -> None:
    """Prints them again and again in the same place, until Ctrl-C."""
    out = console()
    try:
        with Live(_render(look(), now_unix_s(), out), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(_render(look(), now_unix_s(), out), refresh=True)
    except KeyboardInterrupt:
        return


def as_json(views: list[PoolStatus], now_unix_s: float) -> str:
    """`{"time_unix_s": ..., "pools": [...]}` with the fields of `slackwater.views.pool.PoolStatus`."""
    text = msgspec.json.encode({"time_unix_s": now_unix_s, "pools": views})
    return msgspec.json.format(text, indent=2).decode()


def change_as_json(change: Change) -> str:
    """One line of JSON, by `schema/change.json`."""
    return messages.encode(change).decode()


def change_as_line(change: Change) -> str:
    """`2026-11-21 07:14:00.123 web: weight of web1: 100 → 0, by Slackwater: interference`."""
    seconds = int(change.time_unix_s)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    milliseconds = int((change.time_unix_s - seconds) * 1000)
    done = describe_change(change) if change.applied else f"would: {describe_change(change)}"
    reasons = [text for text in (of_change(change), expected(change)) if text]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return f"{moment}.{milliseconds:03d} {change.pool}: {done}, by {who(change)}{why}"


def console() -> Console:
    """The console of this terminal; a file or pipe gets long lines."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def _render(views: list[PoolStatus], now_unix_s: float, out: Console) -> RenderableType:
    parts: list[RenderableType] = []
    for view in views:
        sentence = f"last cycle: {view.sentence}" if view.stale and view.age_s is not None else view.sentence
        parts += [_headline(view), *_table(view, now_unix_s, out), Text(sentence, style="dim")]
        parts += [Text(f"unequal servers: {view.evenness}", style="dim"), Text()] if view.evenness else [Text()]
    if not views:
        return Group()
    stands = standing(views)
    parts.append(Text(f"{stands.symbol} {stands.state}: {stands.sentence}", style="dim"))
    return Group(*parts, Text(f"To do: {stands.todo}", style="bold"))


def _headline(view: PoolStatus) -> Text:
    words = [f"pool {view.pool}"]
    if view.mode is not None:
        words += [
            f"mode {view.mode}",
            *(["PAUSED"] if view.paused else []),
            f"law {view.law}",
            f"balance {view.balance}",
        ]
    if view.age_s is not None:
        words.append(f"last cycle {duration(view.age_s)} ago")
    line = Text(", ".join(words), style="bold")
    if view.stale:
        age = "nothing was recorded yet" if view.age_s is None else f"nothing new for {duration(view.age_s)}"
        line.append(f"\nSTALE: {age}", style="bold red")
    line.append(f"\n{view.headline}")
    return line


def _table(view: PoolStatus, now_unix_s: float, out: Console) -> list[RenderableType]:
    """The figures, and the reasons beside them or below. A narrow terminal lacks the columns that matter least."""
    rows = [_cells(row, view.balancer, now_unix_s) for row in view.rows]
    shown = list(rows[0]) if rows else []
    if all(row.cpu is None for row in view.rows):  # only monitors measure it
        shown = [heading for heading in shown if heading != CPU]
    for heading in (SESSIONS, SINCE, CPU, f"in {view.balancer}", WEIGHT):
        if _width(_figures(rows, shown), out) > out.width:
            shown = [column for column in shown if column != heading]
    table = _figures(rows, shown)
    if _width(table, out) + LEAST_REASON_COLUMNS > out.width:
        return [table, *(Text(f"{row.node}: {row.summary}") for row in view.rows if row.summary)]
    table = _figures(
        [cells | {WHY: Text(row.summary)} for cells, row in zip(rows, view.rows, strict=True)], [*shown, WHY]
    )
    return [table]


def _width(table: Table, out: Console) -> int:
    return Measurement.get(out, out.options.update(width=PIPE_COLUMNS), table).maximum


def _figures(rows: Sequence[Mapping[str, RenderableType]], shown: Sequence[str]) -> Table:
    """The columns with these headings."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for heading in shown:
        is_text = heading in (NODE, STATE, SINCE, WHY) or heading.startswith("in ")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != WHY, overflow="fold")
    for cells in rows:
        table.add_row(*(cells[heading] for heading in shown))
    return table


def _cells(row: Row, balancer: str, now_unix_s: float) -> dict[str, RenderableType]:
    """By heading, in their order."""
    taken = f" ({row.resource})" if row.resource not in (None, "unclear") else ""
    return {
        NODE: row.node if row.server in ("", row.node) else f"{row.node} ({row.server})",
        STATE: Text(f"{SYMBOLS[row.state]} {WORDS[row.state]}{taken}", style=STYLES[row.state]),
        SINCE: "" if row.since_unix_s is None else duration(max(0.0, now_unix_s - row.since_unix_s)),
        f"in {balancer}": Text(
            "-" if row.condition is None else CONDITIONS[row.condition], style="bold red" if row.out else ""
        ),
        WEIGHT: _weight(row),
        SESSIONS: _number(row.in_flight, "{:.0f}") + (f" + {row.queue} queued" if row.queue else ""),
        "rps": _number(row.rps, "{:.1f}"),
        "errors/s": Text(
            _number(row.errors_per_s, "{:.1f}"), style="bold red" if row.peers_failed_share is not None else ""
        ),
        "p50 ms": _number(row.rt_p50_ms, "{:.1f}"),
        "p95 ms": _number(row.rt_p95_ms, "{:.1f}"),
        "p99 ms": _number(row.rt_p99_ms, "{:.1f}"),
        CPU: _number(row.cpu, "{:.0%}"),
    }


def _weight(row: Row) -> str:
    """Now/baseline, and what lbengine wants where that differs (observe mode)."""
    if row.weight is None:
        return "-"
    wanted = f" (wants {row.wanted})" if row.wanted not in (None, row.weight) else ""
    return f"{row.weight}/{row.baseline}{wanted}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
