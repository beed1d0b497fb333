"""How `slackwater status` looks on terminals of several widths."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from slackwater.controller.cli.tables import show
from slackwater.views.pool import PoolStatus
from slackwater.views.row import Row

NOW_UNIX_S = 1_700_000_000.0
REASON = "its requests take 12 times as long as those of the others, and it has no more of them than before"


def row(node: str, **more: Any) -> Row:
    fields: dict[str, Any] = {
        **{"server": node, "condition": "up", "state": "calm", "since_unix_s": NOW_UNIX_S - 3700.0},
        **{"weight": 100, "baseline": 100, "wanted": 100, "rps": 123.4, "share": 0.5, "share_wanted": 0.5},
        **{"rt_p50_ms": 2.1, "rt_p95_ms": 12.3, "rt_p99_ms": 45.6, "errors_per_s": 0.7, "cpu": None, "why": ""},
    }
    return Row(node=node, **fields | more)


def lines(columns: int, *rows: Row, **more: Any) -> list[str]:
    """What a terminal of this width shows."""
    fields: dict[str, Any] = {"mode": "act", "sentence": "2 servers read", "headline": "One server is slow", **more}
    view = PoolStatus(pool="web", rows=list(rows), **fields)
    text = StringIO()
    show([view], NOW_UNIX_S, Console(file=text, width=columns, highlight=False))
    return text.getvalue().splitlines()


ROWS = row("web1"), row("web2", state="slow", weight=20, in_flight=12, queue=4, summary=REASON)


@pytest.mark.parametrize("columns", [70, 80, 100, 120, 160, 240])
def test_rate_percentiles_errors_and_state_are_whole_on_every_terminal(columns: int) -> None:
    shown = lines(columns, *ROWS)
    head = next(line for line in shown if line.startswith("node"))
    second = next(line for line in shown if line.startswith("web2 "))
    assert [head.count(word) for word in ("state", "rps", "errors/s", "p50 ms", "p95 ms", "p99 ms")] == [1] * 6
    for cell in ("slow", "123.4", "0.7", "2.1", "12.3", "45.6"):
        assert cell in second
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in shown), "nothing is cut"
    assert "".join(REASON.split()) in "".join("".join(shown).split()), "the reason too"


def test_a_wide_terminal_has_all_columns_and_the_cpu_that_monitors_measure() -> None:
    head = next(line for line in lines(240, *ROWS) if line.startswith("node"))
    assert head.split()[-1] == "why"
    assert "cpu" not in head
    assert "sessions" in head
    monitored = lines(240, row("web1", cpu=0.25))
    assert any("25%" in line for line in monitored)


def test_a_pool_without_servers_has_no_table() -> None:
    assert "2 servers read" in lines(80)


def test_it_ends_with_what_to_do() -> None:
    assert lines(120, *ROWS)[-1].startswith("To do: wait some seconds"), "as it has just started"
