"""`wsengine-only`: from Verdicts to what a real Apache and a real php-fpm become, and back; and its Orders' leases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slackwater.core.messages import State
from slackwater_lab.experiment import retuning
from slackwater_lab.experiment.decisions import KNOBS, Look, Seen, WebServerOnly
from slackwater_lab.experiment.retuning import BOUNDS, LEASE_S, Orders
from slackwater_lab.played_verdict import verdict
from tests.support.real_servers import APACHE, FPM, Apache, Control, Fpm
from tests.support.real_wsengine import PROGRAM, end_group, wait_for

EVENT = (
    "ServerLimit 8\nThreadsPerChild 64\nThreadLimit 64\nMinSpareThreads 64\nMaxSpareThreads 512\n"
    "MaxRequestWorkers 512\nKeepAliveTimeout 60\n"
)
"""The knobs of the lab's hosts."""


def look(now_s: float, state: State) -> Look:
    return Look(now_s, [Seen("web1", verdict=verdict("web1", state)), Seen("web2")])


def test_orders_are_given_once_renewed_within_their_lease_and_taken_back() -> None:
    orders = Orders("wsengine-only")
    wanted = {"web1": {"php_fpm.max_children": 16}}
    first = orders.due(wanted, 100.0)
    assert [(order.node, order.knob, order.value, order.lease_s) for order in first] == [
        ("web1", "php_fpm.max_children", 16, LEASE_S)
    ]
    assert orders.due(wanted, 101.0) == []
    assert len(orders.due(wanted, 100.0 + LEASE_S / 3)) == 1, "again, long before the lease ends"
    assert [order.value for order in orders.due({"web1": {"php_fpm.max_children": 8}}, 112.0)] == [8]
    assert [order.value for order in orders.due({}, 113.0)] == ["baseline"]
    assert orders.due({}, 114.0) == []


@pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built")
@pytest.mark.skipif(None in (APACHE, FPM), reason="apache2 or php-fpm8.2 is not here")
@pytest.mark.skipif(os.geteuid() != 0, reason="php-fpm and Apache change their user: needs root")
def test_it_turns_all_three_knobs_of_real_servers_and_turns_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retuning, "LEASE_S", 600.0)  # however slow the machine is
    control, apache, fpm = Control(tmp_path), None, None
    try:
        (tmp_path / "apache").mkdir()
        (tmp_path / "fpm").mkdir()
        apache = Apache(tmp_path / "apache", "event", EVENT)
        fpm = Fpm(tmp_path / "fpm", "pm = static\npm.max_children = 4\n")
        sections = {"apache": apache.sections, "php_fpm": fpm.sections}
        control.engine("".join(sections[name](**BOUNDS[name]) for name in sections))
        decide, orders = WebServerOnly(), Orders("wsengine-only")
        control.controller.send_together(orders.due(decide(look(100.0, "interference")).knobs, 100.0))
        wait_for(lambda: len(control.controller.changes) == len(KNOBS), "a Change of each knob")
        changed = {change.what: (change.before, change.after, change.applied) for change in control.controller.changes}
        assert changed == {name: (*values, True) for name, values in KNOBS.items()}
        wait_for(lambda: fpm.children() == KNOBS["php_fpm.max_children"][1], "as many children")
        assert apache.number("ParentServerMPMGeneration") == 1, "one graceful restart for both of Apache's"
        # A child of before may answer until it has heard of the restart.
        wait_for(lambda: "timeout=120" in apache.keepalive_header(), "the timeout that was asked for")
        assert orders.due(decide(look(101.0, "all_slow")).knobs, 101.0) == [], "one other Verdict turns nothing back"
        control.controller.send_together(orders.due(decide(look(106.0, "calm")).knobs, 106.0))
        for name in KNOBS:
            control.back(name)
        wait_for(lambda: fpm.children() == KNOBS["php_fpm.max_children"][0], "as many children as before")
        wait_for(lambda: "timeout=60" in apache.keepalive_header(), "the timeout as before")
    finally:
        for server in (apache, fpm):
            if server is not None:
                end_group(server.process)
        control.close()
