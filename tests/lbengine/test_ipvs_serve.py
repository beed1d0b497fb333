"""`slackwater serve` and its commands on IPVS, all of them in the guest, with the backends that production uses."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator

import pytest

from tests.support.ipvs_guest import GUEST, IpvsGuest, needs_ipvs
from tests.support.ipvs_site import IpvsSite
from tests.support.paths import ROOT
from tests.support.real_keepalived import FOLDER, WEB, RunningKeepalived, configuration, real_server

pytestmark = [needs_ipvs, pytest.mark.timeout(600)]
STATE = "/run/slackwater"
SERVERS = ("10.9.1.2:80", "10.9.2.2:80", "10.9.3.2:80")
NODES = ("web1", "web2", "web3")
WITHIN_S = 120


class Controller:
    """A controller's configuration in the guest, and what is started with it."""

    def __init__(self, guest: IpvsGuest) -> None:
        self.guest = guest
        self.config = "/run/controller.toml"
        self.python = f"PYTHONPATH={ROOT} {sys.executable}"

    def configure(self, balancer: str) -> None:
        nodes = "".join(f'"{server}" = "{node}"\n' for server, node in zip(SERVERS, NODES, strict=True))
        self.guest.replace(
            self.config,
            f'state_dir = "{STATE}"\n[web]\nlisten = ""\n'
            # The guest emulates its CPU: a start of ipvsadm can take seconds there.
            '[lbengine]\nsocket_timeout_s = 30.0\n[[pool]]\nname = "web"\n'
            f'balancer = "{balancer}"\nservice = "{WEB}"\nmode = "act"\n[pool.servers]\n{nodes}',
        )

    def cli(self, words: str) -> tuple[int, str]:
        return self.guest.sh(f"{self.python} -m slackwater.controller.cli.main {words} --config {self.config}")

    def serve(self) -> None:
        self.guest.ok(
            f"{self.python} -m slackwater.controller.cli.main serve --config {self.config} "
            f">/run/serve.log 2>&1 & disown"
        )
        self._until("grep -q running: /run/serve.log")

    def log(self) -> str:
        return self.guest.sh("cat /run/serve.log")[1]

    def noise(self) -> None:
        """Has the first node slow from now on; returns when its server has less weight."""
        verdicts = f"{self.python} {GUEST}/verdicts.py {self.config} {' '.join(NODES)} >/run/verdicts.log 2>&1"
        self.guest.ok(f"{verdicts} & echo $! >/run/verdicts.pid; disown")
        self._until(f"! ipvsadm -Sn | grep -q -e '-r {SERVERS[0]} .*-w 20'")

    def weight(self) -> int:
        """The weight of the first server."""
        lines = self.guest.ok("ipvsadm -Sn").splitlines()
        return next(int(line.split("-w ")[1].split()[0]) for line in lines if f"-r {SERVERS[0]} " in line)

    def kill_all(self) -> None:
        """The supervisor and the engine, so that nobody puts anything back."""
        described = json.loads(self.guest.ok(f"cat {STATE}/serve.json"))
        serve, lbengine = described["pid"], described["children"]["lbengine"]
        self.guest.ok(f"kill -STOP {serve}; kill -9 {lbengine}; kill -9 {serve}")
        self._wait_for([described["pid"], *described["children"].values()])

    def clean(self) -> None:
        self.guest.sh("kill $(cat /run/verdicts.pid)")
        status, text = self.guest.sh(f"cat {STATE}/serve.json")
        if status == 0:
            described = json.loads(text)
            self.guest.sh(f"kill -9 {described['pid']}")
            self._wait_for([described["pid"], *described["children"].values()])
        self.guest.ok(f"rm -rf {STATE} /run/serve.log /run/verdicts.pid")

    def _wait_for(self, pids: Iterable[int | None]) -> None:
        paths = " ".join(f"/proc/{pid}" for pid in pids if pid is not None)
        self._until(f"! ls -d {paths} 2>/dev/null | grep -q .")  # `ls` alone fails when the first of them is gone

    def _until(self, condition: str) -> None:
        """Waits in the guest, which is slow: questions from outside would keep it from its work."""
        status, _ = self.guest.sh(f"timeout {WITHIN_S} bash -c {shlex.quote(f'until {condition}; do sleep 0.3; done')}")
        assert status == 0, f"not within {WITHIN_S} s: {condition}; the log: {self.log()}"


@pytest.fixture
def controller(guest: IpvsGuest) -> Iterator[Controller]:
    controller = Controller(guest)
    yield controller
    controller.clean()


def table(guest: IpvsGuest) -> list[str]:
    """All but the connections."""
    limits = [line.split()[:4] for line in guest.ok("ipvsadm -Ln --thresholds").splitlines()]
    return guest.ok("ipvsadm -Sn").splitlines() + [" ".join(words) for words in limits]


def story(controller: Controller) -> None:
    """serve, a lowered weight, status, everybody killed, restore, why."""
    before = table(controller.guest)
    controller.serve()
    controller.noise()
    status, printed = controller.cli("status --json")
    (pool,) = json.loads(printed)["pools"]
    assert [(row["server"], row["baseline"]) for row in pool["rows"]] == [(server, 20) for server in SERVERS]
    controller.kill_all()
    lowered = controller.weight()
    assert lowered < 20, "nobody put it back"
    assert controller.cli("restore --why killed") == (0, f"web: {SERVERS[0]} {lowered} -> 20\n")
    assert table(controller.guest) == before
    status, printed = controller.cli("why web1")
    assert status == 0
    assert "said by the test" in printed
    assert "Traceback" not in controller.log()


@pytest.mark.slow
def test_a_service_of_ipvs_is_served_and_restored_after_everybody_was_killed(controller: Controller) -> None:
    made = f"-A {WEB} -s wrr\n" + "".join(f"-a {WEB} -r {name} -m -w 20 -x 9 -y 3\n" for name in SERVERS)
    controller.guest.run(["ipvsadm", "-R"], made)
    controller.configure("lvs")
    story(controller)


@pytest.mark.slow
def test_a_service_of_keepalived_is_served_and_restored(controller: Controller, site: IpvsSite) -> None:
    site.guest.ok(f"mkdir -p {FOLDER}")
    keepalived = RunningKeepalived(site.guest)
    try:
        keepalived.start(configuration(*(real_server(number) for number in (1, 2, 3))))
        controller.configure("lvs")
        status, printed = controller.cli("serve")
        assert (status, 'use `balancer = "keepalived"`' in printed) == (1, True)
        controller.configure("keepalived")
        story(controller)
        assert site.guest.ok(f"cat {FOLDER}/rs1").strip() == "0"
        assert controller.cli("restore") == (0, "web: nothing to put back\n")
        controller.serve()
        status, printed = controller.cli("serve")
        assert (status, f"service `{WEB}`; stop that one first" in printed) == (1, True)
    finally:
        keepalived.stop()
        site.guest.ok(f"rm -rf {FOLDER}")
