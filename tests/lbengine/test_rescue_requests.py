"""What a real HAProxy does with requests that a slow server keeps, while the rescue is armed and while it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path

import pytest

from lbengine.backends.haproxy import rescue
from lbengine.rescue import PAUSE_AFTER_FAILURE_S, PAUSE_S
from tests.support import real_haproxy
from tests.support.real_haproxy import until
from tests.support.rescue_site import AFTER_MS, HOSTS, PAUSES, PROGRAMS, RescueSite, has_programs, rescue_site

pytestmark = pytest.mark.skipif(not has_programs, reason="HAProxy 3.0 and 3.2 are not in .build/bin")


@pytest.fixture(params=PROGRAMS, autouse=True)
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_haproxy, "PROGRAM", request.param)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RescueSite]:
    with rescue_site(tmp_path) as made:
        yield made


@pytest.fixture
def unkept(tmp_path: Path) -> Iterator[RescueSite]:
    """No server's connection is used for another client: where such a one ends, HAProxy has the client ask again."""
    with rescue_site(tmp_path, lines=(*rescue.lines("web"), "    http-reuse never")) as made:
        yield made


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_request_that_the_slow_server_keeps_is_answered_by_another(site: RescueSite, method: str) -> None:
    site.arm()
    site.keep("host1")
    site.warm_up()
    assert [site.ask(method) for _ in HOSTS] == [200, 200, 200]
    assert site.asked("host1") == [method]
    assert sorted(site.asked("host2") + site.asked("host3")) == [method] * 3
    assert site.stat("wretr") == 1
    assert "1 requests sent twice" in site.cycle(host1="interference")


WITH_BODY: list[tuple[str, bytes | tuple[bytes, ...]]] = [("POST", b"x"), ("GET", b"x"), ("GET", (b"x", b"y"))]


@pytest.mark.parametrize(("method", "body"), WITH_BODY)
def test_a_request_with_a_body_and_one_from_before_are_not_sent_twice(
    site: RescueSite, method: str, body: bytes | tuple[bytes, ...]
) -> None:
    site.keep("host1")
    with ThreadPoolExecutor(6) as clients:
        before = [clients.submit(site.ask) for _ in HOSTS]
        until(lambda: site.asked("host1") == ["GET"], "a request of before waits for host1")
        site.arm()
        bodies = [clients.submit(site.ask, method, body) for _ in HOSTS]
        until(lambda: site.asked("host1") == ["GET", method], "one with a body waits for host1")
        # Sent later than these, kept as they are, and rescued: their time would have been up before.
        site.warm_up()
        assert [site.ask() for _ in HOSTS] == [200, 200, 200]
        assert site.asked("host1") == ["GET", method, "GET"]
        assert [one.done() for one in before].count(False) == 1
        assert [one.done() for one in bodies].count(False) == 1
        site.release()
        assert [one.result() for one in before + bodies] == [200] * 6
    assert site.stat("wretr") == 1
    assert sum(len(site.asked(host)) for host in HOSTS) == 10


def test_a_server_that_hangs_up_costs_no_error(site: RescueSite) -> None:
    site.arm()
    site.hang_up("host1")
    site.warm_up()
    assert [site.ask() for _ in HOSTS] == [200, 200, 200]
    assert site.asked("host1") == ["GET"]
    assert site.counted() == 1


@pytest.mark.parametrize(("method", "body"), WITH_BODY)
def test_a_request_with_a_body_is_not_repeated_where_a_server_hangs_up(
    unkept: RescueSite, method: str, body: bytes | tuple[bytes, ...]
) -> None:
    unkept.arm()
    unkept.hang_up("host1")
    assert sorted(unkept.ask(method, body) for _ in HOSTS) == [200, 200, 502]
    assert [unkept.asked(host) for host in HOSTS] == [[method]] * 3


def test_refused_connections_are_tried_again_as_often_as_haproxy_does_by_itself(unkept: RescueSite) -> None:
    unkept.arm()
    for server in unkept.servers[:2]:
        server.shutdown()
        server.server_close()
    assert [unkept.ask("POST", b"x") for _ in HOSTS] == [200, 200, 200]
    assert unkept.asked("host3") == ["POST"] * 3


def test_when_it_is_disarmed_nothing_is_sent_twice_any_more(site: RescueSite) -> None:
    site.arm()
    site.cycle()
    site.keep("host1")
    with ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(site.ask) for _ in HOSTS]
        until(lambda: site.asked("host1") == ["GET"], "a request waits for host1")
        site.cycle(after_s=PAUSE_S, host1="interference")
        site.even()
        site.warm_up()
        assert [site.ask() for _ in HOSTS] == [200, 200, 200]  # one of them is rescued
        assert [one.done() for one in waiting].count(False) == 1
        site.release()
        assert [one.result() for one in waiting] == [200] * 3
    assert site.stat("wretr") == 1


