"""Monitor and wsengine as their units run them, beside Apache and php-fpm in systemd's own slices, on cgroup v2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import systemd_guest
from tests.support.qemu_guest import Guest

pytestmark = [
    pytest.mark.slow,  # booting systemd without KVM takes ten seconds, installing its servers half a minute once
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(systemd_guest.why_not()), reason=f"no systemd guest: {systemd_guest.why_not()}"),
]
WEB_UNITS = ("apache2", "php8.2-fpm")
TREE = "/sys/fs/cgroup"
ENGINE = """\
node = "n1"
state_dir = "/var/lib/slackwater-wsengine"
check_every_s = 0.3
[cpu]
cgroup = "web.slice"
share = [10, 400]
cores = [1, 8]
[php_fpm]
max_children = [1, 32]
[apache]
max_request_workers = [10, 400]
"""
NODE = """\
node = "n1"
period_s = 0.5
[cpu]
cgroup = "web.slice"
[processes]
cgroup = "web.slice"
[sniffer]
interface = "lo"
[pmu]
scopes = ["system"]
events = { cycles = "cpu-clock", instructions = "task-clock" }
"""
SLICE = "[Slice]\nCPUWeight=100\nAllowedCPUs=0-1\n"
TRY = """\
[Service]
Type=exec
WatchdogSec=0
Restart=no
ExecStart=
ExecStart=/usr/bin/slackwater-wsengine try --config /etc/slackwater/wsengine.toml --json {words} --seconds 300
ExecStopPost=
StandardOutput=truncate:{printed}
StandardError=journal
"""
PRINTED = "/run/try.json"
SPIN = "<?php $end = microtime(true) + 2; while (microtime(true) < $end); echo 'spun';\n"


def write(guest: Guest, path: str, text: str) -> None:
    guest.ok(f"mkdir -p {path.rpartition('/')[0]}")
    guest.write(path, text)


@pytest.fixture(scope="module")
def site() -> Iterator[Guest]:
    """Both web servers in one slice with a weight and cores, as wsengine's page says."""
    with systemd_guest.booted() as guest:
        write(guest, "/etc/slackwater/wsengine.toml", ENGINE)
        write(guest, "/etc/slackwater/node.toml", NODE)
        write(guest, "/etc/systemd/system/web.slice", SLICE)
        write(guest, "/var/www/html/spin.php", SPIN)
        for unit in WEB_UNITS:
            write(guest, f"/etc/systemd/system/{unit}.service.d/slice.conf", "[Service]\nSlice=web.slice\n")
        guest.ok("sed -i 's/^;process_control_timeout.*/process_control_timeout = 10s/' /etc/php/8.2/fpm/php-fpm.conf")
        guest.ok("systemctl daemon-reload && systemctl restart apache2 php8.2-fpm")
        yield guest


def start(guest: Guest, words: str) -> None:
    """A `try` in the sandbox of wsengine's unit; returns when it has printed its first Change."""
    write(guest, "/run/systemd/system/slackwater-wsengine.service.d/try.conf", TRY.format(words=words, printed=PRINTED))
    guest.ok(f"rm -f {PRINTED}; systemctl daemon-reload && systemctl start slackwater-wsengine")
    guest.ok(
        f"until grep -qs '^{{' {PRINTED}; do systemctl is-active -q slackwater-wsengine"
        " || { journalctl --no-pager -n 5 -u slackwater-wsengine; exit 1; }; sleep 0.2; done"
    )


def changes(guest: Guest) -> list[dict[str, Any]]:
    """Those of the `try`, which has ended."""
    return [json.loads(line) for line in guest.ok(f"cat {PRINTED}").splitlines()]


def stop(guest: Guest) -> list[dict[str, Any]]:
    """Ends the `try`; its Changes."""
    guest.ok("systemctl stop slackwater-wsengine")
    return changes(guest)


