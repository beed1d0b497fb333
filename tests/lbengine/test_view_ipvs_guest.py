"""The packets of a real IPVS that rewrites addresses: each passes the director twice, and counts once."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from slackwater.lbengine.view.packets import end_of
from tests.support.ipvs_guest import needs_ipvs
from tests.support.ipvs_site import IpvsSite
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import until

pytestmark = needs_ipvs
OUT, ERRORS, PID = "/run/view.json", "/run/view.err", "/run/view.pid"
HTTP_PORT = 81
WITHIN_S = 120.0


@pytest.mark.parametrize("ipv6", [False, True])
def test_of_connections_with_rewritten_addresses_the_servers_side_is_followed(site: IpvsSite, ipv6: bool) -> None:
    lvs = site.service("wrr", (30, 10), ipv6=ipv6, port=HTTP_PORT)
    shown = lvs.read()
    assert all(server.answers_pass and server.is_tcp for server in shown.servers)
    ends = [end_of(server.address) for server in shown.servers]
    servers = " ".join(f"--server {end}" for end in ends)
    sniffer = f"{PROGRAMS / 'slackwater-sniffer'} servers -i any {servers} --every 0.2"
    site.guest.ok(f"setsid {sniffer} >{OUT} 2>{ERRORS} & echo $! >{PID}; disown")

    def lines() -> list[dict[str, object]]:
        errors = site.guest.sh(f"cat {ERRORS}")[1]
        assert not errors, errors
        text = site.guest.sh(f"cat {OUT}")[1]
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    try:
        until(lines, "a look of the sniffer", WITHIN_S)
        assert Counter(site.connect(lvs, 40, http=True, all_sources=not ipv6)) == {"rs1": 30, "rs2": 10}

        def counted() -> Counter[str]:
            exchanges = Counter[str]()
            for line in lines():
                if "server" in line:
                    assert (line["unmatched"], line["holes"], line.get("is_foreign")) == (0, 0, None)
                    exchanges[str(line["server"])] += int(str(line["exchanges"]))
            return exchanges

        until(lambda: counted().total() >= 40, "all requests", WITHIN_S)
        number_of = {site.address(number, ipv6, HTTP_PORT): count for number, count in ((1, 30), (2, 10))}
        assert counted() == number_of
    finally:
        site.guest.ok(f"kill $(cat {PID})")
