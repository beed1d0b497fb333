"""From nothing to green, without monitors and then with them, by what `init`, `monitors` and `check` print."""

from __future__ import annotations

import re

import pytest

from tests.site.controller import CONTROLLER, INIT, MONITORS, Slackwater
from tests.site.site import SHAPES, Site, missing

LACKS = missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(LACKS), reason=f"the test site cannot run here; missing: {'; '.join(LACKS)}"),
]
GREEN = """\
✓ configuration: /etc/slackwater/controller.toml
✓ balancer of pool web: backend `web` behind /run/haproxy/admin.sock
✓ controller: pid PID, dashboard http://127.0.0.1:8099
✓ requests of pool web: N requests/s, 0.0 errors/s
✓ node web1 of pool web: its measurements arrive
✓ node web2 of pool web: its measurements arrive
✓ node web3 of pool web: its measurements arrive
nothing is missing
"""


def test_what_is_printed_leads_to_green_and_check_says_when_it_is() -> None:
    with Site(SHAPES["stock"]) as site, Slackwater(site) as slackwater:
        first = slackwater.run("slackwater", "check")
        assert first.returncode == 1
        assert "✕ configuration: " in first.stdout
        assert "    → slackwater init" in first.stdout

        done = slackwater.run(*INIT)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].endswith(", admin socket /run/haproxy/admin.sock (from /etc/haproxy/haproxy.cfg:5)")
        servers = ", ".join(f"{web.name} {web.address}:80 weight 100" for web in site.webs)
        assert lines[2:4] == [f"backend web: balance leastconn; {servers}", "  ✓ can be driven"]
        assert "wrote /etc/slackwater/controller.toml: observe mode, which sets no weight" in lines
        remedy = next(line for line in lines if "  ✕ user slackwater may not write to /run/haproxy/admin.sock" in line)
        assert "restart HAProxy (a reload keeps the socket's owner)" in remedy
        assert slackwater.run(*INIT).returncode != 0, "what is there stays"

        drop_in = slackwater.host.place(f"/etc/systemd/system/{CONTROLLER}.service.d/haproxy-socket.conf")
        assert drop_in.read_text().endswith("[Service]\nSupplementaryGroups=haproxy\n")

        slackwater.open_socket()
        again = slackwater.run(*INIT, "--force")
        assert "✕" not in again.stdout, "the remedy was right"
        assert "  slackwater web user add NAME --role operator" in again.stdout
        half = slackwater.run("slackwater", "check")
        assert half.returncode == 1
        assert f"✕ controller: it does not run\n    → systemctl enable --now {CONTROLLER}" in half.stdout

        slackwater.host.call("systemctl", "enable", "--now", CONTROLLER)
        alone = slackwater.run("slackwater", "check", "--wait", "60s")
        assert alone.returncode == 0, alone.stdout
        alone = slackwater.run("slackwater", "check")
        assert "✓ node web1 of pool web: its balancer sees it" in alone.stdout
        assert (
            "+ monitors of pool web: 3 of 3 servers have none, and need none; one would add the cause" in alone.stdout
        )
        assert "    → slackwater monitors\n" in alone.stdout

        second = slackwater.run(*MONITORS)
        assert second.returncode == 0, second.stderr
        assert f"  systemctl restart {CONTROLLER}\n" in second.stdout
        steps = second.stdout.partition("For each web server")[2].splitlines()
        commands = [line.strip() for line in steps if line.startswith(("  ssh ", "  slackwater "))]
        assert len(commands) == 3 * len(site.webs)
        slackwater.host.call("systemctl", "restart", CONTROLLER)
        for command in commands:
            slackwater.host.call("/bin/sh", "-c", command)
        waited = slackwater.run("slackwater", "check", "--wait", "60s")
        assert (waited.returncode, waited.stdout.splitlines()[-1]) == (0, "nothing is missing")
        green = slackwater.run("slackwater", "check").stdout
        green = re.sub(r"web: [\d.]+ requests/s", "web: N requests/s", re.sub(r"pid \d+", "pid PID", green))
        assert green == GREEN
