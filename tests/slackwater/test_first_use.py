"""The first use: `init` and `serve` beside a real HAProxy, and each server is known; nothing on the web servers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.config import load
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers
from tests.support.real_processes import free_address
from tests.support.served_site import HOSTS, Site, until

SNIFFER = shutil.which("slackwater-sniffer", path=str(PROGRAMS))
REQUESTS = 330
"""Enough for the p99 of each server."""


@needs_haproxy
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may capture")
@pytest.mark.usefixtures("haproxy_in_full")
def test_after_init_each_server_has_its_rate_percentiles_errors_and_state(tmp_path: Path) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    with web_servers(3) as ports, haproxy(backend(ports)) as running:
        site = Site(tmp_path, running)
        site.environment["PATH"] = f"{PROGRAMS}:{site.environment['PATH']}"
        where = ("--config", str(site.config), "--state-dir", str(site.state), "--socket", running.socket)
        done = CliRunner().invoke(cli, ["init", "--force", *where])
        assert done.exit_code == 0, done.output
        assert "The web servers need nothing." in done.output
        own = f'[web]\nlisten = "{free_address()}"\n'  # beside other tests; the section [bus] of before stays
        site.config.write_text(site.config.read_text() + own)
        try:
            site.serve()
            site.wait_for_cycles()

            def known() -> dict[str, Any]:
                running.request(30)
                rows = {row["node"]: row for row in site.status()["rows"]}
                whole = all(
                    (row["percentiles"] or {}).get("p99_ms") and row["rps"] and row["errors_per_s"] is not None
                    for row in rows.values()
                )
                return rows if whole else {}

            running.request(REQUESTS)
            rows = until(known, "rate, percentiles and errors of each server")
            assert set(rows) == set(HOSTS)
            for row in rows.values():
                times = row["percentiles"]
                assert 0.0 < times["p50_ms"] <= times["p95_ms"] <= times["p99_ms"]
                assert (row["weight"], row["condition"], row["errors_per_s"]) == (100, "unchecked", 0.0)
            assert nats_server.nodes_of(load(site.config)) == []
            lines = {line["about"]: line for line in json.loads(site.cli("check", "--json").stdout)}
            assert "packets tell the response times of 3 of 3" in lines["balancer's view of pool web"]["text"]
            assert {line["state"] for line in lines.values()} <= {"ok", "warning", "addition"}
            assert lines["node host1 of pool web"]["state"] == "ok"
            addition = lines["monitors of pool web"]
            assert (addition["state"], addition["remedy"]) == ("addition", "slackwater monitors")
            assert addition["text"].startswith("3 of 3 servers have none, and need none; one would add the cause")
        finally:
            site.clean()
