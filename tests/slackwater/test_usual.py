"""A server that is far slower than it mostly is, and what else is known of it: from the journal's rolled-up times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.core.config import JournalSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.retention import Keeper
from slackwater.core.messages import Cpu, Cycle, Pressure, Sample, Sched, ServerState, Traffic, Verdict
from slackwater.views.pool import PoolStatus, pool_status
from slackwater.views.usual import Usual, as_in_calm

T0 = 1_795_000_020.0
CALM = {"p95_ms": 9.0, "io": 0.01, "delay": 0.05}


def _traffic(p95_ms: float, rps: float = 20.0, in_flight: float = 0.0, **_: float) -> Traffic:
    return Traffic(rps=rps, rt_p95_ms=p95_ms if rps else None, in_flight=int(in_flight))


class Site:
    """A journal into which two nodes write."""

    def __init__(self, folder: Path) -> None:
        self.now_unix_s = T0
        self.journal = Journal.open(journal_path(folder), clock=lambda: self.now_unix_s)

    def samples(self, count: int, period_s: float = 1.0, **of_web2: float) -> None:
        """So many of each node; `of_web2` is what differs from calm."""
        batch: list[Sample] = []
        for _ in range(count):
            self.now_unix_s += period_s
            for node, values in (("web1", CALM), ("web2", CALM | of_web2)):
                batch.append(
                    Sample(
                        *(1, node, "web", self.now_unix_s, "boot", 0, period_s),
                        cpu=Cpu("cgroup", 0.3),
                        sched=Sched(run_delay_per_cpu_s=values["delay"]),
                        pressure=Pressure(io_some=values["io"], memory_some=0.0),
                        traffic=_traffic(**values),
                    )
                )
        self.journal.record(*batch)

    def view(self) -> PoolStatus:
        unix_s = self.now_unix_s
        for node in ("web1", "web2"):
            self.journal.record(Verdict(1, node, "web", unix_s, "calm", unix_s - 60.0, 0.0, [], "start"))
        servers = [ServerState(node, "up", 100, 100, 100, cause="calm") for node in ("web1", "web2")]
        self.journal.record(Cycle(1, "web", unix_s, "act", False, "roundrobin", "optimal", "web: 2 unchanged", servers))
        return pool_status(self.journal, "web", unix_s, {}, "HAProxy")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)

    def now() -> float:
        return made.now_unix_s

    keeper = Keeper(made.journal, JournalSettings(), now, now, lambda _: 10**12)
    keeper.keep()
    made.samples(400)
    keeper.keep()
    yield made
    made.journal.close()


def test_a_slow_database_on_one_server_is_no_neighbour_and_not_calm(site: Site) -> None:
    assert site.view().headline == "All 2 servers are calm"
    site.samples(12, p95_ms=155.0)
    seen = site.view()
    assert seen.headline == (
        "1 of 2 calm; web2 is slow (155 ms, usually 9), and no neighbour is the cause: its CPU, disk and memory are"
        " as in calm"
    )
    slow = seen.rows[1]
    assert slow.rt_p95_now_ms == pytest.approx(155.0, abs=0.1)
    assert slow.rt_p95_usual_ms == 9.0
    assert slow.why.startswith("is slow (155 ms, usually 9), and no neighbour is the cause")


def test_a_server_that_stands_still_most_of_the_time_is_not_calm(site: Site) -> None:
    for _ in range(3):
        site.samples(10, 0.2, rps=0.0, in_flight=2.0)
        site.samples(1, 0.2, p95_ms=1990.0, rps=15.0)
        site.samples(6, 0.2)
    seen = site.view()
    assert seen.headline.startswith("1 of 2 calm; web2 is slow (")
    assert 100.0 < (seen.rows[1].rt_p95_now_ms or 0.0) < 2000.0


def long_requests(site: Site) -> None:
    """One of 5 s, and a page of short ones."""
    site.samples(5, rps=0.0)
    site.samples(5, rps=0.0, in_flight=1.0)
    site.samples(1, 0.2, rps=5.0, p95_ms=5000.0)
    site.samples(4, 0.2, rps=18.0)


def long_polls(site: Site) -> None:
    """Of 25 s, beside short requests."""
    for _ in range(2):
        for _ in range(10):
            site.samples(4, 0.2, rps=0.0, in_flight=3.0)
            site.samples(1, 0.2, rps=10.0, in_flight=3.0)
        site.samples(1, 0.2, rps=5.0, in_flight=3.0, p95_ms=25_000.0)


def a_busy_moment_after_silence(site: Site) -> None:
    site.samples(9, rps=0.0)
    site.samples(1, 0.2, rps=125.0, p95_ms=45.0)


@pytest.mark.parametrize("scene", [long_requests, long_polls, a_busy_moment_after_silence])
def test_a_few_long_requests_are_no_slow_server(site: Site, scene: Callable[[Site], None]) -> None:
    scene(site)
    assert site.view().headline == "All 2 servers are calm"


def test_what_is_not_as_in_calm_is_not_said_to_be(site: Site) -> None:
    site.samples(12, p95_ms=155.0, io=0.6)
    assert "its CPU and memory are as in calm" in site.view().headline
    site.samples(12, p95_ms=155.0, io=0.6, delay=3.0)
    assert "its memory is as in calm" in site.view().headline


def test_one_slow_second_and_a_few_requests_are_not_enough(site: Site) -> None:
    site.samples(1, p95_ms=500.0)
    assert site.view().headline == "All 2 servers are calm"
    site.samples(12, p95_ms=155.0, rps=0.5)
    assert site.view().headline == "All 2 servers are calm"
    site.samples(12, p95_ms=18.0)
    assert site.view().headline == "All 2 servers are calm"


def test_before_enough_is_known_nothing_is_usual(tmp_path: Path) -> None:
    fresh = Site(tmp_path)
    fresh.samples(30)
    fresh.samples(12, p95_ms=155.0)
    assert fresh.view().rows[1].rt_p95_usual_ms is None
    fresh.journal.close()


def test_what_is_usual_is_read_once_a_minute(site: Site) -> None:
    usual = Usual()
    first = usual(site.journal, "web", site.now_unix_s)
    assert first["web2"]["rt_p95_ms"] == 9.0
    assert usual(site.journal, "web", site.now_unix_s + 59.0) is first
    assert usual(site.journal, "web", site.now_unix_s + 61.0) is not first


def test_a_resource_of_which_nothing_is_measured_is_not_spoken_of() -> None:
    assert as_in_calm({"steal": 0.0, "cpi": 1.0}, {"steal": 0.0}) == ["CPU"]
    assert as_in_calm({}, {}) == []