def settled(site: RescueSite, asked: Sequence[Future[int]]) -> bool:
    """All are answered but those that a server keeps, and none of these may still be sent again."""
    waiting = site.stat("scur")
    return site.open() == 0 and waiting > 0 and sum(one.done() for one in asked) == len(asked) - waiting


@pytest.mark.parametrize("keeping", [["host1"], HOSTS], ids=["one", "all"])
def test_the_budget_bounds_all_further_attempts(site: RescueSite, keeping: Sequence[str]) -> None:
    count = 120  # a third of them, or all, is more than 2% of what can have come in 10 s at this rate
    site.arm()
    site.keep(*keeping)
    with ThreadPoolExecutor(count) as clients:
        asked = [clients.submit(site.ask) for _ in range(count)]
        until(lambda: settled(site, asked), "only requests without a budget wait")
        further = site.stat("wretr")
        # HAProxy never takes more than all that have come for the rate of a second.
        most = site.stat("stot") * rescue.KEPT_S / rescue.ONE_IN
        assert 0 < further <= most + rescue.RETRIES * site.threads()
        assert further == site.counted()
        site.release()
        answers = [one.result() for one in asked]
    assert set(answers) <= {200, 504}
    if keeping == HOSTS:
        assert further == rescue.RETRIES * answers.count(504)
    else:
        assert 504 not in answers


def test_attempts_for_a_client_that_leaves_are_counted(tmp_path: Path) -> None:
    with rescue_site(tmp_path, lines=(*rescue.lines("web"), "    option abortonclose")) as site:
        site.arm()
        site.keep(*HOSTS)
        site.warm_up()
        connection = site.balancer.connection()
        connection.request("GET", "/")
        until(lambda: site.stat("wretr") == 1, "it is sent again")
        connection.close()
        until(lambda: site.open() == 0, "HAProxy has seen that the client left")
        assert site.counted() == site.stat("wretr") > 0


def test_a_request_that_all_servers_keep_ends_the_rescue_for_a_while(site: RescueSite) -> None:
    site.arm()
    site.cycle(host1="interference")
    site.even()
    site.warm_up()
    site.keep(*HOSTS)
    assert site.ask() == 504
    site.release()
    assert "1 requests had no answer" in site.cycle(host1="interference")
    assert site.armed_ms() == 0
    site.cycle(after_s=PAUSE_S, host1="interference")
    assert site.armed_ms() == 0
    site.cycle(after_s=PAUSE_AFTER_FAILURE_S, host1="interference")
    assert site.armed_ms() > 0


def test_a_pause_in_a_body_that_lasts_longer_than_the_timeout_cuts_nothing_off(site: RescueSite) -> None:
    site.warm_up()
    site.arm()
    connection = site.balancer.connection()
    connection.request("GET", PAUSES)
    answer = connection.getresponse()
    assert answer.read(1) == b"a"
    site.keep("host1", "host2")
    site.warm_up()
    with ThreadPoolExecutor(3) as clients:
        rescued = [clients.submit(site.ask) for _ in HOSTS]
        until(lambda: site.stat("wretr") > 0, "a later request is sent twice, as its time is up")
        for server in site.servers:
            server.go_on.set()
        assert answer.read() == b"b"
        site.release()
        until(lambda: all(one.done() for one in rescued), "the others end too")
    connection.close()


def with_own_time_out(ms: int) -> tuple[str, ...]:
    """The rescue's lines after one of the site."""
    table, (section, *of_backend) = rescue.TABLE_SECTION, rescue.lines("web")[len(rescue.TABLE_SECTION) :]
    return (*table, section, f"    http-request set-timeout server {ms}ms if {{ url_end own }}", *of_backend)


def test_a_shorter_time_out_of_the_site_is_kept(tmp_path: Path) -> None:
    with rescue_site(tmp_path, with_own_time_out(AFTER_MS // 2)) as site:
        site.arm()
        site.keep(*HOSTS)
        site.warm_up()
        assert site.ask(path="/own") == 504
        assert site.stat("wretr") == 0


def test_a_longer_time_out_of_the_site_holds_again_for_the_body(tmp_path: Path) -> None:
    with rescue_site(tmp_path, with_own_time_out(AFTER_MS + 500)) as site:
        site.arm()
        site.warm_up()
        with pytest.raises(IncompleteRead):
            site.ask(path=f"{PAUSES}?own")


def test_a_retry_on_of_the_site_goes_on_while_the_rescue_is_off(tmp_path: Path) -> None:
    """With the two lines merged."""
    merged = rescue.backend_lines("web", ["conn-failure", "empty-response", "503"])
    assert "    retry-on conn-failure empty-response 503 response-timeout" in merged
    with rescue_site(tmp_path, (*rescue.TABLE_SECTION, "backend web", *merged)) as site:
        site.hang_up("host1")
        assert [site.ask() for _ in HOSTS] == [200, 200, 200]
        assert site.armed_ms() == 0
        assert sorted(site.ask("POST", b"x") for _ in HOSTS) == [200, 200, 502]
