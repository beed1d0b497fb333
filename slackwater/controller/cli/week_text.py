"""How `slackwater week` looks on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.table import Table

from slackwater.controller.cli.tables import console
from slackwater.views.chronic import MOST_MACHINES, Machine
from slackwater.views.harm import UNKNOWN
from slackwater.views.pool import SYMBOLS, WORDS, duration, milliseconds
from slackwater.views.week import Acting, PoolWeek, Totals, Week, WeekEpisode
from slackwater.views.why import MARKS

MOST_DONE = 2


def show(week: Week) -> None:
    """Prints the pools' totals, what acting would change, and the episodes."""
    out = console()
    for pool in week.pools:
        out.print(f"pool {pool.pool}, the last {week.days} d, mode {pool.mode or 'unknown'}", style="bold")
        for line in (*_totals(pool), *_acting(pool), *machine_lines(pool.machines)):
            out.print(f"  {line}")
        if pool.episodes:
            out.print(_table(pool.episodes))
            if _acted(pool):
                out.print("  what acting avoided is not measured; `slackwater why NODE` has each change's outcome")
            for text in dict.fromkeys(_reasons(pool.episodes)):
                out.print(f"  not known: {text}")


def _totals(pool: PoolWeek) -> list[str]:
    totals = pool.totals
    avoided = _amount(totals.avoided_s, totals, totals.avoided_unknown)
    is_known = totals.avoided_unknown < totals.episodes
    if is_known and totals.least_avoided_s is not None and totals.most_avoided_s is not None:
        least, most = duration(totals.least_avoided_s), duration(totals.most_avoided_s)
        avoided += f", {least} to {most}, by the usual error of predictions here"
    marks = [f"{count} {MARKS[mark]}" for mark, count in totals.marks.items() if count]
    if not totals.episodes:
        return ["no episode: no server was slow or failed by itself"]
    return [
        f"{totals.episodes} episode{'s' * (totals.episodes != 1)}, {totals.interference} of them beside a neighbour"
        f"{f', {totals.not_visible} with a cause that is not visible from the balancer' if totals.not_visible else ''};"
        f" marked: {', '.join(marks) or 'none'}, not marked: {totals.unmarked}; false alarms: {totals.false_alarms}",
        f"users' p95 above the limit: {_amount(totals.slow_s, totals, totals.slow_unknown)},"
        f" {totals.slow_requests:,.0f} requests took longer",
        *([f"avoided, had it acted (predicted): {avoided}"] if is_known or not _acted(pool) else []),
    ]


def machine_lines(machines: Sequence[Machine]) -> list[str]:
    """The costliest machines, a line each."""
    more = len(machines) - MOST_MACHINES
    return [
        *(f"machine {machine.node}: {machine.why}" for machine in machines[:MOST_MACHINES]),
        *([f"and {more} machine{'s' * (more > 1)} that lost less"] if more > 0 else []),
    ]


def _acted(pool: PoolWeek) -> bool:
    """Whether weights were set: then nothing was measured of what users would have felt without that."""
    return pool.acting is not None and pool.acting.made > 0


def _amount(seconds: float, totals: Totals, unknown: int) -> str:
    if unknown and unknown == totals.episodes:
        return "not known"
    return duration(seconds) + (f", and of {unknown} episode{'s' * (unknown != 1)} it is not known" if unknown else "")


def _acting(pool: PoolWeek) -> list[str]:
    acting = pool.acting
    if acting is None:
        return []
    lines = [f"unequal servers: {pool.evenness}"] if pool.evenness else []
    lines += [f"weight changes that were made: {acting.made}"] if acting.made else []
    if acting.lowest_weight is not None:
        lines.append(_lowered(acting))
    if pool.mode == "observe":
        lines.append(f"to switch: slackwater mode act --pool {pool.pool}")
    return lines


def _lowered(acting: Acting) -> str:
    share = "" if acting.smallest_share is None else f", smallest share {acting.smallest_share:.0%}"
    besides = "in observe mode " if acting.made else ""
    return (
        f"{besides}acting would have made {acting.weight_changes} weight change{'s' * (acting.weight_changes != 1)}"
        f" on {len(acting.lowered)} of {acting.servers}"
        f" servers, at most {acting.most_at_once} lowered at once; lowest weight {acting.lowest_weight} of"
        f" {acting.lowest_baseline}{share}"
    )


def _table(episodes: list[WeekEpisode]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    for heading in ("began", "node", "state", "lasted", "slow", "avoided"):
        table.add_column(heading, no_wrap=True)
    for heading in ("done, or would have been", "it was"):
        table.add_column(heading, overflow="fold")
    for episode in episodes:
        table.add_row(*_cells(episode))
    return table


def _reasons(episodes: list[WeekEpisode]) -> Iterator[str]:
    """Why amounts are not known."""
    for episode in episodes:
        yield from (UNKNOWN[word] for word in (episode.harm.slow_unknown, episode.harm.avoided_unknown) if word)


def _cells(episode: WeekEpisode) -> list[str]:
    lasted = "goes on" if episode.until_unix_s is None else duration(episode.until_unix_s - episode.since_unix_s)
    if episode.unseen_since_unix_s is not None:
        lasted = f"at least {duration(max(0.0, episode.unseen_since_unix_s - episode.since_unix_s))}"
    slow, avoided = (
        "not known" if value is None else duration(value) for value in (episode.harm.slow_s, episode.harm.avoided_s)
    )
    done = "; ".join(episode.done[:MOST_DONE]) + ("; ..." if len(episode.done) > MOST_DONE else "")
    if episode.rt_p95_ms is not None:
        done += f"; p95 {milliseconds(episode.rt_p95_ms)} -> {milliseconds(episode.rt_p95_predicted_ms)} predicted"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(episode.since_unix_s))
    state = f"{SYMBOLS[episode.state]} {WORDS[episode.state]}"
    marked = "" if episode.marked is None else MARKS[episode.marked.mark]
    if done and not episode.applied:
        done = f"would: {done}"
    return [began, episode.who or episode.node, state, lasted, slow, avoided, done or "nothing", marked]
