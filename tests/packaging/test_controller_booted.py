"""The controller's unit as systemd runs it, from the installed package, in cgroups of version 2: memory that is used
up, logins, ends of every kind, and starts that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slackwater.web.memory import FIRST_TO_GO, MOST_BYTES
from tests.support import balancer_guest, systemd_guest
from tests.support.balancer_guest import CONFIG, UNIT, Balancer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(systemd_guest.why_not()), reason=f"no systemd guest: {systemd_guest.why_not()}"),
]
CGROUP = f"/sys/fs/cgroup/system.slice/{UNIT}.service"
KILLED = f"$(sed -n 's/^oom_kill //p' {CGROUP}/memory.events)"
# Less and less, until the kernel has ended a process; then as the unit has it again.
USE_UP = (
    f"before={KILLED}; left=$(cat {CGROUP}/memory.current);"
    f' while [ "{KILLED}" = "$before" ]; do left=$((left - 4194304)); [ $left -gt 0 ] || exit 1;'
    f" echo $left >{CGROUP}/memory.max; done; echo 1G >{CGROUP}/memory.max"
)
LOGINS = """\
import http.cookiejar, re, threading, urllib.error, urllib.parse, urllib.request
jar = http.cookiejar.CookieJar()
page = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
form = page.open("http://127.0.0.1:8099/login").read().decode()
token = re.search('name="csrf_token" value="([^"]+)"', form)[1]
cookie = "; ".join(f"{one.name}={one.value}" for one in jar)
answers = []
def log_in(number):
    data = urllib.parse.urlencode({"name": f"nobody{number}", "password": "x" * 20, "csrf_token": token}).encode()
    asked = urllib.request.Request("http://127.0.0.1:8099/login", data, {"Cookie": cookie})
    try: answers.append(urllib.request.urlopen(asked, timeout=100).status)
    except urllib.error.HTTPError as error: answers.append(error.code)
threads = [threading.Thread(target=log_in, args=(number,)) for number in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*sorted(set(answers)), len(answers))
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Balancer]:
    with balancer_guest.booted() as booted:
        yield booted


@pytest.fixture
def running(machine: Balancer) -> Iterator[Balancer]:
    """The controller runs with a lowered weight; afterwards all is as it was."""
    machine.start_with_a_lowered_weight()
    yield machine
    machine.guest.ok(f"systemctl stop --no-block {UNIT}")
    machine.until(f"systemctl show -p ActiveState --value {UNIT} | grep -qE 'failed|inactive'")
    machine.drop_in("test", "")
    machine.settings()


def test_the_unit_lets_the_controller_read_which_boot_this_is(running: Balancer) -> None:
    """Copies of one machine, which have its machine-id, are told apart by it alone."""
    boot_id = "/proc/sys/kernel/random/boot_id"
    main = running.shown("MainPID")
    assert running.guest.ok(f"nsenter -t {main} -m cat {boot_id}") == running.guest.ok(f"cat {boot_id}")


@pytest.mark.alone
def test_where_memory_is_used_up_the_dashboard_ends_and_the_rest_goes_on(running: Balancer) -> None:
    before = running.parts()
    page = f"/proc/{before['children']['web']}"
    running.until(f"grep -q 'Max data size  *{MOST_BYTES} ' {page}/limits")  # the unit lets it set its limit
    assert running.guest.ok(f"cat {page}/oom_score_adj").strip() == str(FIRST_TO_GO)
    killed = int(running.guest.ok(f"echo {KILLED}"))
    running.guest.ok(USE_UP)
    running.until(f"grep -q '\"web\": *{before['starts']['web'] + 1}' /var/lib/slackwater/serve.json")
    running.until("curl -s -o /dev/null http://127.0.0.1:8099/login")
    after = running.parts()
    assert after["children"].pop("web") != before["children"].pop("web")
    # Where pages are read again and again a part may be silent for too long, and is started anew.
    assert int(running.guest.ok(f"echo {KILLED}")) == killed + 1, "the kernel ended no other part"
    assert after["children"].keys() == before["children"].keys()
    assert (running.shown("ActiveState"), running.shown("NRestarts")) == ("active", "0")
    running.until_weight(20)


def test_a_hundred_logins_at_once_end_nothing(running: Balancer) -> None:
    running.until("curl -s -o /dev/null http://127.0.0.1:8099/login")
    before = running.parts()["children"]
    running.guest.write("/root/logins.py", LOGINS)
    *answers, count = running.guest.ok("python3 /root/logins.py").split()
    assert set(answers) == {"401", "429"}
    assert count == "100"
    assert running.parts()["children"] == before
    assert running.guest.ok(f"echo {KILLED}").strip() == "0"


@pytest.mark.parametrize("signal", ["KILL --kill-whom=main", "KILL", "TERM"])
def test_however_it_is_killed_the_baseline_weights_are_set(running: Balancer, signal: str) -> None:
    running.drop_in("test", "[Service]\nRestart=no\n")
    running.guest.ok(f"systemctl kill -s {signal} {UNIT}")
    running.until(f"systemctl show -p ActiveState --value {UNIT} | grep -qE 'failed|inactive'")
    running.until_weight(100)


def test_what_cannot_start_is_given_up_with_the_baseline_weights(running: Balancer) -> None:
    # Fewer starts within a longer time than the unit has: each takes half a minute in an emulated machine.
    running.drop_in("test", "[Unit]\nStartLimitIntervalSec=3600\nStartLimitBurst=3\n[Service]\nRestartSec=100ms\n")
    running.settings("no = toml at all\n")
    running.guest.ok(f"systemctl kill -s KILL {UNIT}")
    running.until(f"journalctl -q --no-pager -u {UNIT} | grep -q 'Start request repeated too quickly'")
    running.until(f"systemctl is-failed -q {UNIT}")
    assert running.log_text().count(f"{CONFIG}:6: not TOML") >= 2, "each start says what is wrong"
    running.until_weight(100)
    running.settings()
    running.start_with_a_lowered_weight()
