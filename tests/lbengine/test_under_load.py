"""Requests at full load while weights change and HAProxy reloads: none may fail or be cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.balancer import BalancerUnreachable
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import BIN, program
from tests.support import real_haproxy
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, until
from tests.support.real_processes import free_port
from tests.support.steady_load import SteadyLoad

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(not (BIN / "oha").exists(), reason="oha is not in .build/bin: run `make setup`"),
    pytest.mark.usefixtures("haproxy_version"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
CHANGES = 10_000
REQUESTS = 50_000
"""Answered meanwhile, at least."""
RELOADS = 50
LOADS: tuple[tuple[str, list[str], Demand], ...] = (
    ("closed loop, 32 keep-alive clients, as fast as they are answered", [], Demand(clients=32)),
    ("open loop, 100 requests/s, keep-alive", [], Demand(rate_rps=100.0)),
    ("100 requests/s, a connection for each", ["--disable-keepalive"], Demand(rate_rps=100.0, clients=8)),
)
"""All at once. The first one fills the machine: whatever the others ask for comes on top of a full load."""
PAGE = "<html>" + "slackwater " * 700 + "</html>\n"
GLOBAL = "global\n    hard-stop-after 30s\n"


def pages(ports: Sequence[int], page: Path) -> str:
    """Sections of web servers that answer at once, with a page that takes several packets."""
    servers = "".join(
        f"frontend page{port}\n    bind 127.0.0.1:{port}\n    timeout client 60s\n"
        f"    http-request return status 200 content-type text/html file {page}\n"
        for port in ports
    )
    return f"{GLOBAL}{servers}{backend([])}"


def entrance(port: int) -> str:
    """The frontend under load. At a reload it lets each kept connection have one more request, and then closes it."""
    keep = "" if real_haproxy.PROGRAM == "haproxy-2.2" else "    option idle-close-on-response\n"
    return f"frontend busy\n    bind 127.0.0.1:{port}\n{keep}    default_backend web\n"


@contextlib.contextmanager
def full_load(folder: Path) -> Iterator[tuple[RealHAProxy, list[SteadyLoad]]]:
    """A HAProxy before three web servers, at full load until the block ends."""
    page = folder / "page.html"
    page.write_text(PAGE)
    ports, port = [free_port() for _ in range(3)], free_port()
    with (
        haproxy(pages(ports, page)),
        haproxy(GLOBAL + entrance(port) + backend(ports)) as running,
        contextlib.ExitStack() as stack,
    ):
        loads = [
            SteadyLoad(name, [program("oha"), *options], folder, [f"http://127.0.0.1:{port}/"], demand)
            for name, options, demand in LOADS
        ]
        for load in loads:
            stack.enter_context(load)
        until(lambda: sum(running.counts()) > 1000, "requests flow", 60.0)
        yield running, loads


def judge(change: str, loads: Sequence[SteadyLoad]) -> None:
    print(f"\n{real_haproxy.PROGRAM}: {change}")
    for load in loads:
        print(f"  {load.describe()}")
    for load in loads:
        assert load.requests > 100
        assert load.failed == []


def test_no_request_fails_while_weights_change_ten_thousand_times(tmp_path: Path) -> None:
    with full_load(tmp_path) as (running, loads):
        client, begin_s = HAProxy(running.socket, "web", 10.0), time.monotonic()
        changes = 0
        while changes < CHANGES or sum(running.counts()) < REQUESTS:
            client.set_weights({"host1": changes % 101, "host2": (changes * 7) % 101})
            changes += 2
        lasted_s = time.monotonic() - begin_s
        assert min(running.counts()) > 0, "each server had its part"
    judge(f"{changes:,} weight changes in {lasted_s:.0f} s", loads)


def test_no_request_fails_over_fifty_reloads_with_changes_between(tmp_path: Path) -> None:
    if real_haproxy.PROGRAM == "haproxy-2.2":
        pytest.skip("2.2.9 has no idle-close-on-response: its reload cuts kept connections, whoever sets weights")
    with full_load(tmp_path) as (running, loads):
        client, begin_s = HAProxy(running.socket, "web", 10.0), time.monotonic()
        for number in range(RELOADS):
            client.set_weights({"host1": number, "host2": 100 - number})
            running.reload()
            with contextlib.suppress(BalancerUnreachable):
                client.set_weights({"host1": 0})
        lasted_s = time.monotonic() - begin_s
    judge(f"{RELOADS} reloads in {lasted_s:.0f} s", loads)
