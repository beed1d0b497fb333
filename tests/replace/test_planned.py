"""What the journal and the settings say of the next replacement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.config import ControllerSettings, parse
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, ChangeCause, Cycle, Sample, ServerState, State, Verdict
from slackwater.replace.service import planned
from slackwater.views.replacements import Plan

NOW = 1_795_000_000.0
HOUR_S, DAY_S = 3600.0, 86400.0
NODES = ("web1", "web2", "web3")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """web1 was slow for five hours on each of five days."""
    with Journal.open(journal_path(tmp_path), clock=lambda: NOW) as opened:
        for node in NODES:
            opened.record(Sample(1, node, "web", NOW, "boot", 1, 1.0))
        for day in range(5, -1, -1):
            since = NOW - day * DAY_S - 6 * HOUR_S
            opened.record(verdict("interference", since, since + 5 * HOUR_S))
            opened.record(verdict("calm", since + 5 * HOUR_S, since + 5.5 * HOUR_S))
        opened.record(cycle("web", *NODES))
        yield opened


def verdict(state: State, since: float, now: float) -> Verdict:
    return Verdict(1, "web1", "web", now, state, since, 0.8 if state == "interference" else 0.0, ["run delay"], "m")


def cycle(pool: str, *servers: str) -> Cycle:
    shown = [ServerState(server, "up", 100, 100, 100) for server in servers]
    return Cycle(1, pool, NOW, "act", False, "roundrobin", "optimal", "", shown)


def next_step(journal: Journal, folder: Path, command: str = "/bin/true", replace: str = "", more: str = "") -> Plan:
    text = (
        f'state_dir = "{folder}"\n[replace]\ncommand = "{command}"\n{replace}\n'
        f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n{more}'
    )
    settings: ControllerSettings = parse(text, "test")
    return planned(journal, settings, settings.pool[0], NOW).plan


def step(cause: ChangeCause, at_s: float, id_: str, follows: str = "") -> Change:
    return Change(
        1, id_, "web", NOW + at_s, "replace", "web3", None, "x", "w", "replace", True, follows=follows, cause=cause
    )


def test_a_machine_that_pays_is_next(journal: Journal, tmp_path: Path) -> None:
    plan = next_step(journal, tmp_path)
    assert (plan.node, plan.obstacle) == ("web1", None)


def test_no_server_is_drained_for_a_command_that_cannot_be_called(journal: Journal, tmp_path: Path) -> None:
    plan = next_step(journal, tmp_path, command=f"{tmp_path}/none")
    assert (plan.obstacle, plan.waits) == ("not_callable", f"{tmp_path}/none: there is no such program")
    assert next_step(journal, tmp_path, command="replace").obstacle == "not_callable"
    assert next_step(journal, tmp_path, command="").obstacle is None, "the advice is the same without a command"


def test_a_machine_that_serves_another_pool_too_is_not_taken_from_it(journal: Journal, tmp_path: Path) -> None:
    other = '[[pool]]\nname = "api"\nbackend = "api"\nsocket = "/s"\n[pool.servers]\napi1 = "web1"\n'
    journal.record(cycle("api", "api1", "api2"))
    plan = next_step(journal, tmp_path, more=other)
    assert plan.obstacle == "other_pool"
    assert plan.waits == "api1 of pool api is web1 too, and would not be drained"
    assert next_step(journal, tmp_path, more=other.replace("web1", "web9")).obstacle is None


def test_a_command_of_the_last_day_counts_where_its_drain_began_before(journal: Journal, tmp_path: Path) -> None:
    journal.record(step("chronic", -DAY_S - 60.0, "a"))
    journal.record(step("replacing", -DAY_S + 30.0, "b", "a"))
    journal.record(step("replace_failed", -DAY_S + 40.0, "c", "a"))
    plan = next_step(journal, tmp_path, replace="days = 1\nchronic_days = 1")
    assert (plan.node, plan.obstacle) == ("web1", "most_per_day")
