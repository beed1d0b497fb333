"""Who may look and who may act: logins, tokens, CSRF, roles, and what stands in the log."""

from __future__ import annotations

import json
import logging
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient

from slackwater.controller.cli.web_commands import web as web_command
from slackwater.core.bus.bus import BusError
from slackwater.core.control import Refused
from slackwater.web import create_app
from slackwater.web.sessions import EndedSessions
from slackwater.web.users import Users, UsersError
from tests.support.login_site import PASSWORD, Site, token_of
from tests.support.web_settings import settings_in


def pause(client: FlaskClient, **more: str) -> Any:
    form = {"action": "pause", "pool": "web", "csrf_token": token_of(client, "/confirm/pause"), **more}
    return client.post("/control", data=form)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_operator_pauses_in_their_own_name(site: Site) -> None:
    answer = pause(site.logged_in("anna"), why="deploy", by="somebody else")
    assert answer.status_code == 303
    ((pool, request),) = site.asked
    assert (pool, request.action, request.by, request.why) == ("web", "pause", "anna", "deploy")


def test_without_the_forms_token_nothing_is_done(site: Site) -> None:
    client = site.logged_in("anna")
    for form in ({"action": "pause", "pool": "web"}, {"action": "pause", "pool": "web", "csrf_token": "made up"}):
        assert client.post("/control", data=form).status_code == 400
    assert site.asked == []
    assert client.post("/logout").status_code == 400
    assert site.client().post("/login", data={"name": "anna", "password": PASSWORD}).status_code == 400


def test_a_viewer_looks_and_may_not_act(site: Site) -> None:
    client = site.logged_in("victor")
    assert client.get("/confirm/pause").status_code == 403
    form = {"action": "pause", "pool": "web", "csrf_token": token_of(client)}
    answer = client.post("/control", data=form)
    assert answer.status_code == 403
    assert "victor is a viewer" in answer.text
    assert site.asked == []


def test_nobody_is_led_to_the_login(site: Site) -> None:
    answer = site.client().get("/confirm/pause")
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/login")


def test_a_wrong_password_and_an_unknown_name_look_the_same(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    texts = []
    with caplog.at_level(logging.INFO):
        for name in ("anna", "nobody"):
            client = site.client()
            form = {"name": name, "password": "a wrong password", "csrf_token": token_of(client)}
            answer = client.post("/login", data=form)
            assert answer.status_code == 401
            texts.append(re.sub(r'value="[^"]+"', "", answer.text))
    assert texts[0] == texts[1]
    assert "a wrong password" not in caplog.text
    assert "a login was refused" in caplog.text


def test_a_session_ends_by_time_by_a_new_password_and_by_removal(site: Site) -> None:
    client = site.logged_in("anna")
    site.now_unix_s += 12 * 3600 - 1
    assert client.get("/confirm/pause").status_code == 200
    site.now_unix_s += 2
    assert client.get("/confirm/pause").status_code == 302
    client = site.logged_in("anna")
    site.users.add_user("anna", "viewer", "another password")
    assert client.get("/confirm/pause").status_code == 302
    site.users.add_user("anna", "operator", PASSWORD)
    client = site.logged_in("anna")
    site.users.remove("user", "anna")
    assert client.get("/confirm/pause").status_code == 302


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(tmp_path: Path) -> None:
    for web, name, secure in (("", "slackwater", False), ('hosts = ["s.example"]\n', "__Host-slackwater", True)):
        app = create_app(settings_in(tmp_path, web))
        cookie = app.test_client().get("/login").headers["Set-Cookie"]
        assert cookie.startswith(f"{name}=")
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert ("Secure" in cookie) is secure


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", ""]
)
def test_a_login_leads_nowhere_else(site: Site, elsewhere: str) -> None:
    client = site.client()
    form = {"name": "anna", "password": PASSWORD, "next": elsewhere, "csrf_token": token_of(client)}
    assert client.post("/login", data=form).headers["Location"] == "/"


def test_off_loopback_one_has_to_log_in_to_look(tmp_path: Path) -> None:
    for web in ('listen = "0.0.0.0:8099"\n', 'hosts = ["s.example"]\n', 'read_without_login = "never"\n'):
        client = Site(tmp_path, web).client()
        assert client.get("/").headers["Location"] == "/login?next=/"
        for path in ("/api/v1/pools", "/metrics", "/events", "/api/v1/openapi.json"):
            assert client.get(path).status_code == 401, path
        assert client.get("/healthz").status_code == 503, "for everybody; there is no journal"
    assert (
        Site(tmp_path, 'listen = "0.0.0.0:8099"\nread_without_login = "always"\n').client().get("/").status_code == 503
    )


