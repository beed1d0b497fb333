"""`slackwater serve` with all its parts replaces a machine, on a real HAProxy and bus; only the nodes are made up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, State, Verdict
from tests.support.nats_process import Server
from tests.support.played_monitors import Monitors
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, web_servers
from tests.support.real_processes import is_alive
from tests.support.replaced_site import program
from tests.support.served_site import HOSTS, Site, until, weights

pytestmark = needs_haproxy
HOUR_S, DAY_S = 3600.0, 86400.0


class ReplacedServe(Site):
    """host1 was slow beside a neighbour for five hours on each of the last five days."""

    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        super().__init__(folder, balancer)
        self.bus = Server(folder)
        self.bus.start()
        self.nodes = Monitors(self.bus.url, HOSTS)
        with Journal.open(journal_path(self.state)) as journal:
            for day in range(5, 0, -1):
                since = time.time() - day * DAY_S
                journal.record(_verdict("interference", since, since + 5 * HOUR_S))
                journal.record(_verdict("calm", since + 5 * HOUR_S, since + 6 * HOUR_S))

    def begin(self, command: str, mode: str = "act") -> None:
        self.write(bus=f'url = "{self.bus.url}"', mode=mode, more=f'[replace]\ncommand = "{command}"\n')
        self.process = self.serve()

    def steps(self) -> list[Change]:
        return [change for change in self.changes_by("replace") if change.what == "replace"][::-1]

    def clean(self) -> None:
        super().clean()
        self.nodes.close()
        self.bus.stop()


def _verdict(state: State, since: float, now: float) -> Verdict:
    return Verdict(1, "host1", "web", now, state, since, 0.8 if state == "interference" else 0.0, ["run delay"], "m")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ReplacedServe]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        served = ReplacedServe(tmp_path, balancer)
        try:
            yield served
        finally:
            served.clean()


def script(folder: Path, text: str) -> str:
    return program(folder, f"#!/bin/sh\n{text}\n")


def test_the_machine_that_the_dry_run_names_is_drained_and_the_command_is_called(
    site: ReplacedServe, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    site.begin(script(tmp_path, f"cat > {told}"))
    until(lambda: "next: host1" in site.cli("replace").stdout, "the dry run names it")

    def is_planned() -> bool:
        (plan,) = json.loads(site.cli("replace", "--json").stdout)
        return bool((plan["node"], plan["mode"], plan["machines"][0]["advice"]) == ("host1", "act", "replace"))

    until(is_planned, "the same for programs")
    assert not told.exists(), "the dry run replaces none"
    until(lambda: "replaced" in [change.cause for change in site.steps()], "it is replaced")
    assert [change.cause for change in site.steps()] == ["chronic", "replacing", "replaced"]
    about = json.loads(told.read_text())
    assert (about["node"], about["servers"]) == ("host1", ["host1"])
    assert about["machine"]["lost_share"] > 0.02
    until(lambda: set(weights(site.balancer).values()) == {100}, "it has its requests back")
    drains = [change for change in site.changes_by("lbengine") if change.cause == "drained"]
    assert drains, "lbengine drained it"
    assert drains[0].why.startswith("drained for replace: slow by itself for")
    printed = site.cli("replace").stdout
    assert "no machine was slow by itself" in printed, "what was before does not count any more"
    assert "replacement of host1: done, by Slackwater" in site.cli("log").stdout
    assert "replacement of host1: the command is called, by Slackwater: it is empty" in site.cli("why", "host1").stdout


def test_a_command_that_runs_dies_with_the_controller_and_the_weight_is_back(
    site: ReplacedServe, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    site.begin(script(tmp_path, f"echo $$ > {pid}; exec sleep 1000"))
    until(lambda: pid.exists() and pid.read_text().strip(), "the command runs")
    assert site.balancer.weight("host1") == 0
    part = site.children()["replace"]
    site.process.kill()
    until(lambda: not is_alive(part), "its parts end")
    until(lambda: not is_alive(int(pid.read_text())), "the command is killed")
    until(lambda: site.balancer.weight("host1") == 100, "it has its requests back")
    site.serve()
    until(lambda: site.steps()[-1].cause == "replace_unknown", "it is closed")
    assert "not now: at most 1 machine in 24 h" in site.cli("replace").stdout
    assert [change.cause for change in site.steps()] == ["chronic", "replacing", "replace_unknown"]


def test_a_reload_lets_the_command_go_on_and_it_is_called_once(site: ReplacedServe, tmp_path: Path) -> None:
    ran, go_on = tmp_path / "ran", tmp_path / "go on"
    command = script(tmp_path, f"echo $$ >> {ran}; echo still at it >&2; while [ ! -e '{go_on}' ]; do sleep 0.05; done")
    site.begin(command)
    until(lambda: ran.exists() and ran.read_text().strip(), "the command runs")
    part = site.children()["replace"]
    site.write(bus=f'url = "{site.bus.url}"', mode="act", more=f'[replace]\ncommand = "{command}"\ndays = 6\n')
    assert "started anew: replace, web" in site.cli("reload").stdout
    assert site.children()["replace"] == part
    assert is_alive(int(ran.read_text()))
    assert site.balancer.weight("host1") == 0
    go_on.touch()
    until(lambda: "replaced" in [change.cause for change in site.steps()], "it is replaced")
    until(lambda: site.children().get("replace") not in (part, None), "the part has the new settings")
    until(lambda: site.balancer.weight("host1") == 100, "it has its requests back")
    assert [change.cause for change in site.steps()] == ["chronic", "replacing", "replaced"]
    assert len(ran.read_text().split()) == 1
    assert "replacement of host1: the command: still at it" in site.log.read_text()


def test_a_command_that_is_not_there_is_found_by_check(site: ReplacedServe, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    site.write(more=f'[replace]\ncommand = "{missing}"\n')
    assert f"replace.command: {missing}: there is no such program" in site.cli("check").stdout
