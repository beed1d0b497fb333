"""Nodes whose Samples are made here and sent with the nodes' own keys: an episode begins when the test says so; and
HAProxy's weights on a host."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec

from slackwater.core import messages
from tests.support import rollout_thief
from tests.support.rollout_ansible import Site
from tests.support.rollout_hosts import Hosts
from tests.support.rollout_site import WEBS
from tests.support.synthetic_cluster import Cluster

LOOK = """
import json, socket, sys, time
end = time.time() + float(sys.argv[1])
while True:
    link = socket.socket(socket.AF_UNIX); link.connect("/run/haproxy/admin.sock"); link.sendall(b"show stat\\n")
    text = b"".join(iter(lambda: link.recv(65536), b"")).decode()
    rows = [line.split(",") for line in text.splitlines()]
    weights = {row[1]: int(row[18]) for row in rows if row[0] == "web" and row[1] != "BACKEND"}
    print(json.dumps([time.time(), weights]), flush=True)
    if time.time() >= end: break
    time.sleep(0.1)
"""


class Nodes:
    """Sends each node's Samples to a broker, five times a second, until the block ends."""

    def __init__(self, site: Site, broker: str, folder: Path) -> None:
        self.cluster = Cluster(tuple(WEBS))
        authority = folder / "authority.pem"
        authority.write_text(site.hosts.ssh("web1", "cat /etc/slackwater/node/authority.pem").stdout)
        seeds = {name: site.hosts.ssh(name, "cat /etc/slackwater/node/monitor.nkey").stdout.strip() for name in WEBS}
        self._links = {name: rollout_thief.Thief(broker, seed, authority) for name, seed in seeds.items()}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        for link in self._links.values():
            link.close()

    def _send(self) -> None:
        start_s = time.monotonic()
        while not self._stop.wait(0.2):
            for name, link in self._links.items():
                sample = self.cluster.sample(name, time.monotonic() - start_s)
                sample = msgspec.structs.replace(sample, time_unix_s=time.time())
                link.flood(f"slackwater.sample.web.{name}", [messages.encode(sample)])


def weights(ours: Hosts, name: str) -> dict[str, int]:
    line = ours.ssh(name, f"python3 - 0 <<'END'\n{LOOK}\nEND").stdout.splitlines()[-1]
    figures: dict[str, int] = json.loads(line)[1]
    return figures
