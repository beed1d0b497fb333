"""The command line through the dashboard's API: the same answers as on the controller itself, and refusals in words."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import cli
from slackwater.core.control import Refused, Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Message
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.served_app import served
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, Clock, story


@dataclass
class Dashboard:
    """A real one over a recorded pool, on loopback; a login is needed to look."""

    folder: Path
    url: str
    operator: str
    viewer: str
    asked: list[tuple[str, Request]] = field(default_factory=list)

    def run(self, *arguments: str, token: str | None = None) -> Result:
        shown = {"SLACKWATER_TOKEN": self.operator if token is None else token}
        return CliRunner().invoke(cli, [*arguments, "--url", self.url], env=shown)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("state")
    users = Users(folder)
    dashboard = Dashboard(folder, "", users.add_token("deploys", "operator"), users.add_token("wall", "viewer"))

    def ask(pool: str, request: Request) -> str:
        dashboard.asked.append((pool, request))
        if request.action == "resume":
            raise Refused("lbengine refused: it is not paused")
        return f"{pool}: {request.action} done"

    with Journal.open(journal_path(folder), clock=Clock()) as journal:
        messages: list[Message] = story()
        journal.record(*messages)
        app = create_app(settings_in(folder, 'read_without_login = "never"\n'), clock=Clock(), send=ask)
        with served(app) as dashboard.url:
            yield dashboard


def test_status_is_the_pools_table(dashboard: Dashboard) -> None:
    result = dashboard.run("status", "--json", token=dashboard.viewer)
    assert result.exit_code == 0, result.output
    (pool,) = json.loads(result.stdout)["pools"]
    assert {row["node"]: (row["state"], row["weight"]) for row in pool["rows"]} == {
        "web1": ("interference", 0),
        "web2": ("calm", 100),
    }


def test_log_gives_the_changes_and_none_that_are_too_old(dashboard: Dashboard) -> None:
    result = dashboard.run("log", "--json", "--pool", "web")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["c1"]
    assert dashboard.run("log", "--json", "--since", "30s").stdout == ""


def test_ages_are_by_the_dashboards_clock(dashboard: Dashboard) -> None:
    """The recorded Changes are of T0, long ago by this machine's clock, and 42 s ago by the dashboard's."""
    assert abs(time.time() - T0) > 3600.0
    assert '"c1"' in dashboard.run("log", "--json", "--since", "1m").stdout
    assert re.search(r"web1 .*interference +42 s ", dashboard.run("status").stdout)
    assert json.loads(dashboard.run("status", "--json").stdout)["time_unix_s"] == pytest.approx(T0, abs=60.0)


def test_why_names_the_servers_where_it_knows_none_of_this_name(dashboard: Dashboard) -> None:
    result = dashboard.run("why", "wbe1")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: web has no server `wbe1` and no episode of one; it has: web1, web2\n",
    )
    assert dashboard.run("why", "wbe1", "--json").exit_code == 1


def test_why_shows_the_story(dashboard: Dashboard) -> None:
    result = dashboard.run("why", "web1")
    assert result.stdout.startswith("web1 (web): interference since ")
    assert ": 100 → 0, by Slackwater: interference: run delay 14x" in result.stdout
    assert dashboard.run("why", "web2").stdout == "web2 (web): no episode within a week\n"


def test_a_temporary_override_reaches_lbengine_in_the_tokens_name(dashboard: Dashboard) -> None:
    result = dashboard.run("pin", "web1", "20", "--for", "30m", "--why", "deploy")
    assert (result.exit_code, result.stdout) == (0, "web: pin done\n")
    pool, request = dashboard.asked[-1]
    assert (pool, request.by, request.target, request.weight, request.for_s, request.why) == (
        *("web", "deploys", "web1", 20, 1800.0, "deploy"),
    )


@pytest.mark.parametrize(
    ("words", "token", "expected"),
    [
        (["resume"], None, "lbengine refused: it is not paused (status 409)"),
        (["pause"], "viewer", "wall is a viewer; this needs an operator (status 403)"),
        (["status"], "", "log in first, or send a token (status 401); give one with --token-file or SLACKWATER_TOKEN"),
        (["status"], "wrong", "this token is unknown (status 401); give one"),
        (["status", "--pool", "nope"], None, "no pool `nope`; http://127.0.0.1:"),
        (["log", "--pool", "nope"], None, "no pool `nope`; http://127.0.0.1:"),
        (["pause", "--pool", "nope"], None, "no pool `nope`; http://127.0.0.1:"),
    ],
)
def test_a_refusal_is_one_line_in_the_apis_words(
    dashboard: Dashboard, words: list[str], token: str | None, expected: str
) -> None:
    result = dashboard.run(*words, token=dashboard.viewer if token == "viewer" else token)
    assert result.exit_code == 1
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_token_may_be_in_a_file(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{dashboard.viewer}\n")
    assert dashboard.run("status", "--token-file", str(file), token="wrong").exit_code == 0
    missing = dashboard.run("status", "--token-file", str(tmp_path / "none"))
    assert missing.stderr == f"error: {tmp_path}/none: the token cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("slackwater.example.org", "is no address of a dashboard; expected such as https://"),
        ("file:///etc/passwd", "is no address of a dashboard"),
        ("http://slackwater.example.org", "the token would cross the network in the clear"),
    ],
)
def test_an_address_that_will_not_do_is_refused_before_anything_is_sent(url: str, expected: str) -> None:
    result = CliRunner().invoke(cli, ["status", "--url", url], env={"SLACKWATER_TOKEN": "t"})
    assert result.exit_code == 1
    assert expected in result.stderr


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Redirects, or answers with something else; notes what it was shown."""

    shown: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.shown.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/there")  # type: ignore[index]
        else:
            self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: Any) -> None:
        """Keeps stderr for what is tested."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    Elsewhere.shown = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_is_not_followed_with_the_token(elsewhere: str) -> None:
    result = CliRunner().invoke(cli, ["status", "--url", f"{elsewhere}/moved"], env={"SLACKWATER_TOKEN": "t"})
    assert (result.exit_code, result.stderr) == (1, f"error: {elsewhere}/moved: Found (status 302)\n")
    assert Elsewhere.shown == [("/moved/api/v1/pools", "Bearer t")]


def test_something_else_at_the_address_is_reported(elsewhere: str) -> None:
    result = CliRunner().invoke(cli, ["status", "--url", elsewhere])
    assert result.exit_code == 1
    assert "does not answer as this version of slackwater expects" in result.stderr


def test_nobody_at_the_address_is_one_line() -> None:
    result = CliRunner().invoke(cli, ["status", "--url", "http://127.0.0.1:1"])
    assert re.fullmatch(r"error: http://127\.0\.0\.1:1: Connection refused\n", result.stderr)


def test_the_week_and_a_mark_of_its_episode(dashboard: Dashboard) -> None:
    result = dashboard.run("week", "--json", "--days", "30")
    assert result.exit_code == 0, result.output
    (pool,) = json.loads(result.stdout)["pools"]
    assert [(episode["node"], episode["applied"]) for episode in pool["episodes"]] == [("web1", True)]
    shown = dashboard.run("week", "--pool", "web").stdout
    assert "1 episode, 1 of them beside a neighbour; marked: none, not marked: 1; false alarms: 0" in shown
    assert "not known: " in shown
    result = dashboard.run("mark-episode", "web1", "deploy", "--why", "release 14")
    assert (result.exit_code, result.stdout) == (0, "web: mark_episode done\n")
    _, request = dashboard.asked[-1]
    assert (request.target, request.mark, request.since_unix_s) == ("web1", "deploy", T0 - 42)
    assert (request.by, request.why) == ("deploys", "release 14")


def test_a_mark_of_an_episode_that_there_was_not_is_refused(dashboard: Dashboard) -> None:
    asked = len(dashboard.asked)
    for words in (["web2", "deploy"], ["web1", "deploy", "--at", "2020-01-01 10:00"]):
        result = dashboard.run("mark-episode", *words)
        assert result.exit_code == 1
        assert "no episode" in result.stderr
    assert dashboard.run("mark-episode", "web1", "party").exit_code == 2
    assert len(dashboard.asked) == asked
