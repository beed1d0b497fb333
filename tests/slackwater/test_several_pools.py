"""Commands about a server, or about all pools, where there are several pools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.clients import LocalClient
from slackwater.controller.cli.main import cli
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle, ServerState

Sent = list[tuple[str | None, dict[str, Any]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What lbengine would have been asked: (pool, request)."""
    asked: Sent = []

    def send(_: LocalClient, pool: str | None, **fields: Any) -> str:
        asked.append((pool, fields))
        return f"{pool}: done"

    monkeypatch.setattr(LocalClient, "send", send)
    return asked


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration of the pools `web` and `api`, and what the journal has of their servers."""
    pools = "".join(f'[[pool]]\nname = "{name}"\nbackend = "{name}"\nsocket = "/s"\n' for name in ("web", "api"))
    path = tmp_path / "controller.toml"
    path.write_text(f'state_dir = "{tmp_path}"\n{pools}')
    with Journal.open(journal_path(tmp_path)) as journal:
        for pool, names in {"web": ("web1", "both"), "api": ("api1", "both")}.items():
            servers = [ServerState(name, "up", 100, 100, 100) for name in names]
            journal.record(Cycle(1, pool, time.time(), "act", False, "roundrobin", "optimal", "", servers))
    return path


def run(site: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--config", str(site)])


@pytest.mark.parametrize(
    "command", [["pin", "api1", "20"], ["unpin", "api1"], ["end-episode", "api1"], ["ack", "api1"]]
)
def test_a_command_goes_to_the_pool_that_has_the_server(site: Path, sent: Sent, command: list[str]) -> None:
    assert run(site, *command).stdout == "api: done\n"
    ((pool, fields),) = sent
    assert (pool, fields["target"]) == ("api", "api1")


def test_nothing_is_sent_where_several_pools_have_the_server_or_none(site: Path, sent: Sent) -> None:
    assert "several pools have `both`, name one with --pool: web, api" in run(site, "pin", "both", "20").stderr
    assert "no pool has a server `api9`" in run(site, "pin", "api9", "20").stderr
    assert "no pool has a server `api9`" in run(site, "mark-episode", "api9", "deploy").stderr
    assert sent == []
    assert run(site, "pin", "both", "20", "--pool", "web").exit_code == 0


def test_the_mode_of_all_pools_is_switched_by_one_command(site: Path, sent: Sent) -> None:
    assert run(site, "mode", "observe", "--all", "--why", "3 a.m.").stdout == "web: done\napi: done\n"
    assert [(pool, fields["action"], fields["mode"]) for pool, fields in sent] == [
        ("web", "mode", "observe"),
        ("api", "mode", "observe"),
    ]
