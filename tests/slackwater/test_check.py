"""`slackwater check`, before and beside a real `serve`."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from slackwater.controller.capture import capture_remedy
from slackwater.controller.cli.check_command import unseen, view_lines
from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings, load
from slackwater.core.config.balancer_view import BalancerViewSettings
from slackwater.core.messages import Sample, Traffic, decode
from slackwater.lbengine.backends.haproxy import measured
from slackwater.lbengine.view.packets import DIRECT
from tests.support.paths import ROOT
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.served_site import HOSTS, IN_TIME_S, Site

pytestmark = needs_haproxy


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    site.write(mode="observe")
    yield site
    site.clean()


def looked(site: Site, *arguments: str) -> dict[str, dict[str, str]]:
    """By what each line is about; several of one are as the last."""
    done = site.cli("check", "--json", *arguments, within_s=2 * IN_TIME_S)
    lines = {line["about"]: line for line in json.loads(done.stdout)}
    assert done.returncode == int(any(line["state"] == "missing" for line in lines.values())), done.stderr
    return lines


@contextmanager
def samples(site: Site) -> Iterator[None]:
    """The nodes' Samples go over the bus, each with its node's own user."""
    done = threading.Event()
    example = decode("sample", (ROOT / "schema/examples/sample-full.json").read_bytes())
    assert isinstance(example, Sample)

    async def publish() -> None:
        passwords = site.state / "bus" / "passwords"
        buses = {
            host: await Bus.connect(
                BusSettings(f"nats://{site.listen}", user=host, password_file=str(passwords / f"{host}.password")),
                host,
                wait_s=IN_TIME_S,
            )
            for host in HOSTS
        }
        while not done.is_set():
            for host, bus in buses.items():
                sample = msgspec.structs.replace(example, node=host, pool="web", time_unix_s=time.time())
                await bus.publish(sample)
            await asyncio.sleep(0.2)
        for bus in buses.values():
            await bus.close()

    thread = threading.Thread(target=asyncio.run, args=(publish(),))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_each_thing_that_is_missing_names_its_remedy_until_nothing_is(site: Site) -> None:
    lines = looked(site)
    assert lines["configuration"]["state"] == lines["balancer of pool web"]["state"] == "ok"
    assert (lines["controller"]["text"], lines["controller"]["remedy"]) == (
        "it does not run",
        "systemctl enable --now slackwater-controller",
    )
    assert lines["node host1 of pool web"]["remedy"] == "slackwater bus node add web host1"
    better = lines["balance algorithm of pool web"]
    assert (better["text"], better["remedy"]) == measured.advice("roundrobin", "web", measured.read())
    assert better["state"] == "warning"

    for host in HOSTS:
        assert site.cli("bus", "node", "add", "web", host).returncode == 0
    site.serve()
    lines = looked(site, "--wait", "1s")
    assert "no measurement has come" in lines["node host2 of pool web"]["text"]
    with samples(site):
        done = site.cli("check", "--wait", f"{IN_TIME_S:g}s", within_s=2 * IN_TIME_S)
        assert done.returncode == 0, done.stdout
        assert done.stdout.endswith("nothing is missing\n")
        assert "waiting for what is missing, for " in done.stderr
        assert "✓ node host3 of pool web: its measurements arrive\n" in done.stdout

        site.replace('mode = "observe"', 'mode = "obey"')
        assert site.cli("reload").returncode == 1
        lines = looked(site)
        assert lines["configuration"]["text"].startswith(f"{site.config}:")
        assert "pool[0].mode" in lines["last reload"]["text"]
        assert lines["node host1 of pool web"]["state"] == "ok"


def test_a_balancer_that_is_away_and_a_file_that_is_not_there(site: Site) -> None:
    site.balancer.stop()
    line = looked(site)["balancer of pool web"]
    assert line["state"] == "missing"
    assert str(site.balancer.socket) in line["text"]
    site.config.unlink()
    assert [(line["about"], line["remedy"]) for line in looked(site).values()] == [("configuration", "slackwater init")]


def test_each_way_to_know_servers_without_monitors_is_counted_and_packets_have_a_remedy() -> None:
    def sample(why_not: str = "") -> Sample:
        absent = {"traffic.times": why_not} if why_not else {}
        return Sample(1, "web1", "web", 1.0, "boot", 0, 0.2, traffic=Traffic(rps=1.0), source="balancer", absent=absent)

    refused = "no times from packets on eth0: no right to capture on eth0: needs the capability CAP_NET_RAW, or root"
    not_there = "no times from packets on eth0: slackwater-sniffer: No such file or directory"
    lines = list(view_lines("web", [sample(), sample(refused), sample(refused), sample(not_there)], "install it"))
    assert [(line.about, line.state, line.remedy) for line in lines] == [
        ("balancer's view of pool web", state, remedy)
        for state, remedy in (("ok", ""), ("warning", "install it"), ("warning", "install it"))
    ]
    assert "packets tell the response times of 1 of 4 servers" in lines[0].text
    assert f"only counters tell of 2 of 4 servers without a monitor: {refused}" == lines[1].text
    assert list(view_lines("web", [], "")) == []
    (line,) = view_lines("web", [msgspec.structs.replace(sample(DIRECT), traffic=None)], "")
    assert (line.state, line.text) == ("warning", f"nothing tells of 1 of 1 servers without a monitor: {DIRECT}")


def test_what_the_capture_lacks_on_this_host_has_a_remedy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def remedy(sniffer: str) -> str:
        view = BalancerViewSettings(sniffer=sniffer)
        return capture_remedy(msgspec.structs.replace(load(site.config), balancer_view=view))

    assert "set `sniffer" in remedy("")
    assert "install /nowhere/sniffer on this host" in remedy("/nowhere/sniffer")
    assert remedy("true") == ""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "ip" else f"/bin/{name}")
    assert "iproute2" in remedy("true")


def test_a_node_whose_requests_are_not_known_is_not_all_well() -> None:
    sample = decode("sample", (ROOT / "schema/examples/sample-full.json").read_bytes())
    assert isinstance(sample, Sample)
    assert sample.traffic is not None
    reason = '8443: its requests cannot be counted; write "8443:unknown" in sniffer.ports'
    absent = msgspec.structs.replace(sample, traffic=None, absent={"traffic": reason})
    assert unseen(absent, 0.0) == reason
    silent = msgspec.structs.replace(sample, traffic=msgspec.structs.replace(sample.traffic, rps=0.0))
    assert unseen(silent, 20.0) == (
        "the balancer sends it 20.0 requests/s, and its monitor sees none; do they come on `sniffer.ports`?"
    )
    assert (unseen(silent, 0.5), unseen(sample, 20.0), unseen(None, 20.0)) == ("", "", "")
