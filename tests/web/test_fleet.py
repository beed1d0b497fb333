"""The page of all servers of all pools: rows, search, groups, order, harm and its heat map; without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Sample
from slackwater.views.pool import NOTHING
from slackwater.web import create_app
from slackwater.web.content import harm
from slackwater.web.content.fleet import FleetServer, servers_of
from slackwater.web.fleet import Fleet
from slackwater.web.reader import JournalReader
from tests.support.fleet_story import settings_in, site, verdicts
from tests.support.web_story import MARKUP, T0, Clock


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path), clock=Clock()) as opened:
        yield opened


@pytest.fixture
def client(tmp_path: Path, journal: Journal) -> FlaskClient:
    journal.record(*site())
    return create_app(settings_in(tmp_path), clock=Clock()).test_client()


def order(client: FlaskClient, query: str) -> list[str]:
    """The servers and the groups' titles in the order of the table."""
    answer = client.get(f"/fleet?{query}")
    assert answer.status_code == 200, answer.text
    table = answer.text.partition('class="grid long fleet"')[2].partition("<template")[0]
    return re.findall(r'(?:data-field="node"|data-field="title")>([^<]*)<', table)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["web2", "web1", "shop1", "web10"]),
        ("sort=name", ["shop1", "web1", "web2", "web10"]),
        ("sort=state", ["web1", "shop1", "web2", "web10"]),
        ("sort=load", ["web1", "shop1", "web2", "web10"]),
        ("sort=p95", ["web2", "web10", "web1", "shop1"]),
        ("q=web1", ["web1", "web10"]),
        ("q=EAST+web1&sort=name", ["web1", "web10"]),
        ("q=small", ["web1"]),
        ("q=interference", ["web1"]),
        ("q=nothing+such", []),
        ("group=pool&sort=name", ["shop", "shop1", "web", "web1", "web2", "web10"]),
        ("group=zone&sort=name", ["east", "web1", "web10", "west", "web2", NOTHING, "shop1"]),
        ("group=type&sort=name&q=web", ["large", "web2", "small", "web1", NOTHING, "web10"]),
        ("last=1h", ["web1", "shop1", "web2", "web10"]),
    ],
)
def test_servers_are_searched_grouped_and_sorted_without_a_script(
    client: FlaskClient, query: str, expected: list[str]
) -> None:
    assert order(client, query) == expected


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("group=colour", "group: expected one of none, pool, zone, type"),
        ("sort=luck", "sort: expected one of harm"),
        ("last=2h", "last: expected one of 1h, 24h, 7d, 90d"),
        ("until=tomorrow", "until: expected a Unix time"),
        (f"q={'x' * 201}", "q: expected at most 200 characters"),
    ],
)
def test_what_cannot_be_used_is_refused(client: FlaskClient, query: str, sentence: str) -> None:
    answer = client.get(f"/fleet?{query}")
    assert answer.status_code == 400
    assert sentence in answer.text


def test_the_interface_refuses_other_ranges(client: FlaskClient) -> None:
    answer = client.get("/api/v1/fleet/harm?last=2h")
    assert answer.status_code == 400
    assert "last: expected one of 1h, 24h" in answer.text


def test_harm_is_time_of_whole_capacity_and_leads_to_the_worst_episode(client: FlaskClient) -> None:
    page = client.get("/fleet").text
    rows = dict(re.findall(r'data-key="([^"]+)" data-state.*?data-field="lost">([^<]*)<', page))
    assert rows == {"web/web1": "5 min", "web/web2": "9 min", "web/web10": "0 s", "shop/shop1": "6.0 s"}
    began = round((T0 - 600) * 1000)
    path = f"/pools/web/episodes/web1/{began}"
    assert f'href="{path}"' in page
    assert client.get(path).status_code == 200


def test_load_is_shown_as_a_share_of_that_in_calm_where_weights_set_shares(tmp_path: Path, journal: Journal) -> None:
    reader = JournalReader(settings_in(tmp_path), Clock())

    def loads() -> dict[str, str]:
        return {server.node: server.load for server in Fleet(reader).event().servers}

    journal.record(*site())
    assert loads() == {"web1": "60%", "web2": "120%", "web10": "120%", "shop1": "100%"}
    journal.record(*site("leastconn"))
    assert loads() == {"web1": NOTHING, "web2": NOTHING, "web10": NOTHING, "shop1": NOTHING}


def test_the_heat_map_has_its_place_before_it_is_drawn(client: FlaskClient) -> None:
    script = client.get("/static/js/heat.js").text
    assert f"const ROWS_PX = {harm.MAP_PX};\nconst ROW_PX = {list(harm.ROW_PX)};" in script
    assert [harm.map_px(servers) for servers in (0, 1, 50, 300, 1000)] == [0, 18, 900, 900, 3000]
    servers = len(client.get("/api/v1/fleet/harm?last=24h").json["servers"])  # type: ignore[index]
    assert f'<canvas aria-hidden="true" width="1500" height="{harm.map_px(servers)}">' in client.get("/fleet").text


