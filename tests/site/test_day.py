"""The operator's day on a site that nobody tuned: what is done, and what `status`, `check`, `log` and the page say."""

from __future__ import annotations

import re
import signal

import pytest

from tests.site.controller import CONTROLLER
from tests.site.site import POOL, missing
from tests.site.story import NOTICED_S, SOON_S, Day

LACKS = missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(LACKS), reason=f"the test site cannot run here; missing: {'; '.join(LACKS)}"),
]
BASELINE = {"web1": 100, "web2": 100, "web3": 100}
BESIDE = re.compile(r"[012] of 3 calm; .*\bweb1(?:, web\d)* (?:is|are) beside a (?:noisy|steady) neighbour")
"""Whatever else is said of the others, as the machine that plays the site may be busy itself."""


def test_observe_says_what_it_would_do_and_does_nothing(today: Day) -> None:
    today.calms_down()
    with today.neighbour(today.webs[0]):
        today.until(lambda: today.row("web1")["state"], lambda state: state == "interference", "state", NOTICED_S)
        today.shows(BESIDE)
        seen = today.seen(3.0)
        would_be = re.compile(r"web1 would be at \d+ of 100, and is at 100 \(interference\)")
        today.until(lambda: today.pool()["sentence"], lambda text: bool(would_be.search(text)), would_be.pattern)
        assert "In pool web no weight is changed: decisions are only recorded." in today.status()
    assert seen
    assert all(weights == BASELINE for weights in seen)
    would = [line for line in today.log() if "weight of web1: 100 → " in line]
    assert all(line.startswith("web: would: weight of web1: 100 → ") for line in would)
    assert any("by Slackwater: interference: " in line for line in would)
    today.calms_down()
    today.until(today.check, lambda checked: checked[1][-1] == "nothing is missing", "check")


def test_act_lowers_the_weight_beside_a_neighbour_and_gives_it_back(today: Day) -> None:
    today.act()
    with today.neighbour(today.webs[0]):
        today.is_relieved(today.webs[0])
        today.shows(BESIDE)
        today.site.reload_haproxy()
        again = "was reloaded or restarted and shows 100; "
        today.until(today.log, lambda lines: any(again in line for line in lines), "log: HAProxy was reloaded")
        lowered = lambda line: line.startswith("web: weight of web1: 100 → ") and "interference: " in line  # noqa: E731
        today.until(today.log, lambda lines: any(map(lowered, lines)), "log")
        _, lines = today.until(today.check, lambda checked: checked[1][-1] == "nothing is missing", "check")
        assert not any("left alone" in line for line in lines), "it is Slackwater's doing"
        because = re.compile(r"(?s)web1 \(web\): interference.*weight of web1: 100 → ")
        today.until(lambda: today.slackwater.command("why", "web1"), lambda text: bool(because.match(text)), "why")
    today.has_baseline()
    today.calms_down()


def test_a_weight_set_by_hand_stays_its_persons_through_pause_resume_and_restore(today: Day) -> None:
    held = "web2 is held at 40 by someone else, its baseline is 100"
    today.act()
    today.site.ask(f"set server {POOL}/web2 weight 40")
    today.shows("web2 has weight 40 of 100, set by someone else")
    paused = today.slackwater.command("pause", "--pool", POOL, "--why", "looking")
    assert paused.startswith("web: paused by root (looking); ")
    assert held in paused
    today.until(today.status, lambda text: ", PAUSED, " in text, "status")
    today.until(lambda: today.page(), lambda text: "nothing is changed until somebody resumes" in text, "the overview")
    assert held in today.slackwater.command("resume", "--pool", POOL)
    restored = today.slackwater.command("restore", "--all")
    kept = "web2 keeps weight 40, which somebody else has set; 100 is configured"
    assert kept in restored or restored == "web: nothing to put back\n", "the latter where Slackwater changed nothing"
    assert today.weights()["web2"] == 40
    today.site.ask(f"set server {POOL}/web2 weight 100")
    today.calms_down()


def test_a_dead_haproxy_is_what_is_dead(today: Day) -> None:
    today.site.haproxy.kill()
    printed = today.until(today.status, lambda text: "HAProxy has not answered since" in text, "status")
    assert "slackwater serve" not in printed
    assert "the weights of pool web can be neither read nor set" in printed
    page = today.until(lambda: today.page("/"), lambda text: "HAProxy has not answered since" in text, "the overview")
    assert "The controller is silent" not in page
    status, lines = today.check()
    assert status == 1
    assert (
        "✕ balancer of pool web: pool `web`: /run/haproxy/admin.sock: nobody listens there; expected a running"
        " HAProxy's admin socket" in lines
    )
    today.site.start_haproxy()
    today.calms_down()


def test_a_controller_that_is_killed_leaves_baseline_weights_and_says_that_it_is_gone(today: Day) -> None:
    today.act()
    pinned = today.slackwater.command("pin", "web1", "20", "--why", "trying")
    assert "web1" in pinned
    today.until(today.weights, lambda weights: weights["web1"] == 20, "HAProxy shows the pinned weight")
    today.slackwater.unit("balancer", CONTROLLER).signal(signal.SIGKILL)
    today.until(today.weights, lambda weights: weights == BASELINE, "the baseline weights are back")
    printed = today.until(today.status, lambda text: "The controller does not run" in text, "status")
    assert "nothing is watched or changed in pool web" in printed
    assert "web1 100, web2 100, web3 100" in printed, "what HAProxy shows"
    status, lines = today.check()
    assert status == 1
    assert "✕ controller: it does not run" in lines
    refused = today.slackwater.run("slackwater", "pause", "--pool", POOL)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: the controller does not run, so `pause` reaches nobody; ")
    assert "NATS" not in refused.stderr
    assert today.slackwater.command("restore", "--all") == "web: nothing to put back\n"
    today.slackwater.host.call("systemctl", "start", CONTROLLER)
    assert today.slackwater.command("check", "--wait", f"{2 * SOON_S:g}s").endswith("nothing is missing\n")
    # A pin outlives the controller.
    today.until(today.weights, lambda weights: weights["web1"] == 20, "HAProxy shows the pinned weight again")
    today.until(lambda: today.row("web1"), lambda row: row["pinned"] and row["wanted"] == 20, "it is pinned")
    today.shows("web1 has weight 20 of 100, pinned")  # also where a neighbour of the test's machine is beside it
    today.slackwater.command("unpin", "web1")
    today.calms_down()


def test_a_server_that_is_stopped_is_down_and_not_calm(today: Day) -> None:
    today.webs[2].services["apache"].stop()
    today.shows("web3 is down in HAProxy")
    assert today.row("web3")["condition"] == "down"
    status, lines = today.check()
    assert any(line.startswith("! ") and "web3 (down)" in line for line in lines)
    assert status == 0
    today.site.start_service(today.webs[2], "apache")
    today.until(
        lambda: today.row("web3")["condition"], lambda condition: condition == "up", "HAProxy sends it requests again"
    )
