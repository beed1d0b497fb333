"""Controller, bus and wsengine are killed in every order: the web server is as before soon after the lease's end."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.needs_wsengine import pytestmark as needs_wsengine
from tests.support.real_haproxy import needs_haproxy
from tests.support.real_wsengine import wait_for
from tests.support.retune_site import BY_HAND, TURNED, RetuneSite, whole_site

pytestmark = [needs_haproxy, *needs_wsengine, pytest.mark.slow]
LEASE_S = 4.0
WITHIN_S = 10.0
"""After the lease's end."""
EDGE_S = 1.0
"""The lease may have been renewed just before its giver was killed."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[RetuneSite]:
    with whole_site(tmp_path) as whole:
        whole.begin("act", LEASE_S)
        whole.wait_until_turned()
        yield whole


@pytest.mark.parametrize("order", list(itertools.permutations(["controller", "bus", "wsengine"])), ids="-".join)
def test_in_every_order_of_crashes_all_is_as_before_soon_after_the_lease(
    whole: RetuneSite, order: tuple[str, ...]
) -> None:
    for program in order:
        whole.kill(program)
    begin_s = time.monotonic()
    wait_for(lambda: whole.scene.text() == BY_HAND, "the baseline", within_s=LEASE_S + WITHIN_S + EDGE_S)
    print(f"{'-'.join(order)}: as before {time.monotonic() - begin_s:.1f} s after the last crash, lease {LEASE_S} s")
    wait_for(lambda: whole.scene.engine.leases() == {}, "no lease is left")


@pytest.mark.parametrize("program", ["controller", "bus", "wsengine"])
def test_one_crash_and_what_comes_back_takes_up_its_work(whole: RetuneSite, program: str) -> None:
    whole.kill(program)
    begin_s = time.monotonic()
    if program == "wsengine":
        wait_for(lambda: "put back" in whole.scene.engine.log_text(), "it puts back what it finds")
    else:
        wait_for(lambda: whole.scene.text() == BY_HAND, "the baseline", within_s=LEASE_S + WITHIN_S + EDGE_S)
    print(f"{program}: as before {time.monotonic() - begin_s:.1f} s after the crash, lease {LEASE_S} s")
    if program == "bus":
        whole.scene.nats.start()
    if program == "controller":
        whole.serving = whole.serve()
    whole.wait_until_turned()
    wait_for(lambda: whole.scene.engine.leases(), "its lease")


def test_a_wsengine_that_starts_only_after_the_end_of_the_lease_puts_back_at_once(whole: RetuneSite) -> None:
    (lease,) = whole.scene.engine.leases().values()
    whole.kill("controller")
    whole.scene.engine.end(signal.SIGKILL)
    whole.kill("bus")
    # It may have been renewed since it was read, but not after the controller was killed.
    until_s = max(lease["until_unix_s"], time.time() + LEASE_S)
    wait_for(lambda: time.time() > until_s, "the lease is over", within_s=LEASE_S + WITHIN_S)
    assert whole.scene.text() == TURNED, "nobody was there to put it back"
    begin_s = time.monotonic()
    whole.scene.engine.spawn()
    wait_for(lambda: whole.scene.text() == BY_HAND, "the baseline", within_s=WITHIN_S)
    print(f"wsengine started after the lease's end: as before {time.monotonic() - begin_s:.1f} s later")
    wait_for(lambda: whole.scene.engine.leases() == {}, "no lease is left")