def test_hosts_are_those_of_the_settings(tmp_path: Path) -> None:
    client = Site(tmp_path, 'hosts = ["s.example"]\n').client()
    assert client.get("/healthz", headers={"Host": "s.example"}).status_code == 503
    assert client.get("/healthz", headers={"Host": "other.example"}).status_code == 400


# --- programs


def test_a_token_acts_without_a_cookie(site: Site) -> None:
    token = site.users.add_token("deploys", "operator")
    bearer = {"Authorization": f"Bearer {token}"}
    asked = {"action": "pin", "target": "web1", "weight": 0, "for_s": 60, "by": "root"}
    answer = site.client().post("/api/v1/pools/web/control", json=asked, headers=bearer)
    assert answer.json == {"sentence": "web: pin by deploys"}
    assert site.asked[0][1].target == "web1"


def test_tokens_that_are_wrong_removed_or_of_a_viewer_are_refused(site: Site) -> None:
    viewer, gone = site.users.add_token("grafana", "viewer"), site.users.add_token("gone", "operator")
    site.users.remove("token", "gone")
    for token, status in ((viewer, 403), (gone, 401), ("swt_made_up", 401), ("", 401)):
        bearer = {"Authorization": f"Bearer {token}"}
        answer = site.client().post("/api/v1/pools/web/control", json={"action": "pause"}, headers=bearer)
        assert answer.status_code == status
        assert answer.json is not None
        assert "error" in answer.json
    assert site.asked == []


