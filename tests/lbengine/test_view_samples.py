"""Samples of servers without a monitor, made of counters and of packets' times."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.core import messages
from slackwater.core.messages import ResponseTimes, Sample
from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.packets import DIRECT, SnifferLine, SnifferRoute, end_of, host_of
from slackwater.lbengine.view.samples import NO_MONITOR, OTHER_PROTOCOL, UNSEEN, Origin, sample_of

ORIGIN = Origin("web", "boot", 0.6)
COUNTED = Counted(period_s=0.2, in_flight=3, rps=50.0, errors_per_s=5.0, rt_mean_ms=60.0)
END = SnifferLine(period_s=0.25, drops=2)


def sample(
    counted: Counted = COUNTED,
    times: tuple[SnifferLine, SnifferLine] | None = None,
    why_not: str = "",
    *,
    complete: bool = False,
) -> Sample:
    return sample_of(ORIGIN, "web1", "server1", 7, 1.0, counted, times, why_not, complete=complete)


def test_rates_are_the_balancers_and_times_the_packets() -> None:
    route = SnifferRoute("search", 5, 1, 80.0, 90.0)
    line = SnifferLine("10.0.0.1:80", 10, 1, 4, 30.0, 2.0, 1.5, 8.0, 9.0, unmatched=1, holes=2, routes=[route])
    made = sample(times=(line, END))
    traffic = made.traffic
    assert traffic is not None
    assert (traffic.rps, traffic.errors_per_s, traffic.in_flight) == (50.0, 5.0, 3)
    assert (traffic.rt_mean_ms, traffic.rt_p50_ms, traffic.rt_p95_ms, traffic.rt_p99_ms) == (2.0, 1.5, 8.0, 9.0)
    assert (traffic.oldest_unanswered_ms, traffic.drops, traffic.unmatched, traffic.holes) == (30.0, 2, 1, 2)
    assert [(route.route, route.rps, route.rt_p95_ms, route.errors_per_s) for route in traffic.routes] == [
        ("search", 20.0, 90.0, 4.0)
    ]
    assert (made.source, made.seq, made.next_within_s, made.absent["cpu"]) == ("balancer", 7, 0.6, NO_MONITOR)
    assert messages.decode("sample", messages.encode(made)) == made


def test_the_packets_times_are_counted_in_buckets_under_the_balancers_name_of_the_server() -> None:
    line = SnifferLine("10.0.0.1:80", 4, rt_sum_ms=32.0, rt_buckets=[(90, 3), (240, 1)])
    made = sample(times=(line, END))
    assert made.traffic is not None
    assert made.traffic.times == ResponseTimes("server1", 0.032, [(90, 3), (240, 1)])
    assert messages.decode("sample", messages.encode(made)) == made


def test_where_the_balancer_counts_no_requests_the_packets_give_the_rate() -> None:
    made = sample(Counted(0.2, None, None, None, None), (SnifferLine("10.0.0.1:80", 10, 1, 2), END)).traffic
    assert made is not None
    assert (made.rps, made.errors_per_s, made.in_flight) == (40.0, 4.0, 2)


def test_where_packets_show_all_requests_rates_are_theirs_and_connections_that_fail_are_the_balancers() -> None:
    made = sample(times=(SnifferLine("10.0.0.1:80", 10, 1, 2, rt_p95_ms=8.0), END), complete=True)
    assert made.traffic is not None
    assert (made.period_s, made.traffic.rps, made.traffic.in_flight, made.traffic.rt_p95_ms) == (0.25, 40.0, 2, 8.0)
    assert made.traffic.errors_per_s == COUNTED.errors_per_s, "refused connections are no exchanges"


def test_exchanges_are_health_checks_while_the_balancer_counts_no_answers() -> None:
    """Of a server that hangs they would hide that its requests wait."""
    hangs = msgspec.structs.replace(COUNTED, rps=0.0, answered_lately=False)
    line = SnifferLine("10.0.0.1:80", 1, 0, 3, oldest_unanswered_ms=2500.0, rt_p95_ms=0.4)
    made = sample(hangs, (line, END), complete=True)
    assert made.traffic is not None
    assert (made.period_s, made.traffic.rps, made.traffic.in_flight) == (0.25, 0.0, 3)
    assert made.traffic.oldest_unanswered_ms == 2500.0
    begun = sample(hangs, (msgspec.structs.replace(line, oldest_unanswered_ms=20.0), END), complete=True)
    assert begun.traffic is not None
    assert begun.traffic.rps == 4.0, "the balancer counts downloads at their end"
    assert made.traffic.rt_p95_ms is None, "nor are their times those of requests"
    counted = msgspec.structs.replace(hangs, in_flight=0, errors_per_s=0.0)
    for complete in (True, False):  # a backup server of which only health checks are seen
        line = SnifferLine("10.0.0.1:80", 1, 1, rt_p95_ms=0.4, rt_sum_ms=0.4, rt_buckets=[(20, 1)])
        idle = sample(counted, (line, END), complete=complete)
        assert idle.traffic is not None
        assert (idle.traffic.rps, idle.traffic.errors_per_s, idle.traffic.rt_p95_ms) == (0.0, 0.0, None)
        assert idle.traffic.times is None


@pytest.mark.parametrize("times", [None, (SnifferLine("10.0.0.1:80", is_foreign=True), END)])
def test_a_server_of_whose_requests_nothing_is_known_has_no_traffic_and_not_zero(
    times: tuple[SnifferLine, SnifferLine] | None,
) -> None:
    made = sample(Counted(0.2, None, None, None, None, 12), times, "" if times else DIRECT, complete=True)
    assert made.traffic is None
    assert {made.absent[name] for name in UNSEEN} == {OTHER_PROTOCOL if times else DIRECT}
    assert messages.decode("sample", messages.encode(made)) == made


def test_without_packets_the_counters_give_the_mean_and_the_reason_stands_there() -> None:
    made = sample(why_not="the sniffer ended")
    assert made.traffic is not None
    assert (made.traffic.rt_mean_ms, made.traffic.rt_p95_ms) == (60.0, None)
    assert made.traffic.times is None
    assert made.absent["traffic.rt_p95_ms"] == made.absent["traffic.times"] == "the sniffer ended"


def test_answers_in_another_protocol_have_no_times() -> None:
    made = sample(times=(SnifferLine("10.0.0.1:80", is_foreign=True), END))
    assert made.traffic is not None
    assert made.traffic.rt_mean_ms == 60.0
    assert made.absent["traffic.rt_p95_ms"] == OTHER_PROTOCOL


def test_between_two_looks_of_the_packets_no_other_mean_takes_their_place() -> None:
    made = sample()
    assert made.traffic is not None
    assert (made.traffic.rt_mean_ms, made.traffic.rps) == (None, 50.0)
    assert "traffic.rt_p95_ms" not in made.absent


def test_addresses_are_read_as_balancers_show_them() -> None:
    shown = {
        "10.0.0.1:80": "10.0.0.1:80",
        "[2001:db8::1]:443": "[2001:db8::1]:443",
        "[2001:DB8:0:0::1]:443": "[2001:db8::1]:443",
        "[::ffff:192.0.2.1]:80": "192.0.2.1:80",
        **dict.fromkeys(("unix", "/run/a.sock", "", "10.0.0.1:0", "10.0.0.1", "web1:80", "10.0.0.1:+80x"), ""),
        "[fe80::1%eth0]:80": "",
    }
    assert {text: end_of(text) for text in shown} == shown
    assert host_of("[::ffff:192.0.2.1]:80") == "192.0.2.1"
