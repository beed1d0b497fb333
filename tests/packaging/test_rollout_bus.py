"""The broker's files as the role writes them, on a nats-server of this machine: what a stolen key of a node can do."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import rollout_thief
from tests.support.ansible_files import module, rendered
from tests.support.nats_identities import USER, Identity
from tests.support.real_processes import free_address

pytestmark = [
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="needs nats-server"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]
WEBS = ["web1", "web2", "web3"]


@dataclass
class Bus:
    """A broker that runs, and the nodes' seeds."""

    address: str
    authority: Path
    monitors: dict[str, str]
    wsengines: dict[str, str]


def certificate(authority: ModuleType, identity: ModuleType, folder: Path) -> None:
    ours, key = authority.authority("Test", 10)
    private = identity.openssl(*identity.EC_KEY).stdout
    request = identity.request({"name": "lb1"}, private)
    (folder / "key.pem").write_bytes(private)
    (folder / "certificate.pem").write_text(authority.sign(request, "lb1", ["127.0.0.1"], ours, key, 5))
    (folder / "authority.pem").write_text(ours)


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("broker")
    certificate(module("authority"), module("identity"), folder)
    monitors, wsengines = ({name: Identity.new(USER) for name in WEBS} for _ in range(2))
    address = free_address()
    values = {
        "groups": {"nodes": WEBS, "brokers": ["lb1"]},
        "slackwater_nodes_group": "nodes",
        "slackwater_brokers_group": "brokers",
        "hostvars": {
            name: {
                "slackwater_node_monitor_nkey": monitors[name].public,
                "slackwater_node_wsengine_nkey": wsengines[name].public,
            }
            for name in WEBS
        },
        "inventory_hostname": "lb1",
        "slackwater_pool": "web",
        "slackwater_vault": {"controller_password": "c" * 40, "cluster_password": "x"},
        "slackwater_broker_listen": "127.0.0.1",
        "slackwater_broker_port": int(address.rpartition(":")[2]),
        "slackwater_broker_cluster_port": 0,
    }
    for name in ("users.conf", "nats.conf"):
        text = rendered("slackwater_broker", f"{name}.j2", **values)
        text = text.replace("/etc/slackwater/broker", str(folder)).replace("/var/lib/slackwater-broker", str(folder))
        text = text.replace("timeout: 5\n", "timeout: 60\n")  # a busy machine may need as long for a handshake
        (folder / name).write_text(text)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["nats-server", "-c", str(folder / "nats.conf")], stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 60.0
        while b"Server is ready" not in (folder / "log").read_bytes():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline_s, (folder / "log").read_text()
            time.sleep(0.05)
        seeds = [{name: identity.seed for name, identity in some.items()} for some in (monitors, wsengines)]
        yield Bus(address, folder / "authority.pem", *seeds)
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("node", WEBS)
@pytest.mark.parametrize("part", ["monitor", "wsengine"])
def test_with_a_stolen_key_of_a_node_every_other_subject_is_refused(bus: Bus, part: str, node: str) -> None:
    seeds = bus.monitors if part == "monitor" else bus.wsengines
    may_say = {f"slackwater.change.web.{node}", f"slackwater.knobs.web.{node}"}
    may_hear = {f"slackwater.order.web.{node}"}
    if part == "monitor":
        may_say = {f"slackwater.sample.web.{node}"}
        may_hear = {f"slackwater.weight.web.{node}", f"slackwater.ask.web.{node}"}
    with rollout_thief.connect(bus.address, seeds[node], bus.authority) as thief:
        for subject in rollout_thief.subjects(WEBS):
            assert thief.may_publish(subject) == (subject in may_say), f"{part} of {node} publishes {subject}"
            assert thief.may_subscribe(subject) == (subject in may_hear), f"{part} of {node} hears {subject}"
        for subject in rollout_thief.WILDCARDS:
            assert not thief.may_subscribe(subject), f"{part} of {node} hears {subject}"


def test_who_has_no_known_key_does_not_come_in(bus: Bus) -> None:
    assert rollout_thief.is_refused(bus.address, "", bus.authority)
    assert rollout_thief.is_refused(bus.address, rollout_thief.new_seed(), bus.authority)
    assert not rollout_thief.is_refused(bus.address, bus.monitors["web1"], bus.authority)


def test_the_broker_has_no_seed_of_a_node(bus: Bus) -> None:
    text = (bus.authority.parent / "users.conf").read_text()
    assert not [seed for seed in [*bus.monitors.values(), *bus.wsengines.values()] if seed in text]
    assert len([line for line in text.splitlines() if re.search(r"nkey: \W?U", line)]) == 6
