"""After a command the next `status` shows what it did: the journal is waited for, where somebody writes it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slackwater.controller.cli.clients import LocalClient
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle


@pytest.fixture
def client(tmp_path: Path) -> LocalClient:
    config = tmp_path / "controller.toml"
    config.write_text(f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "be"\nsocket = "/none"\n')
    return LocalClient(config)


def cycle(age_s: float, paused: bool = False) -> Cycle:
    return Cycle(1, "web", time.time() - age_s, "act", paused, "roundrobin", "optimal", "kept", [])


def test_it_waits_until_a_later_cycle_is_on_record(
    client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(cycle(0.3))
        looks: list[float] = []

        def look_again(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 2:
                journal.record(cycle(0.0, paused=True))

        monkeypatch.setattr(time, "sleep", look_again)
        client.settle(["web"])
        recorded = journal.latest_cycle("web")
    assert recorded is not None
    assert recorded.paused
    assert len(looks) == 2


@pytest.mark.parametrize("age_s", [60.0, None], ids=["nobody writes it", "there is no journal"])
def test_it_does_not_wait_in_vain(
    client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float | None
) -> None:
    if age_s is not None:
        with Journal.open(journal_path(tmp_path)) as journal:
            journal.record(cycle(age_s))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    client.settle(["web"])
