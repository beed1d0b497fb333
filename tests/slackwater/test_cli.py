"""The command line: what it prints, how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import COMMANDS, HIDDEN, cli, is_expected
from slackwater.core import control
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus
from slackwater.core.config import ConfigError
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Cycle, Evenness, ServerState, Verdict
from tests.support.nats_process import open_server
from tests.support.real_processes import free_address

IN_TIME_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration of two pools whose bus nobody listens on."""
    path = tmp_path / "controller.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\n'
        f'[bus]\nurl = "nats://{free_address()}"\n'
        f'[[pool]]\nname = "web"\nbackend = "be"\nsocket = "{tmp_path}/haproxy.sock"\n'
        f'[pool.servers]\ns3 = "host3"\n'
        f'[[pool]]\nname = "api"\nbackend = "api"\nsocket = "{tmp_path}/haproxy.sock"\n'
    )
    return path


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock stands still: however long the test takes, what it wrote is as old as it says."""
    now_unix_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_unix_s)


def run(*arguments: str | Path, **options: Any) -> Result:
    return CliRunner().invoke(cli, [str(part) for part in arguments], **options)


def open_journal(site: Path) -> Journal:
    state = site.parent / "state"
    state.mkdir(exist_ok=True)
    return Journal.open(journal_path(state))


def cycle(age_s: float, paused: bool = False) -> Cycle:
    servers = [
        ServerState("host1", "up", 12, 100, 12, rps=9.5, why="run delay 14.2x its calm baseline\x1b[2J"),
        ServerState("host2", "up", 100, 100, 40, rps=120.0),
        ServerState("s3", "up", 100, 100, 100, rps=121.0),
    ]
    sentence = "web: host1 100 -> 12"
    return Cycle(1, "web", time.time() - age_s, "act", paused, "roundrobin", "optimal", sentence, servers)


def verdict(node: str, state: Any, since_s: float) -> Verdict:
    now = time.time()
    resource: Any = "cpu" if state == "interference" else None
    return Verdict(1, node, "web", now, state, now - since_s, 0.5, ["run delay is high"], "start", resource)


def change(identity: str, age_s: float, **fields: Any) -> Change:
    usual: dict[str, Any] = {
        "v": 1,
        "id": identity,
        "pool": "web",
        "time_unix_s": time.time() - age_s,
        "what": "weight",
        "target": "host1",
        "before": 100,
        "after": 12,
        "why": f"reason {identity}",
        "by": "lbengine",
        "applied": True,
    }
    return Change(**{**usual, **fields})


# --- the frame


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom slackwater.controller.cli.main import cli\n"
        "result = CliRunner().invoke(cli, ['--help'])\nassert result.exit_code == 0 and 'status' in result.output\n"
        "heavy = {'numpy', 'sklearn', 'flask', 'nats', 'rich', 'msgspec', 'pyarrow', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pause_does_not_wait_for_the_detector() -> None:
    heavy = {"numpy", "sklearn", "rich", "flask"}
    program = f"import sys, slackwater.controller.cli.operator_commands\nsys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))


@pytest.mark.parametrize("name", [*COMMANDS, *HIDDEN])
def test_every_command_has_help_with_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for path in leaves(command, (name,)):
        result = run(*path, "--help")
        assert result.exit_code == 0, result.output
        assert "Example" in result.output, " ".join(path)
        assert "slackwater " + " ".join(path) in result.output.partition("Example")[2], " ".join(path)


def test_hidden_command_is_not_in_the_overview() -> None:
    overview = run("--help").output
    assert all(name in overview for name in COMMANDS)
    assert "\n  run " not in overview


def test_commands_for_developers_come_last() -> None:
    operators, _, developers = run("--help").output.partition("For developers:")
    assert "\n  lab " in developers
    assert "\n  governor " in operators


def test_unknown_command_is_refused() -> None:
    result = run("statsu")
    assert result.exit_code == 2
    assert "statsu" in result.output


def test_only_errors_that_explain_themselves_lose_their_traceback() -> None:
    assert is_expected(ConfigError("x"))
    assert is_expected(PermissionError(13, "denied"))
    assert not is_expected(BrokenPipeError(32, "pipe"))
    assert not is_expected(KeyError("a fault of ours"))


def test_a_fault_of_ours_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def faulty() -> None:
        raise ValueError("no such luck")

    monkeypatch.setitem(COMMANDS, "faulty", (f"{__name__}:faulty", "Fails."))
    monkeypatch.setattr(sys.modules[__name__], "faulty", faulty, raising=False)
    done = run("faulty")
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert re.fullmatch(
        r"error: this is a fault of Slackwater's own: ValueError at slackwater/test_cli\.py:\d+: no such luck; for a"
        r" bug report run it again with SLACKWATER_TRACEBACK=1, which prints where it comes from",
        line,
    )
    monkeypatch.setenv("SLACKWATER_TRACEBACK", "1")
    assert isinstance(run("faulty").exception, ValueError)


def test_console_command_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.controller.cli.main", "status"],
        capture_output=True,
        text=True,
        env={**os.environ, "SLACKWATER_CONFIG": str(tmp_path / "none.toml")},
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path}/none.toml: cannot be read: No such file or directory; beside HAProxy `slackwater init`"
        " writes it; --config names another file\n"
    )
    assert done.stdout == ""


# --- config


def test_config_check_says_ok(site: Path) -> None:
    result = run("config", "check", site)
    assert (result.exit_code, result.output) == (0, "OK\n")


def test_config_check_names_line_and_nearest_setting(site: Path) -> None:
    site.write_text(site.read_text() + "\n[lbengine]\nleas_s = 2\n")
    lines = len(site.read_text().splitlines())
    result = run("config", "check", site)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {site}:{lines}: unknown setting `leas_s` in lbengine")
    assert "`lease_s`" in result.stderr


# --- status


def test_status_without_a_journal_is_an_error(site: Path) -> None:
    result = run("status", "--config", site)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "journal.sqlite" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (site.parent / "state").exists()


@pytest.mark.usefixtures("still")
def test_status_shows_weights_states_and_reasons(site: Path) -> None:
    with open_journal(site) as journal:
        journal.record(cycle(0.1), verdict("host1", "interference", 75), verdict("host2", "calm", 5))
    result = run("status", "--config", site, "--pool", "web")
    assert result.exit_code == 0, result.output
    headline, _, *rows = result.output.splitlines()
    assert "pool web, mode act, law optimal, balance roundrobin, last cycle" in headline
    assert "STALE" not in result.output
    cells = {row.split()[0]: row for row in rows if row.split()}
    assert "interference (cpu)" in cells["host1"]
    assert "1 min 15 s" in cells["host1"]
    assert "12/100" in cells["host1"]
    assert "run delay 14.2x its calm baseline" in cells["host1"]
    assert "100/100 (wants 40)" in cells["host2"]
    assert "host3 (s3)" in cells["host3"]
    assert "web: host1 100 -> 12" in result.output
    assert "\x1b" not in result.output


def test_status_says_loudly_that_data_is_old(site: Path) -> None:
    with open_journal(site) as journal:
        journal.record(cycle(3600.0, paused=True))
    result = run("status", "--config", site)
    assert result.exit_code == 0
    assert "STALE: nothing new for 1 h" in result.output
    assert "PAUSED" in result.output
    assert "STALE: nothing was recorded yet" in result.output  # the pool `api`


@pytest.mark.usefixtures("still")
def test_status_as_json(site: Path) -> None:
    with open_journal(site) as journal:
        journal.record(cycle(0.1))
    answer = json.loads(run("status", "--config", site, "--json").stdout)
    assert [pool["pool"] for pool in answer["pools"]] == ["web", "api"]
    assert answer["pools"][0]["stale"] is False
    assert answer["pools"][0]["rows"][0]["weight"] == 12
    assert {"rps", "errors_per_s", "rt_p50_ms", "rt_p95_ms", "rt_p99_ms", "state"} <= answer["pools"][0]["rows"][
        0
    ].keys()
    assert run("status", "--config", site, "--json", "--watch").exit_code == 2


def test_status_of_an_unknown_pool_is_refused(site: Path) -> None:
    result = run("status", "--config", site, "--pool", "wbe")
    assert (result.exit_code, result.stderr) == (1, "error: no pool `wbe`; the configuration has: web, api\n")


# --- why


def test_why_finds_the_pool_that_has_the_node(site: Path) -> None:
    with open_journal(site) as journal:
        servers = [ServerState("host2", "up", 1, 1, 1)]
        journal.record(cycle(1), Cycle(1, "api", time.time(), "observe", False, "random", "optimal", "kept", servers))
    assert run("why", "--config", site, "host1").output == "host1 (web): no episode within a week\n"
    assert run("why", "--config", site, "s3").output == "s3 (web): no episode within a week\n"
    assert run("why", "--config", site, "--pool", "api", "host2").exit_code == 0
    both = run("why", "--config", site, "host2")
    assert (both.exit_code, both.stderr) == (1, "error: several pools have `host2`, name one with --pool: web, api\n")
    nobody = run("why", "--config", site, "host9")
    removed = "of one that was removed, name the pool with --pool: web, api"
    assert (nobody.exit_code, nobody.stderr) == (1, f"error: no pool has a server `host9`; {removed}\n")
    mistyped = run("why", "--config", site, "--pool", "web", "host9")
    has = "it has: host1, host2, host3"
    assert mistyped.stderr == f"error: web has no server `host9` and no episode of one; {has}\n"


def test_why_says_when_a_server_came_up(site: Path) -> None:
    now = time.time()
    with open_journal(site) as journal:
        journal.record(cycle(1))
        for number, (before, after, cause) in enumerate(((100, 11, "away"), (11, 44, "warm_up"), (44, 100, "warm_up"))):
            about = {"time_unix_s": now - 9 + number, "before": before, "after": after, "cause": cause}
            journal.record(change(f"up{number}", 0.0, **about))
    said = run("why", "--config", site, "host1").output
    assert "host1 (web): the last times it went away or came up" in said
    assert said.index("100 → 11") < said.index("11 → 44") < said.index("44 → 100")


def test_why_says_what_a_server_weighs_in_calm(site: Path) -> None:
    with open_journal(site) as journal:
        why = "it carries 0.60 of what host2 carries"
        servers = [
            ServerState("host1", "up", 60, 100, 60, why=why, cause="capacity", calm_weight=60, carries=0.6, advised=60),
            ServerState("host2", "up", 100, 100, 100, cause="calm", carries=1.0, advised=100),
        ]
        even = Evenness("even", 0.5, 0.51, 0.51)
        journal.record(Cycle(1, "web", time.time(), "act", False, "random", "optimal", "kept", servers, evenness=even))
    said = run("why", "--config", site, "host1").output
    assert "host1 (web): its weight in calm is 60 of 100; now: it carries 0.60 of what host2 carries" in said
    assert "weight in calm" not in run("why", "--config", site, "host2").output
    status = run("status", "--config", site, "--pool", "web").output
    assert "has weight 60 of 100" not in status, "it is no exception"
    assert "unequal servers" not in status, "weights are as advised"
    with open_journal(site) as journal:
        even = Evenness("uneven", 0.5, 0.78, 0.61)
        journal.record(Cycle(1, "web", time.time(), "act", False, "random", "optimal", "kept", servers, evenness=even))
    status = run("status", "--config", site, "--pool", "web").output
    assert (
        "unequal servers: host1 carries 0.60 of what host2 carries; with weights 60, 100 the fullest would be" in status
    )


# --- log


def test_log_shows_changes_with_reasons_oldest_first(site: Path) -> None:
    with open_journal(site) as journal:
        assert "no change yet" in run("log", "--config", site).output
        assert run("log", "--config", site, "--json").output == ""
        journal.record(
            change("new", 1, applied=False),
            change("old", 7200),
            change("forged", 100, why="first\nsecond"),
            change("other", 50, pool="api", what="pause", target="api", before=None, after=None, by="alice"),
        )
    lines = run("log", "--config", site).output.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith(" web: weight of host1: 100 → 12, by Slackwater: reason old")
    assert lines[1].endswith("by Slackwater: first␊second")
    assert lines[2].endswith(" api: pause, by alice: reason other")
    assert lines[3].endswith(" web: would: weight of host1: 100 → 12, by Slackwater: reason new")
    assert len(run("log", "--config", site, "--since", "10m").output.splitlines()) == 3
    assert run("log", "--config", site, "--limit", "1").output.splitlines() == lines[3:]
    assert run("log", "--config", site, "--pool", "api").output.splitlines() == lines[2:3]
    ids = [json.loads(line)["id"] for line in run("log", "--config", site, "--json").output.splitlines()]
    assert ids == ["old", "forged", "other", "new"]


@pytest.mark.parametrize("text", ["10", "m", "-1m", "10 minutes", "1y", ""])
def test_log_refuses_what_is_no_duration(site: Path, text: str) -> None:
    result = run("log", "--config", site, "--since", text)
    assert result.exit_code == 2
    assert "such as 30s, 10m, 2h, 1d" in result.output


def test_log_follows_until_interrupted(site: Path) -> None:
    with open_journal(site) as journal:
        journal.record(change("a", 5))
        command = [
            sys.executable,
            "-u",
            "-m",
            "slackwater.controller.cli.main",
            "log",
            "--config",
            str(site),
            "--json",
            "--follow",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            watchdog = threading.Timer(IN_TIME_S, process.kill)
            watchdog.start()
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert json.loads(process.stdout.readline())["id"] == "a"
                journal.record(change("b", 0))
                assert json.loads(process.stdout.readline())["id"] == "b"
                journal.record(change("late", 2), change("c", 0))
                assert json.loads(process.stdout.readline())["id"] == "late"
                assert json.loads(process.stdout.readline())["id"] == "c"
                process.send_signal(signal.SIGINT)
                rest, errors = process.communicate()
            finally:
                watchdog.cancel()
            assert (rest, errors, process.returncode) == ("", "", 0)


# --- pause, resume


def test_pause_without_a_bus_is_a_clear_error(site: Path) -> None:
    result = run("pause", "--config", site, "--pool", "web")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no NATS at nats://127.0.0.1:")


def test_a_command_before_the_first_start_says_that_the_controller_does_not_run(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'state_dir = "{tmp_path}/never/made"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n')
    result = run("mode", "act", "--config", config)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the controller does not run, so `mode` reaches nobody")


def test_pause_needs_the_pools_name_when_there_are_several(site: Path) -> None:
    for command in (["pause"], ["mode", "act"]):
        result = run(*command, "--config", site)
        said = "error: there are several pools; name one with --pool, or all with --all: web, api\n"
        assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("end-episode", "web1\n"), "Expected a name of letters, digits, `_`, `-`, `:` and `.`"),
        (("pin", "web1;x", "5"), "Expected a name of letters, digits, `_`, `-`, `:` and `.`"),
        (("ask-samples", "web1", "--for", "1h"), "`for_s` is 3600; a monitor is asked for at most 60 s"),
        (("pin", "web1", "5", "--for", "2d"), "for_s"),
        (("pause", "--why", "x" * 501), "length <= 500"),
    ],
)
def test_a_command_that_cannot_be_is_refused_before_anybody_is_asked(
    site: Path, words: tuple[str, ...], says: str
) -> None:
    result = run(*words, "--config", site, "--pool", "web")
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.startswith("error: ")
    assert "no NATS" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_pause_and_resume_ask_lbengine(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "WAIT_S", IN_TIME_S)
    monkeypatch.setattr(control, "ANSWERS_WITHIN_S", IN_TIME_S)
    listen = site.read_text().partition('url = "nats://')[2].partition('"')[0]
    asked: list[dict[str, Any]] = []
    ready, done = threading.Event(), threading.Event()

    async def answer_for_a_while() -> None:
        async def handle(question: dict[str, Any]) -> dict[str, Any]:
            asked.append(question)
            if question["action"] == "resume":
                raise ValueError("it is not paused")
            return {"sentence": "web: paused by you"}

        bus = await Bus.connect(f"nats://{listen}", "test")
        await bus.serve("slackwater.control.web", handle)
        await bus.flush()
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.02)
        await bus.close()

    with subprocess.Popen(open_server(tmp_path, listen)) as server:
        try:
            nats_server.wait_until_it_answers(listen, tmp_path / "nats.log")
            alone = run("pause", "--config", site, "--pool", "web")
            answerer = threading.Thread(target=asyncio.run, args=(answer_for_a_while(),))
            answerer.start()
            assert ready.wait(IN_TIME_S)
            paused = run("pause", "--config", site, "--pool", "web", "--why", "deploy", env={"SUDO_USER": "alice"})
            resumed = run("resume", "--config", site, "--pool", "web")
            all_of_them = run("pause", "--config", site, "--all")
            done.set()
            answerer.join()
        finally:
            server.terminate()
    assert alone.exit_code == 1
    assert "is `slackwater serve` running?" in alone.stderr
    assert "without a pause `systemctl stop slackwater-controller` gives your weights back too" in alone.stderr
    assert (paused.exit_code, paused.stdout) == (0, "web: paused by you\n")
    assert asked[0] == {"action": "pause", "by": "alice", "why": "deploy"}
    assert resumed.exit_code == 1
    assert resumed.stderr == "error: lbengine refused: it is not paused\n"
    assert (all_of_them.exit_code, all_of_them.stdout) == (1, "web: paused by you\n"), "one fails, the other is done"
    assert all_of_them.stderr.startswith("error: api: ")


def test_all_pools_and_one_pool_exclude_each_other(site: Path) -> None:
    result = run("pause", "--config", site, "--all", "--pool", "web")
    assert result.exit_code == 2
    assert "--all and --pool exclude each other." in result.stderr
