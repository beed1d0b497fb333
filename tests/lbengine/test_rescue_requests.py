"""What a real HAProxy does with requests that a slow server keeps, while the rescue is armed and while it is not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lbengine.backends.haproxy import rescue
from lbengine.rescue import PAUSE_AFTER_FAILURE_S, PAUSE_S
from tests.support import real_haproxy
from tests.support.real_haproxy import until
from tests.support.rescue_site import HOSTS, PAUSES, PROGRAMS, RescueSite, has_programs, rescue_site

pytestmark = pytest.mark.skipif(not has_programs, reason="HAProxy 3.0 and 3.2 are not in .build/bin")


@pytest.fixture(params=PROGRAMS)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RescueSite]:
    monkeypatch.setattr(real_haproxy, "PROGRAM", request.param)
    with rescue_site(tmp_path) as made:
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


def test_a_request_that_changes_something_and_one_from_before_are_not_sent_twice(site: RescueSite) -> None:
    site.keep("host1")
    with ThreadPoolExecutor(6) as clients:
        before = [clients.submit(site.ask) for _ in HOSTS]
        until(lambda: site.asked("host1") == ["GET"], "a request of before waits for host1")
        site.arm()
        posts = [clients.submit(site.ask, "POST") for _ in HOSTS]
        until(lambda: site.asked("host1") == ["GET", "POST"], "a POST waits for host1")
        # Sent later than these, kept as they are, and rescued: their time would have been up before.
        site.warm_up()
        assert [site.ask() for _ in HOSTS] == [200, 200, 200]
        assert site.asked("host1") == ["GET", "POST", "GET"]
        assert [one.done() for one in before].count(False) == 1
        assert [one.done() for one in posts].count(False) == 1
        site.release()
        assert [one.result() for one in before + posts] == [200] * 6
    assert site.stat("wretr") == 1
    assert (site.asked("host2") + site.asked("host3")).count("POST") == 2


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


def test_the_budget_bounds_what_is_sent_twice(site: RescueSite) -> None:
    count = 120  # of which host1 gets a third, more than 2% of what can have come in 10 s at this rate
    site.arm()
    site.keep("host1")
    with ThreadPoolExecutor(count) as clients:
        asked = [clients.submit(site.ask) for _ in range(count)]

        def settled() -> bool:
            """All are answered but those that host1 has, and none of these may still be sent twice."""
            waiting = site.stat("scur", "host1")
            return site.open() == 0 and waiting > 0 and sum(one.done() for one in asked) == count - waiting

        until(settled, "only requests without a budget wait")
        sent_twice = site.stat("wretr")
        assert 0 < sent_twice <= site.stat("rate_max") * rescue.KEPT_S / rescue.ONE_IN + site.threads()
        site.release()
        assert [one.result() for one in asked] == [200] * count


def test_a_request_that_two_servers_keep_ends_the_rescue_for_a_while(site: RescueSite) -> None:
    site.arm()
    site.cycle(host1="interference")
    site.even()
    site.warm_up()
    site.keep(*HOSTS)
    assert site.ask() == 504
    site.release()
    assert "1 requests had no answer in time from two servers" in site.cycle(host1="interference")
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