@pytest.mark.parametrize("path", ["/", "/settings", "/login", "/nowhere"])
def test_a_page_that_is_asked_with_an_unknown_token_says_so(
    site: Site, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Anybody can send one: it is no fault, which would stand in the log with its traceback."""
    answer = site.client().get(path, headers={"Authorization": "Bearer swt_made_up"})
    assert answer.status_code == (404 if path == "/nowhere" else 401)
    assert caplog.text == ""


def test_where_the_users_file_is_damaged_each_page_says_so(site: Site) -> None:
    site.users.path.write_text("{")
    for path, status in (("/", 503), ("/nowhere", 404)):
        answer = site.client().get(path, headers={"Authorization": "Bearer swt_made_up"})
        assert answer.status_code == status


def test_a_program_without_a_token_is_told_what_it_lacks(site: Site) -> None:
    answer = site.client().post("/api/v1/pools/web/control", json={"action": "pause"})
    assert (answer.status_code, answer.json) == (401, {"error": "log in first, or send a token"})


def test_the_api_with_a_session_wants_the_forms_token_too(site: Site) -> None:
    client = site.logged_in("anna")
    assert client.post("/api/v1/pools/web/control", json={"action": "pause"}).status_code == 400
    headers = {"X-CSRFToken": token_of(client, "/confirm/pause")}
    assert client.post("/api/v1/pools/web/control", json={"action": "pause"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({"action": "jump"}, 400, "action 'jump' is not known"),
        ({"action": "pin", "target": "web1"}, 400, "`pin` needs `weight`, `for_s`"),
        ({"action": "pin", "target": "a;b", "weight": 1, "for_s": 1}, 400, "target"),
        ([], 400, "expected a JSON object"),
    ],
)
def test_what_is_wrong_with_a_control_is_reported(site: Site, asked: Any, status: int, says: str) -> None:
    bearer = {"Authorization": f"Bearer {site.users.add_token('t', 'operator')}"}
    answer = site.client().post("/api/v1/pools/web/control", json=asked, headers=bearer)
    assert answer.status_code == status
    assert answer.json is not None
    assert says in answer.json["error"]
    assert site.asked == []


@pytest.mark.parametrize(("error", "status"), [(Refused("no server `x`"), 409), (BusError("nobody answers"), 503)])
def test_what_lbengine_says_is_passed_on(site: Site, error: Exception, status: int) -> None:
    site.answer = error
    bearer = {"Authorization": f"Bearer {site.users.add_token('t', 'operator')}"}
    answer = site.client().post("/api/v1/pools/web/control", json={"action": "pause"}, headers=bearer)
    assert answer.status_code == status
    client = site.logged_in("anna")
    assert pause(client).status_code == 303
    assert str(error) in client.get("/changes").text


# --- the file of users


def test_secrets_are_kept_as_hashes_in_files_closed_to_others(site: Site, tmp_path: Path) -> None:
    token = site.users.add_token("grafana", "viewer")
    text = site.users.path.read_text()
    site.users.add_user("olga", "viewer", PASSWORD)
    text = site.users.path.read_text()
    assert PASSWORD not in text
    assert token not in text
    assert "scrypt:" in text
    for name in ("web-users.json", "web-session-key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_users_are_refused_in_words(site: Site) -> None:
    with pytest.raises(UsersError, match="expected at least 10"):
        site.users.add_user("short", "viewer", "short")
    with pytest.raises(UsersError, match="not kept"):
        site.users.add_user("a b", "viewer", PASSWORD)
    with pytest.raises(UsersError, match="no user `nobody`"):
        site.users.remove("user", "nobody")
    site.users.add_token("once", "viewer")
    with pytest.raises(UsersError, match="there is a token `once` already"):
        site.users.add_token("once", "viewer")
    assert [user.name for user in site.users.all()[0]] == ["anna", "victor"]
    site.users.path.write_bytes(b'{"users": [{"name": "\xff"}]}')
    with pytest.raises(UsersError, match="cannot be used"):
        site.users.all()


def test_people_and_tokens_are_kept_by_the_command(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n')

    def run(*words: str, stdin: str = "") -> str:
        done = CliRunner().invoke(web_command, [*words, "--config", str(config)], input=stdin)
        assert done.exit_code == 0, done.output
        return done.output

    assert run("user", "add", "anna", "--role", "operator", stdin=f"{PASSWORD}\n") == "anna may log in as operator\n"
    assert run("user", "list") == "anna\toperator\n"
    token = run("token", "add", "grafana").strip()
    assert Users(tmp_path).token(token) is not None
    assert run("token", "list") == "grafana\tviewer\n"
    run("token", "remove", "grafana")
    run("user", "remove", "anna")
    assert json.loads((tmp_path / "web-users.json").read_text()) == {"users": [], "tokens": []}
    for kind in ("user", "token"):
        assert f"no {kind} yet; `slackwater web {kind} add NAME` adds one" in run(kind, "list")
        refused = CliRunner().invoke(web_command, [kind, "add", "a b", "--config", str(config)])
        assert refused.exit_code == 2
        assert "expected at most 64 letters, digits and . _ @ -, with a letter or a digit first, got 'a b'" in (
            refused.output
        )


# --- logging out


def test_a_copy_of_a_session_ends_with_it(site: Site, tmp_path: Path) -> None:
    client = site.logged_in("anna")
    other = site.logged_in("anna")
    copy = site.client()
    cookie = client.get_cookie("slackwater")
    assert cookie is not None
    copy.set_cookie("slackwater", cookie.value)
    assert copy.get("/confirm/pause").status_code == 200
    assert client.post("/logout", data={"csrf_token": token_of(client, "/confirm/pause")}).status_code == 302
    assert copy.get("/confirm/pause").status_code == 302
    assert other.get("/confirm/pause").status_code == 200, "another session of the same person goes on"
    restarted = create_app(site.settings, clock=lambda: site.now_unix_s, send=site.ask).test_client()
    restarted.set_cookie("slackwater", cookie.value)
    assert restarted.get("/confirm/pause").status_code == 302
    kept = tmp_path / "web-ended-sessions"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert len(kept.read_text().splitlines()) == 1


def test_ended_sessions_stay_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.web.sessions.MOST", 3)
    ended = EndedSessions(tmp_path)
    for name in "abcd":
        ended.add(name)
    for known in (ended, EndedSessions(tmp_path)):
        assert [name in known for name in "abcd"] == [False, True, True, True]


def test_a_logout_holds_while_the_disk_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = EndedSessions(tmp_path)
    (tmp_path / "web-ended-sessions").mkdir()
    ended.add("a")
    assert "a" in ended
    assert "a logout may be forgotten at the next start" in caplog.text


def test_where_the_site_stands_is_told_to_those_who_may_look(tmp_path: Path) -> None:
    for web, is_told in (("", True), ('read_without_login = "never"\n', False)):
        page = Site(tmp_path, web).client().get("/login").text
        assert ("data-stands" in page) is is_told
    site = Site(tmp_path, 'read_without_login = "never"\n')
    assert "data-stands" in site.logged_in("victor").get("/settings").text
