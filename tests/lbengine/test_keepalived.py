"""An IPVS that a real keepalived owns, as a backend."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slackwater.lbengine.backends.ipvs.ipvs import Lvs
from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.command_line import LONG, VALUE_IN_WORD, WITH_VALUE
from slackwater.lbengine.backends.keepalived.keepalived import Keepalived, LocalFiles, Owner, owned_by, owner
from slackwater.lbengine.backends.keepalived.preflight import check, claim
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable
from tests.support.ipvs_guest import needs_ipvs
from tests.support.ipvs_site import IpvsSite
from tests.support.paths import ROOT
from tests.support.real_haproxy import until
from tests.support.real_keepalived import FOLDER, RS1, RS2, RS3, WEB, RunningKeepalived, configuration, real_server

POOL = KeepalivedPool(name="web", service=WEB)


@pytest.fixture
def keepalived(site: IpvsSite) -> Iterator[RunningKeepalived]:
    site.guest.ok(f"mkdir -p {FOLDER}")
    running = RunningKeepalived(site.guest)
    try:
        yield running
    finally:
        running.stop()
        site.guest.ok(f"rm -rf {FOLDER}")


def weights(driven: Balancer) -> dict[str, int]:
    return {server.name: server.weight for server in driven.read().servers}


@needs_ipvs
def test_weights_go_through_the_files_and_steer_the_traffic(site: IpvsSite, keepalived: RunningKeepalived) -> None:
    driven = keepalived.start(configuration())
    assert [(server.name, server.weight, server.configured, server.condition) for server in driven.read().servers] == [
        (RS1, 20, 20, "up"),
        (RS2, 20, 20, "up"),
    ]
    driven.set_weights({RS1: 5})
    assert weights(driven) == {RS1: 5, RS2: 20}
    assert Counter(site.connect(driven.lvs, 50)) == {"rs1": 10, "rs2": 40}
    driven.set_weights({RS1: 0, RS2: 65535})
    assert weights(driven) == {RS1: 0, RS2: 65535}
    assert driven.read().servers[0].available
    driven.set_weights({RS1: 20, RS2: 20})
    assert site.guest.ok(f"cat {FOLDER}/rs1 {FOLDER}/rs2").split() == ["0", "0"]


@needs_ipvs
def test_weights_of_parameters_conditions_and_the_service_are_those_that_keepalived_has(
    keepalived: RunningKeepalived,
) -> None:
    servers = [real_server(1).replace("weight 20", "weight $W"), real_server(2).replace("weight 20", "")]
    head = "$W=10\n@^other $W=20\n@other $W=30\n"
    driven = keepalived.start(head + configuration(*servers, more="weight 7"))
    assert [(server.name, server.weight, server.configured) for server in driven.read().servers] == [
        (RS1, 20, 20),
        (RS2, 7, 7),
    ]
    driven.set_weights({RS1: 5, RS2: 2})
    assert weights(driven) == {RS1: 5, RS2: 2}
    driven.set_weights({RS1: 20, RS2: 7})
    assert keepalived.guest.ok(f"cat {FOLDER}/rs1 {FOLDER}/rs2").split() == ["0", "0"]


@needs_ipvs
def test_a_reload_keeps_our_weight_and_shows_a_new_configured_one(keepalived: RunningKeepalived) -> None:
    driven = keepalived.start(configuration())
    driven.set_weights({RS1: 5})
    keepalived.reload()
    assert weights(driven) == {RS1: 5, RS2: 20}
    keepalived.reload(configuration(real_server(1, weight=30), real_server(2)))

    def seen() -> list[tuple[int, int]]:
        return [(server.weight, server.configured) for server in driven.read().servers]

    until(lambda: seen() == [(15, 30), (20, 20)], "keepalived follows its file from the new configured weight")
    driven.set_weights({RS1: 5})
    assert weights(driven) == {RS1: 5, RS2: 20}


@pytest.mark.slow
@needs_ipvs
def test_a_restart_keeps_our_weight_and_is_seen_by_the_pid(keepalived: RunningKeepalived) -> None:
    driven = keepalived.start(configuration())
    driven.set_weights({RS1: 5})
    before = driven.read().pid
    keepalived.stop()
    with pytest.raises(BalancerUnreachable, match="no keepalived runs here"):
        driven.read()
    keepalived.start(configuration())
    assert (weights(driven), driven.read().pid != before) == ({RS1: 5, RS2: 20}, True)


@pytest.mark.slow
@needs_ipvs
def test_without_the_file_a_server_has_its_configured_weight(keepalived: RunningKeepalived) -> None:
    driven = keepalived.start(configuration())
    driven.set_weights({RS1: 5})
    keepalived.guest.ok(f"rm {FOLDER}/rs1")
    until(lambda: weights(driven) == {RS1: 20, RS2: 20}, "keepalived has seen that the file is gone")


@pytest.mark.slow
@needs_ipvs
@pytest.mark.parametrize("inhibit", ["", "inhibit_on_failure"])
def test_a_server_that_keepalived_took_out_is_down_and_keeps_its_weight(
    keepalived: RunningKeepalived, inhibit: str
) -> None:
    # Nobody listens on port 82 until the test lets somebody.
    check = "TCP_CHECK {\n connect_port 82\n connect_timeout 1\n retry 0\n }\n FILE_CHECK {\n track_file rs3\n }"
    driven = keepalived.start(configuration(real_server(1), real_server(2), real_server(3, 40, inhibit, check)))
    until(lambda: driven.read().servers[2].condition == "down", "keepalived has found the third server down")
    third = driven.read().servers[2]
    assert (third.name, third.available, third.weight, third.configured) == (RS3, False, 40, 40)
    driven.set_weights({RS1: 5, RS3: 10})
    assert weights(driven) == {RS1: 5, RS2: 20, RS3: 10}
    keepalived.guest.ok("ip netns exec rs3 busybox nc -ll -p 82 -e true >/dev/null 2>&1 & echo $! >/run/nc.pid; disown")
    try:
        until(lambda: driven.read().servers[2].available, "keepalived has found the third server up")
        assert weights(driven) == {RS1: 5, RS2: 20, RS3: 10}
    finally:
        keepalived.guest.ok("kill $(cat /run/nc.pid)")


@pytest.mark.slow
@needs_ipvs
def test_keepalived_that_does_not_follow_is_reported(keepalived: RunningKeepalived) -> None:
    keepalived.start(configuration())
    driven = Keepalived(WEB, keepalived.guest.run, keepalived.guest, 0.0)
    keepalived.guest.ok("kill -STOP $(cat /run/checkers.pid)")
    try:
        with pytest.raises(
            BalancerError, match=r"0 s after the files were written: 10\.9\.1\.2:80 shows 20 instead of 5"
        ):
            driven.set_weights({RS1: 5})
    finally:
        keepalived.guest.ok("kill -CONT $(cat /run/checkers.pid)")
    until(lambda: weights(driven)[RS1] == 5, "keepalived follows when it goes on")


@needs_ipvs
def test_a_folder_that_is_gone_and_a_server_that_is_not_there_are_reported(keepalived: RunningKeepalived) -> None:
    driven = keepalived.start(configuration())
    with pytest.raises(BalancerError, match=r"has no server 10\.9\.9\.9:80; nothing was changed"):
        driven.set_weights({RS1: 5, "10.9.9.9:80": 5})
    with pytest.raises(BalancerError, match=r"weight 65536 .* expected 0\.\.65535"):
        driven.set_weights({RS1: 65536})
    assert weights(driven) == {RS1: 20, RS2: 20}
    keepalived.guest.ok(f"rm -rf {FOLDER}")
    with pytest.raises(
        BalancerError, match=rf"{FOLDER}/rs1: No such file or directory; 10\.9\.1\.2:80 keeps its weight"
    ):
        driven.set_weights({RS1: 5})


@needs_ipvs
def test_the_service_belongs_to_keepalived_while_it_runs(keepalived: RunningKeepalived) -> None:
    guest = keepalived.guest
    driven = keepalived.start(configuration())
    running = owned_by(driven.lvs.service, guest)
    assert running == Owner(int(guest.ok("cat /run/keepalived.pid")), keepalived.path)
    assert owned_by(Lvs("-t 10.9.0.1:9", guest.run).service, guest) is None
    why = claim(driven.lvs.service, guest)
    assert re.search(r'belongs to keepalived \(pid \d+, .*use `balancer = "keepalived"`', why)
    keepalived.stop()
    assert not claim(driven.lvs.service, guest)
    assert owned_by(driven.lvs.service, guest) is None


@needs_ipvs
def test_a_good_configuration_has_no_warnings(keepalived: RunningKeepalived) -> None:
    assert check(keepalived.start(configuration()), POOL, keepalived.guest) == []


@pytest.mark.slow
@needs_ipvs
def test_a_quorum_and_files_that_last_are_warned_of(keepalived: RunningKeepalived) -> None:
    text = configuration(more="quorum 10").replace(f"{FOLDER}/rs2", "/var/tmp/rs2")
    driven = keepalived.start(text)
    warnings = "\n".join(check(driven, POOL, keepalived.guest))
    assert "`quorum 10` counts weights" in warnings
    assert "/var/tmp/rs2 outlive a boot" in warnings
    keepalived.guest.ok(f"ipvsadm -E {WEB} -s rr")
    with pytest.raises(BalancerError, match="scheduler `rr` cannot be driven"):
        check(driven, POOL, keepalived.guest)


def test_files_are_replaced_at_once(tmp_path: Path) -> None:
    files = LocalFiles()
    files.replace(str(tmp_path / "w"), "-3\n")
    files.replace(str(tmp_path / "w"), "-4\n")
    assert files.read(str(tmp_path / "w")) == "-4\n"
    assert files.matching(str(tmp_path / "*")) == [str(tmp_path / "w")]
    assert files.read(str(tmp_path / "none")) is None
    assert (files.is_writable_folder(str(tmp_path)), files.is_writable_folder(str(tmp_path / "w"))) == (True, False)


class FakeProc:
    """Only the files of a running keepalived; what is found in them is what is tested."""

    def __init__(self, cmdline: str, others: Mapping[str, str] | None = None) -> None:
        running = {"/run/keepalived.pid": "7\n", "/proc/7/comm": "keepalived\n", "/proc/7/cmdline": cmdline}
        self.files = {**running, **(others or {})}

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def replace(self, path: str, text: str) -> None:
        raise NotImplementedError

    def matching(self, pattern: str) -> list[str]:
        return [pattern] if pattern in self.files else []

    def is_writable_folder(self, path: str) -> bool:
        return path == FOLDER


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (configuration(service="10.9.0.1 99"), "not in /"),
        (
            configuration(real_server(1), real_server(2, check="")),
            "real_server 10.9.2.2:80 has no FILE_CHECK; expected `track_file slackwater_10_9_2_2_80 { file",
        ),
        (
            configuration(real_server(1), real_server(2, check="FILE_CHECK {\n track_file rs1\n }")),
            f"{FOLDER}/rs1 steers 2 real servers; expected a file for each",
        ),
        (
            configuration(real_server(1), real_server(2, check="FILE_CHECK {\n track_file rs2\n weight 2\n }")),
            "real_server 10.9.2.2:80 has a FILE_CHECK with another weight than 1",
        ),
        (
            configuration(real_server(1), real_server(2)).replace(f"{FOLDER}/rs2", "/run/nowhere/rs2"),
            "/run/nowhere, where the weight of 10.9.2.2:80 belongs, is no folder that may be written",
        ),
    ],
)
def test_a_configuration_that_cannot_be_driven_is_refused_with_what_is_missing(text: str, problem: str) -> None:
    files = FakeProc("keepalived\0-f\0/k.conf\0", {"/k.conf": text})
    driven = Keepalived(WEB, lambda argv, _stdin: pytest.fail(f"{argv} before the configuration was right"), files, 0.0)
    with pytest.raises(BalancerError) as caught:
        check(driven, POOL, files)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        ("keepalived --dont-fork", "/etc/keepalived/keepalived.conf"),
        ("keepalived -f /a.conf", "/a.conf"),
        ("keepalived -f/a.conf", "/a.conf"),
        ("keepalived --use-file=/a.conf", "/a.conf"),
        ("keepalived --use-file /a.conf", "/a.conf"),
        ("keepalived --use=/a.conf", "/a.conf"),
        ("keepalived -nlf /a.conf", "/a.conf"),
        ("keepalived -Dnlf/a.conf", "/a.conf"),
        ("keepalived -f /b.conf -lf /a.conf", "/a.conf"),
        ("keepalived -p -f -f /a.conf", "/a.conf"),
        ("keepalived -M -f /a.conf", "/a.conf"),
        ("keepalived -l more -f /a.conf", "/a.conf"),
        ("keepalived -Mf /a.conf", "/etc/keepalived/keepalived.conf"),
        ("keepalived -n -- -f /a.conf", "/etc/keepalived/keepalived.conf"),
        ("keepalived -nf a.conf", "/proc/7/cwd/a.conf"),
        ("keepalived --vrrp", None),
        ("keepalived --dont-fork --vrrp", None),
        ("keepalived -nP", None),
        ("keepalived -nP --all", "/etc/keepalived/keepalived.conf"),
        ("keepalived -pP", "/etc/keepalived/keepalived.conf"),
        ("keepalived -i P", "/etc/keepalived/keepalived.conf"),
    ],
)
def test_keepalived_shows_its_configuration_by_its_command_line(cmdline: str, expected: str | None) -> None:
    running = owner(FakeProc(cmdline.replace(" ", "\0") + "\0"))
    assert (running and running.configuration) == expected


@pytest.mark.parametrize(
    ("cmdline", "problem"),
    [
        (
            "keepalived -nZf /a.conf",
            r"keepalived \(pid 7\): `-Z` in `-nZf` is no option that is known here; its command",
        ),
        ("keepalived --newer", "`--newer` is no option"),
        ("keepalived --no", "`--no` is no option"),
        ("keepalived --vrrp=1", "`--vrrp=1` is no option"),
        ("keepalived -nf", "`-nf` lacks its value"),
        ("", "its command line cannot be read"),
    ],
)
def test_a_command_line_that_is_not_understood_is_no_leave_to_drive_ipvs(cmdline: str, problem: str) -> None:
    files = FakeProc(cmdline.replace(" ", "\0") + "\0")
    with pytest.raises(BalancerError, match=problem):
        claim(Service.parse(WEB), files)
    with pytest.raises(BalancerError, match=problem):
        Keepalived(WEB, lambda argv, _: pytest.fail(f"{argv}"), files, 0.0).read()


def test_a_configuration_in_keepalived_s_own_folder_is_followed_from_there() -> None:
    conf = {"/proc/7/cwd/k.conf": "include web.conf\n", "/proc/7/cwd/web.conf": configuration()}
    files = FakeProc("keepalived\0-nlfk.conf\0", conf)
    assert "belongs to keepalived (pid 7, /proc/7/cwd/k.conf)" in claim(Service.parse(WEB), files)


KEEPALIVED = ROOT / ".build/bin/keepalived"
needs_keepalived = pytest.mark.skipif(not KEEPALIVED.exists(), reason="needs keepalived (run `make setup`)")


@needs_keepalived
@pytest.mark.parametrize(
    "cmdline",
    [
        "-nlf /nowhere/a.conf",
        "-Dnlf/nowhere/a.conf",
        "--use=/nowhere/a.conf",
        "-f /nowhere/b.conf --dont-fo -f /nowhere/a.conf",
        "-p -f -f /nowhere/a.conf",
        "more -nf /nowhere/a.conf",
        "-t -f /nowhere/a.conf -- -f /nowhere/b.conf",
        "-nZf /nowhere/a.conf",
        "--no",
        "-nf",
        "--vrrp=1",
    ],
)
def test_keepalived_takes_the_same_configuration_from_its_command_line(cmdline: str) -> None:
    words = cmdline.split()
    done = subprocess.run([KEEPALIVED, "-t", "-l", *words], capture_output=True, text=True)
    missing = re.search(r"Config files missing '(.*)'", done.stdout + done.stderr)
    try:
        running = owner(FakeProc("\0".join(["keepalived", *words]) + "\0"))
    except BalancerError:
        running = None
    assert (running and running.configuration) == (missing and missing[1])


@needs_keepalived
def test_keepalived_has_the_options_that_are_read_here() -> None:
    printed = subprocess.run([KEEPALIVED, "--help"], capture_output=True, text=True)
    shown = re.findall(r"^  (?:-(\w), |    )--([\w-]+)(\[?)(=?)", printed.stdout + printed.stderr, re.MULTILINE)
    assert len(shown) > 30
    for letter, name, optional, value in shown:
        key = LONG[name]
        takes_value = bool(value) or name == "config-id"
        assert (key, key in WITH_VALUE, key in VALUE_IN_WORD) == (
            letter or key,
            takes_value,
            bool(optional) or name == "core-dump-pattern",
        )


def test_a_pid_file_of_a_dead_keepalived_is_none() -> None:
    proc = FakeProc("keepalived\0")
    proc.files["/proc/7/comm"] = "sshd\n"
    assert owner(proc) is None