def cores(guest: Guest) -> list[str]:
    """On which the first processes of both web servers may run."""
    status = "/proc/$(systemctl show --value -p MainPID {unit})/status"
    files = " ".join(status.format(unit=unit) for unit in WEB_UNITS)
    return re.findall(r"Cpus_allowed_list:\s+(\S+)", guest.ok(f"cat {files}"))


def test_share_and_cores_of_the_slice_are_set_within_the_units_sandbox(site: Guest) -> None:
    start(site, "cpu.share 300")
    assert site.ok(f"cat {TREE}/web.slice/cpu.weight").strip() == "300"
    applied, back = stop(site)
    assert (applied["after"], applied["applied"], back["after"]) == (300, True, 100)
    assert site.ok(f"cat {TREE}/web.slice/cpu.weight").strip() == "100"
    start(site, "cpu.cores 1")
    assert cores(site) == ["0", "0"]
    stop(site)
    assert cores(site) == ["0-1", "0-1"]


def test_a_daemon_reload_undoes_a_knob_and_that_is_noticed(site: Guest) -> None:
    """systemd writes its own weight and cores again; the lease ends instead of claiming what is no longer set."""
    for words, key, was in (
        ("cpu.share 300", "cpu.weight", "weight 100, no quota"),
        ("cpu.cores 1", "cpuset.cpus", "the cores 0-1"),
    ):
        start(site, words)
        set_now = site.ok(f"cat {TREE}/web.slice/{key}")
        site.ok("systemctl daemon-reload")
        assert site.ok(f"cat {TREE}/web.slice/{key}") != set_now
        site.ok("while systemctl is-active -q slackwater-wsengine; do sleep 0.2; done")
        back = changes(site)[-1]
        assert back["cause"] == "someone_else"
        assert f"somebody else set {was}" in back["why"]


def test_php_fpm_and_apache_are_retuned_in_the_slice(site: Guest) -> None:
    for words in ("php_fpm.max_children 8", "apache.max_request_workers 100"):
        start(site, words)
        assert [change["applied"] for change in stop(site)] == [True, True]
    assert site.ok("curl -s http://127.0.0.1/spin.php") == "spun"


def metrics(guest: Guest) -> dict[str, float]:
    printed = guest.ok("curl -s http://127.0.0.1:9465/metrics")
    return {name: float(value) for name, value in re.findall(r"^(slackwater_\S+) (\S+)$", printed, re.MULTILINE)}


def test_the_monitors_unit_measures_the_slice_and_names_what_debian_denies(site: Guest) -> None:
    site.ok("systemctl set-property --runtime web.slice CPUQuota=40%")
    site.ok("systemctl start slackwater-monitor")
    try:
        site.ok("(for i in 1 2 3; do curl -s http://127.0.0.1/spin.php; done) >/dev/null")
        shown = metrics(site)
        assert shown["slackwater_cpu_cores"] == 0.4
        assert shown["slackwater_cpu_throttled_seconds_total"] > 0
        assert shown["slackwater_web_processes"] >= 5
        assert shown["slackwater_web_run_delay_seconds_total"] > 0
        # Debian's kernels start with 3, where CAP_PERFMON is not enough.
        printed = site.ok("journalctl -o cat --no-pager -u slackwater-monitor")
        assert "kernel.perf_event_paranoid is 3" in printed
        site.ok("systemctl stop slackwater-monitor; echo 2 >/proc/sys/kernel/perf_event_paranoid")
        site.ok("systemctl start slackwater-monitor")
        site.ok(
            "for turn in $(seq 100); do curl -s http://127.0.0.1:9465/metrics"
            " | grep -q '^slackwater_cycles_per_instruction 1' && exit 0; sleep 0.2; done;"
            " curl -s http://127.0.0.1:9465/metrics; exit 1"
        )
    finally:
        site.ok("systemctl stop slackwater-monitor; systemctl set-property --runtime web.slice CPUQuota=")
