"""The page of the week, and marks of episodes: who may set one, what is refused, and where it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Verdict
from slackwater.web import create_app
from slackwater.web.users import Role, Users
from tests.support.web_settings import settings_in
from tests.support.web_story import MARKUP, T0, Clock, Texts, story

PASSWORD = "correct horse battery"
SINCE_MS = round((T0 - 42) * 1000)
EPISODE = f"/pools/web/episodes/web1/{SINCE_MS}"


class Site:
    """A dashboard over the story in observe mode; its lbengine records a mark as the real one does."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.journal = journal
        self.asked: list[Request] = []
        self.users = Users(folder)
        self.app = create_app(settings_in(folder), clock=Clock(), send=self.send)

    def send(self, pool: str, request: Request) -> str:
        self.asked.append(request)
        self.journal.record(
            Change(
                1,
                f"k{len(self.asked)}",
                pool,
                T0,
                request.action,
                request.target or "",
                None,
                request.mark,
                request.why,
                request.by,
                True,
                since_unix_s=request.since_unix_s,
            )
        )
        return f"{pool}: done"

    def client(self, role: Role | None = None) -> FlaskClient:
        client = self.app.test_client()
        if role:
            self.users.add_user(role, role, PASSWORD)
            form = {"name": role, "password": PASSWORD, "csrf_token": token_of(client)}
            assert client.post("/login", data=form).status_code == 302
        return client


def token_of(client: FlaskClient, path: str = "/login") -> str:
    field = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path).text)
    assert field is not None
    return field.group(1)


def text(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Journal.open(journal_path(tmp_path), clock=Clock()) as journal:
        journal.record(*story(mode="observe"))
        yield Site(tmp_path, journal)


def form_of(client: FlaskClient, path: str) -> dict[str, str]:
    """The hidden fields of the page's form for a mark."""
    (form,) = re.findall(r'<form class="control".*?</form>', client.get(path).text.replace("\n", " "))[:1]
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_the_page_says_what_it_would_have_done_and_how_to_switch(site: Site) -> None:
    page = text(site.client().get("/week").text)
    assert "would have been weight of web1: 100 → 0" in page
    assert "not known: no requests were measured in the calm before it" in page
    assert "1 weight change would have been made, on 1 of 2 servers: web1." in page
    assert "slackwater mode act --pool web" in page
    assert "0 a week" not in page, "less than a week was seen"


def test_where_it_acted_the_page_says_what_it_did(tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path), clock=Clock()) as journal:
        journal.record(*story(mode="act"))
        client = create_app(settings_in(tmp_path), clock=Clock()).test_client()
        page = text(client.get("/week").text)
        assert "What it did Slackwater" not in page
        assert " What it did 1 d" in re.sub(r" +", " ", page)
        promises = ("What it would have done", "Acting would have avoided", "would have been made", "had it acted")
        for wrong in (*promises, "0.0 s to 0.0 s", "switch, or do not"):
            assert wrong not in page, wrong
        assert "Harm avoided by acting not measured each episode" in page
        journal.record(Change(1, "c9", "web", T0 - 30, "weight", "web1", 100, 0, "x", "lbengine", False))
        assert "What it did, and what it would have done" in text(client.get("/week").text)


def test_only_the_spans_that_are_offered_are_taken(site: Site) -> None:
    client = site.client()
    assert 'aria-current="true">30 d</a>' in client.get("/week?days=30").text
    for wrong in ("0", "8", "x", "1e9", "-7", ""):
        answer = client.get(f"/week?days={wrong}")
        assert answer.status_code == 400
        assert "days: expected one of 1, 7, 30, 90" in answer.text


def test_the_page_says_which_machine_to_replace_and_what_it_cost(site: Site) -> None:
    for day in range(1, 5):
        since = T0 - 86400.0 * day
        slow = Verdict(1, "web2", "web", since + 9000.0, "interference", since, 0.8, ["run delay"], "m")
        site.journal.record(slow)
        site.journal.record(Verdict(1, "web2", "web", since + 9001.0, "calm", since + 9001.0, 0.0, [], "m"))
    page = text(site.client().get("/week").text)
    assert "Machines that were slow while others were not" in page
    assert "4 of 7 d with 5 min or more" in page
    assert "from 3 such days on" in page
    assert "replace this machine" in page
    assert "no replace.command is set" in page
    metrics = site.client().get("/metrics").text
    assert 'slackwater_node_worth_replacing{node="web2",pool="web"} 1' in metrics


@pytest.mark.parametrize("path", ["/week", EPISODE])
def test_an_operator_marks_an_episode_and_each_page_shows_it(site: Site, path: str) -> None:
    client = site.client("operator")
    form = form_of(client, path)
    answer = client.post("/control", data={**form, "mark": "deploy", "why": f"release 14 {MARKUP}"})
    assert (answer.status_code, answer.headers["Location"]) == (303, path)
    (request,) = site.asked
    assert (request.action, request.target, request.mark) == ("mark_episode", "web1", "deploy")
    assert (request.since_unix_s, request.by) == (T0 - 42, "operator")
    for shown in ("/week", EPISODE, "/episodes", "/changes"):
        raw = site.client().get(shown).text
        assert "deploy" in text(raw)
        assert "release 14" in text(raw)
        assert MARKUP not in raw
        assert "script" not in [tag for tag, given in Texts(raw).tags if not given.get("src")]
    weeks = site.client().get("/api/v1/week").json
    assert weeks is not None
    assert weeks["pools"][0]["episodes"][0]["marked"]["mark"] == "deploy"
    assert (weeks["totals"]["false_alarms"], weeks["totals"]["unmarked"]) == (1, 0)


def test_without_the_forms_token_or_the_role_nothing_is_marked(site: Site) -> None:
    client = site.client("operator")
    form = {**form_of(client, EPISODE), "mark": "deploy"}
    assert client.post("/control", data={**form, "csrf_token": "made up"}).status_code == 400
    viewer = site.client("viewer")
    assert "Mark</button>" not in viewer.get(EPISODE).text
    assert viewer.post("/control", data={**form, "csrf_token": token_of(viewer)}).status_code == 403
    nobody = site.client()
    assert nobody.post("/control", data={**form, "csrf_token": token_of(nobody)}).status_code == 302
    assert site.asked == []


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"mark": "party"}, 400, "mark"),
        ({"since_unix_s": T0}, 404, "no episode of web1 that began then"),
        ({"target": "web2"}, 404, "no episode of web2 that began then"),
        ({"since_unix_s": None}, 400, "needs `since_unix_s`"),
        ({"why": "x" * 501}, 400, "why"),
    ],
)
def test_a_mark_that_cannot_be_is_refused_in_words(
    site: Site, fields: dict[str, object], status: int, says: str
) -> None:
    bearer = {"Authorization": f"Bearer {site.users.add_token('deploys', 'operator')}"}
    good: dict[str, object] = {"action": "mark_episode", "target": "web1", "mark": "deploy", "since_unix_s": T0 - 42}
    client = site.client()
    answer = client.post("/api/v1/pools/web/control", json={**good, **fields}, headers=bearer)
    assert answer.status_code == status
    assert says in answer.text
    assert site.asked == []
    assert client.post("/api/v1/pools/web/control", json=good, headers=bearer).status_code == 200
    assert client.post("/api/v1/pools/web/control", json=good).status_code in (400, 401)
