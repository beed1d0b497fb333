"""Under which names the dashboard answers: those of its settings, and on loopback those of this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.web import create_app
from tests.support.web_settings import settings_in

NAMES = ("localhost", "LOCALHOST:8099", "127.0.0.1", "127.0.0.1:8099", "[::1]", "[::1]:8099", "[0:0::1]:8099")
FOREIGN = (
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::2]:8099"),
    *(
        "[::1",
        "::1]",
        "[::1]evil.example",
        "[evil.example]",
        "",
        ":8099",
        "localhost:x",
        "localhost/",
        "localhost, evil.example",
    ),
)


def status(folder: Path, web: str, host: str) -> int:
    return create_app(settings_in(folder, web)).test_client().get("/healthz", headers={"Host": host}).status_code


@pytest.mark.parametrize("listen", ["127.0.0.1:8099", "[::1]:8099", "localhost:8099", "127.0.0.9:8099"])
def test_on_loopback_the_names_of_this_host_are_good_and_others_are_not(tmp_path: Path, listen: str) -> None:
    web = f'listen = "{listen}"\n'
    for host in (*NAMES, listen, listen.rpartition(":")[0]):
        assert status(tmp_path, web, host) == 503, f"{host}: there is no journal yet"
    for host in FOREIGN:
        assert status(tmp_path, web, host) == 400, host


def test_elsewhere_every_name_is_good_until_some_are_given(tmp_path: Path) -> None:
    listen = 'listen = "0.0.0.0:8099"\n'
    assert status(tmp_path, listen, "balancer.example:8099") == 503
    given = f'{listen}hosts = ["s.example", ".sites.example", "[2001:db8::1]"]\n'
    for host in ("s.example", "S.example:443", "a.sites.example", "[2001:DB8:0::1]:8099", "localhost"):
        assert status(tmp_path, given, host) == 503, host
    for host in ("a.s.example", "sites.example", "asites.example", "2001:db8::1", "balancer.example"):
        assert status(tmp_path, given, host) == 400, host


def test_a_foreign_name_is_refused_as_programs_read_it(tmp_path: Path) -> None:
    client = create_app(settings_in(tmp_path)).test_client()
    answer = client.get("/api/v1/pools", headers={"Host": "evil.example"})
    assert answer.json == {"error": "'evil.example' is no name of this site; see `web.hosts`"}
    page = client.get("/", headers={"Host": "<b>.example"})
    assert (page.status_code, "<b>" in page.text) == (400, False)