@pytest.mark.parametrize("last", list(harm.RANGES))
def test_cells_add_up_to_the_harm_of_their_server(client: FlaskClient, last: str) -> None:
    answer = client.get(f"/api/v1/fleet/harm?last={last}").json
    assert answer is not None
    seconds, step_s = harm.RANGES[last]
    assert answer["until_unix_s"] - answer["since_unix_s"] == seconds
    assert answer["since_unix_s"] % step_s == 0.0
    by_node = {server["node"]: server for server in answer["servers"]}
    for server in by_node.values():
        assert (
            len(server["lost_percent"]) == len(server["episodes"]) == len(server["worst_unix_ms"]) == seconds / step_s
        )
        assert server["lost_s"] > 0.0 or not any(server["episodes"])
    assert by_node["web10"]["lost_s"] == 0.0
    web1 = by_node["web1"]
    assert web1["lost_s"] == 300.0
    assert by_node["shop1"]["lost_percent"][0] is None, "nothing was known then"
    cell = next(slot for slot, count in enumerate(web1["episodes"]) if count)
    assert web1["worst_unix_ms"][cell] == round((T0 - 600) * 1000)


def test_a_heat_map_may_end_earlier(client: FlaskClient) -> None:
    answer = client.get(f"/api/v1/fleet/harm?last=1h&until_unix_s={T0 - 3600:.0f}").json
    assert answer is not None
    assert {server["node"]: server["lost_s"] for server in answer["servers"] if server["lost_s"]} == {"web2": 540.0}
    page = client.get(f"/fleet?last=1h&until={T0 - 3600:.0f}&q=web").text
    assert 'href="/fleet?q=web&amp;group=none&amp;sort=harm&amp;last=1h">until now' in page


def test_the_table_says_what_the_picture_shows(client: FlaskClient) -> None:
    page = client.get("/fleet?last=1h").text
    details = page.partition("<details>")[2].partition("</details>")[0]
    assert details.count("<tr>") == 1 + 11 + 2, "the head, minutes of web1, minutes of shop1"
    assert "50%" in details


def test_each_narrower_map_holds_a_cell_of_the_wider_one() -> None:
    assert {last: harm.narrower(last) for last in harm.RANGES} == {"1h": "", "24h": "1h", "7d": "24h", "90d": "24h"}


def test_names_with_markup_stay_text(client: FlaskClient, journal: Journal) -> None:
    journal.record(Sample(1, MARKUP, "web", T0, "boot", 1, 0.2), *verdicts(MARKUP, "web", "interference", -60, 0, 1.0))
    page = client.get(f"/fleet?q={MARKUP}").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_silent_controller_and_a_missing_journal_look_dead(tmp_path: Path, journal: Journal) -> None:
    journal.record(*site())
    clock = Clock()
    clock.now_unix_s += 60.0
    page = create_app(settings_in(tmp_path), clock=clock).test_client().get("/fleet").text
    assert "The controller is silent about: web, shop" in page
    assert re.search(r'fleet-summary">\? 4 unknown<', page)
    for path in ("/fleet", "/api/v1/fleet/harm"):
        answer = create_app(settings_in(tmp_path / "none"), clock=Clock()).test_client().get(path)
        assert answer.status_code == 503
        assert "is `slackwater serve` running" in answer.text


def test_events_have_every_server_of_every_pool(tmp_path: Path, journal: Journal) -> None:
    journal.record(*site())
    clock = Clock()
    fleet = Fleet(JournalReader(settings_in(tmp_path), clock))
    first = fleet.event_json()
    assert b'"key":"shop/shop1"' in first
    journal.record(*verdicts("web10", "web", "interference", -1, 0, 0.5))
    assert fleet.event_json() is first, "all viewers of a second get the same"
    clock.now_unix_s += 1.0
    now = {server.node: server.state for server in fleet.event().servers}
    assert now == {"web1": "interference", "web2": "calm", "web10": "interference", "shop1": "overload"}


def test_a_server_without_a_label_has_none(tmp_path: Path, journal: Journal) -> None:
    journal.record(*site())
    reader = JournalReader(settings_in(tmp_path), Clock())
    servers: list[FleetServer] = []
    for pool, view in zip(reader.settings.pool, reader.views(), strict=True):
        servers += servers_of(view, pool, T0)
    labels = {server.node: (server.zone, server.machine_type) for server in servers}
    assert labels == {"web1": ("east", "small"), "web2": ("west", "large"), "web10": ("east", ""), "shop1": ("", "")}
