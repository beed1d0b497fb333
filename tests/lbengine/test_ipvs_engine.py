"""The engine's turns on a real IPVS: the same as on HAProxy, with another backend."""

from __future__ import annotations

from pathlib import Path

from slackwater.core.config import LbengineSettings
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import State
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.ipvs.ipvs import Lvs
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.engine import Engine
from slackwater_lab.played_verdict import verdict
from tests.support.ipvs_guest import IpvsGuest, needs_ipvs

SERVICE = "-t 10.9.9.9:80"
NAMES = ("10.8.0.1:80", "10.8.0.2:80", "10.8.0.3:80")
pytestmark = needs_ipvs


def test_a_slow_server_is_lowered_and_the_end_restores_everything(guest: IpvsGuest, tmp_path: Path) -> None:
    made = f"-A {SERVICE} -s wlc\n" + "".join(f"-a {SERVICE} -r {name} -m -w 100 -x 9 -y 3\n" for name in NAMES)
    guest.run(["ipvsadm", "-R"], made)
    before = guest.ok("ipvsadm -Ln --thresholds; ipvsadm -Sn")
    pool = HAProxyPool(name="web", backend="web", socket="/unused", mode="act")
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(pool, LbengineSettings(), tmp_path, journal, balancer=Lvs(SERVICE, guest.run))
        now_s = 1000.0

        def cycle(state: State) -> dict[str, int]:
            nonlocal now_s
            now_s += 0.2
            for name in NAMES:
                engine.inbox.put(verdict(name, state if name == NAMES[0] else "calm"), now_s)
            engine.cycle(now_s)
            return {server.name: server.weight for server in Lvs(SERVICE, guest.run).read().servers}

        assert set(cycle("calm").values()) == {100}
        lowered = cycle("interference")
        assert lowered[NAMES[0]] < 50
        assert [lowered[name] for name in NAMES[1:]] == [100, 100]
        engine.stop(now_s, "the test ends")
    assert guest.ok("ipvsadm -Ln --thresholds; ipvsadm -Sn") == before


def test_a_pause_puts_the_weights_back_and_after_it_the_operators_are_the_baseline(
    guest: IpvsGuest, tmp_path: Path
) -> None:
    guest.run(["ipvsadm", "-R"], f"-A {SERVICE} -s wlc\n" + "".join(f"-a {SERVICE} -r {n} -m -w 100\n" for n in NAMES))
    pool = IpvsPool(name="web", service=SERVICE, mode="act")
    with Journal.open(journal_path(tmp_path)) as journal:
        driven = Lvs(SERVICE, guest.run)
        engine = Engine(pool, LbengineSettings(), tmp_path, journal, balancer=driven)
        now_s = 1000.0

        def cycle(state: State) -> list[int]:
            nonlocal now_s
            now_s += 0.2
            for name in NAMES:
                engine.inbox.put(verdict(name, state if name == NAMES[0] else "calm"), now_s)
            engine.cycle(now_s)
            return [server.weight for server in driven.read().servers]

        cycle("calm")
        assert cycle("interference")[0] < 50
        assert "paused by alice (deploy)" in engine.command(Request(action="pause", by="alice", why="deploy"), now_s)
        assert cycle("interference") == [100] * len(NAMES)
        guest.ok(f"ipvsadm -e {SERVICE} -r {NAMES[1]} -m -w 60")
        assert cycle("interference") == [100, 60, *[100] * (len(NAMES) - 2)], "they are the operator's"
        engine.command(Request(action="resume", by="alice", why="done"), now_s)
        assert cycle("interference")[0] < 50
        engine.stop(now_s, "the test ends")
        assert [server.weight for server in driven.read().servers] == [100, 60, *[100] * (len(NAMES) - 2)]
        commands = [
            change.what for change in reversed(journal.changes("web", 100)) if change.what in ("pause", "resume")
        ]
        assert commands == ["pause", "resume"]
