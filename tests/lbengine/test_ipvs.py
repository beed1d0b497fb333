"""IPVS as a backend, against a real one; what it won't show on demand comes from a command of our own."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from slackwater.lbengine.backends.ipvs import schedulers
from slackwater.lbengine.backends.ipvs.ipvs import CommandResult, Lvs, run_here, server_name
from slackwater.lbengine.backends.ipvs.preflight import check
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable
from tests.support.ipvs_guest import IpvsGuest, needs_ipvs

WEB = "-t 10.9.9.9:80"
POOL = IpvsPool(name="web", service=WEB)
MADE = """\
-A -t 10.9.9.9:80 -s wrr
-a -t 10.9.9.9:80 -r 10.8.0.1:80 -m -w 100 -x 50 -y 20
-a -t 10.9.9.9:80 -r 10.8.0.2:80 -i -w 30 --tun-type gue --tun-port 6080 --tun-csum
-a -t 10.9.9.9:80 -r 10.8.0.3:80 -g -w 7 -x 9
-A -f 8 -6 -s wrr -p 300
-a -f 8 -6 -r [fd08::1]:80 -i -w 10 --tun-type gre --tun-nocsum
-a -f 8 -6 -r [fd08::2]:80 -g -w 20
-A -t [fd09::9]:80 -s mh -b mh-fallback,mh-port -p 60 -M 64
-a -t [fd09::9]:80 -r [fd08::3]:80 -m -w 1 -x 5 -y 4
-a -t [fd09::9]:80 -r [fd08::4]:80 -m -w 65535
"""


def make(guest: IpvsGuest, lines: str = MADE) -> None:
    done = guest.run(["ipvsadm", "-R"], lines)
    assert (done.status, done.err) == (0, "")


def table(guest: IpvsGuest) -> list[str]:
    """Everything that the kernel knows of the servers but their connections."""
    saved = guest.ok("ipvsadm -Sn").splitlines()
    limits = [line.split()[:4] for line in guest.ok("ipvsadm -Ln --thresholds").splitlines()]
    return saved + [" ".join(words) for words in limits]


@needs_ipvs
def test_a_snapshot_shows_scheduler_and_servers(guest: IpvsGuest) -> None:
    make(guest)
    seen = Lvs(WEB, guest.run).read()
    assert (seen.balance, seen.most_weight, seen.counts) == ("wrr", 65535, "connections")
    assert [(server.name, server.weight, server.available) for server in seen.servers] == [
        ("10.8.0.1:80", 100, True),
        ("10.8.0.2:80", 30, True),
        ("10.8.0.3:80", 7, True),
    ]
    by_mark = Lvs("-f 8 -6", guest.run).read()
    assert [server.name for server in by_mark.servers] == ["fd08::1_80", "fd08::2_80"]
    assert (by_mark.persistent_s, Lvs("-t [fd09::9]:80", guest.run).read().flags) == (
        300,
        frozenset({"mh-fallback", "mh-port"}),
    )


@needs_ipvs
@pytest.mark.parametrize(
    ("service", "weights"),
    [
        (WEB, {"10.8.0.1:80": 0, "10.8.0.2:80": 65535, "10.8.0.3:80": 8}),
        ("-f 8 -6", {"fd08::1_80": 1, "fd08::2_80": 2}),
        ("-t [fd09::9]:80", {"fd08::3_80": 3, "fd08::4_80": 4}),
    ],
)
def test_a_changed_weight_changes_nothing_else(guest: IpvsGuest, service: str, weights: Mapping[str, int]) -> None:
    make(guest)
    before = table(guest)
    lvs = Lvs(service, guest.run)
    old = {server.name: server for server in lvs.read().servers}
    lvs.set_weights(weights)
    assert {server.name: server.weight for server in lvs.read().servers} == {
        **{name: server.weight for name, server in old.items()},
        **weights,
    }
    assert table(guest) != before
    lvs.set_weights({name: old[name].weight for name in weights})
    assert table(guest) == before


@needs_ipvs
def test_the_naive_edit_would_have_changed_method_and_thresholds(guest: IpvsGuest) -> None:
    """Why everything is repeated: what the kernel does when it is told a weight only."""
    make(guest)
    guest.ok("ipvsadm -e -t 10.9.9.9:80 -r 10.8.0.1:80 -w 90")
    assert "-a -t 10.9.9.9:80 -r 10.8.0.1:80 -g -w 90" in table(guest)
    assert "-> 10.8.0.1:80 0 0" in table(guest)


@needs_ipvs
def test_a_server_that_is_not_there_stops_the_batch_before_it_is_sent(guest: IpvsGuest) -> None:
    make(guest)
    before = table(guest)
    with pytest.raises(BalancerError, match=r"`-t 10\.9\.9\.9:80` has no server 10\.8\.0\.7:80; nothing was changed"):
        Lvs(WEB, guest.run).set_weights({"10.8.0.1:80": 5, "10.8.0.7:80": 5})
    assert table(guest) == before


@needs_ipvs
@pytest.mark.parametrize("weight", [-1, 65536])
def test_a_weight_out_of_bounds_is_not_sent(guest: IpvsGuest, weight: int) -> None:
    make(guest)
    before = table(guest)
    with pytest.raises(BalancerError, match=r"expected 0\.\.65535; nothing was changed"):
        Lvs(WEB, guest.run).set_weights({"10.8.0.1:80": 5, "10.8.0.2:80": weight})
    assert table(guest) == before


class Meddling:
    """Runs commands in the guest, and one of its own just before the batch."""

    def __init__(self, guest: IpvsGuest, command: str) -> None:
        self.guest = guest
        self.command = command

    def __call__(self, argv: list[str], stdin: str) -> CommandResult:
        if argv == ["ipvsadm", "-R"]:
            self.guest.ok(self.command)
        return self.guest.run(argv, stdin)


@needs_ipvs
def test_a_server_that_goes_meanwhile_is_reported_although_ipvsadm_hides_it(guest: IpvsGuest) -> None:
    make(guest)
    gone = Meddling(guest, "ipvsadm -d -t 10.9.9.9:80 -r 10.8.0.1:80")
    with pytest.raises(BalancerError, match=r"10\.8\.0\.1:80 is gone \(No such destination\)"):
        Lvs(WEB, gone).set_weights({"10.8.0.1:80": 5, "10.8.0.2:80": 6})
    weights = {server.name: server.weight for server in Lvs(WEB, guest.run).read().servers}
    assert weights == {"10.8.0.2:80": 6, "10.8.0.3:80": 7}


@needs_ipvs
def test_a_service_that_goes_meanwhile_is_reported(guest: IpvsGuest) -> None:
    make(guest)
    with pytest.raises(BalancerError, match=r"`-t 10\.9\.9\.9:80` is not in the kernel's table; it has: `-t \[fd09::9"):
        Lvs(WEB, Meddling(guest, f"ipvsadm -D {WEB}")).set_weights({"10.8.0.1:80": 5})


@needs_ipvs
def test_a_batch_that_does_not_arrive_is_seen_in_what_the_kernel_shows(guest: IpvsGuest) -> None:
    make(guest)

    def lost(argv: list[str], stdin: str) -> CommandResult:
        return CommandResult(0, "", "") if argv == ["ipvsadm", "-R"] else guest.run(argv, stdin)

    with pytest.raises(BalancerError, match=r"10\.8\.0\.1:80 shows 100 instead of 5"):
        Lvs(WEB, lost).set_weights({"10.8.0.1:80": 5})


@needs_ipvs
def test_a_thousand_weights_are_set_in_one_batch(guest: IpvsGuest) -> None:
    servers = [f"10.7.{n // 250}.{n % 250 + 1}:80" for n in range(1000)]
    make(guest, f"-A {WEB} -s wrr\n" + "".join(f"-a {WEB} -r {name} -m -w 100 -x 9\n" for name in servers))
    lvs = Lvs(WEB, guest.run)
    batches = []

    def counted(argv: list[str], stdin: str) -> CommandResult:
        batches.append(argv)
        return guest.run(argv, stdin)

    wanted = {name: n % 200 for n, name in enumerate(servers)}
    Lvs(WEB, counted).set_weights(wanted)
    assert {server.name: server.weight for server in lvs.read().servers} == wanted
    assert batches.count(["ipvsadm", "-R"]) == 1


@needs_ipvs
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "is not in the kernel's table; it has: none at all"),
        (
            f"-A {WEB} -s wrr\n-a {WEB} -r 10.8.0.1:80 -m -w 5\n",
            "has 1 server that is no backup; expected at least 2",
        ),
        (
            f"-A {WEB} -s rr\n-a {WEB} -r 10.8.0.1:80 -m\n-a {WEB} -r 10.8.0.2:80 -m\n",
            "scheduler `rr` cannot be driven: it ignores every weight but 0; use `wrr`",
        ),
        (
            f"-A {WEB} -s sh -b sh-port\n-a {WEB} -r 10.8.0.1:80 -m\n-a {WEB} -r 10.8.0.2:80 -m\n",
            "scheduler `sh` without `sh-fallback` refuses the connections of a server at weight 0",
        ),
        (
            f"-A {WEB} -s wrr\n-a {WEB} -r 10.8.0.1:80 -m -w 65536\n-a {WEB} -r 10.8.0.2:80 -m\n",
            "10.8.0.1:80 has weight 65536; expected at most 65535",
        ),
        (
            f"-A {WEB} -s sh -b sh-fallback\n-a {WEB} -r 10.8.0.1:80 -m -w 200\n-a {WEB} -r 10.8.0.2:80 -m -w 57\n",
            "scheduler `sh` has a table of 256 places, which weights that sum up to 257 overflow",
        ),
    ],
)
def test_a_service_that_cannot_be_driven_is_refused(guest: IpvsGuest, lines: str, problem: str) -> None:
    if lines:
        make(guest, lines)
    with pytest.raises(BalancerError) as caught:
        check(Lvs(WEB, guest.run), POOL)
    assert problem in str(caught.value)


@pytest.mark.parametrize(("flags", "moved"), [({"mh-port"}, "connections"), (set(), "clients (without `mh-port`)")])
def test_the_warning_about_a_hash_names_what_weights_move(flags: set[str], moved: str) -> None:
    (warning,) = schedulers.warnings("mh", frozenset(flags), None, True)
    assert warning == f"with scheduler `mh`, weights move a share of the {moved}"


@needs_ipvs
def test_a_good_service_has_no_warnings_and_a_poor_one_has_its_own(guest: IpvsGuest) -> None:
    make(guest, f"-A {WEB} -s wrr\n-a {WEB} -r 10.8.0.1:80 -m -w 40\n-a {WEB} -r 10.8.0.2:80 -m -w 20\n")
    assert check(Lvs(WEB, guest.run), POOL) == []
    guest.ok(f"ipvsadm -e {WEB} -r 10.8.0.1:80 -m -w 41")
    assert ["10.8.0.1:80 (41)" in warning for warning in check(Lvs(WEB, guest.run), POOL)] == [True]
    guest.ok(f"ipvsadm -C; ipvsadm -A {WEB} -s mh -b mh-fallback -p 60")
    make(guest, f"-a {WEB} -r 10.8.0.1:80 -m -w 3 -x 9\n-a {WEB} -r 10.8.0.2:80 -m -w 0\n")
    text = "\n".join(check(Lvs(WEB, guest.run), POOL))
    assert "weights move a share of the clients (without `mh-port`)" in text
    assert "persistence keeps known clients on their server for 60 s" in text
    assert "10.8.0.1:80 get no connections beyond their upper threshold" in text
    assert "the weights of 10.8.0.1:80 are too small" in text
    assert "10.8.0.2:80 has weight 0 and is left alone" in text


@needs_ipvs
def test_a_user_without_rights_learns_what_is_missing(guest: IpvsGuest) -> None:
    make(guest)

    def as_nobody(argv: list[str], stdin: str) -> CommandResult:
        return guest.run(["setpriv", "--reuid=65534", "--clear-groups", *argv], stdin)

    with pytest.raises(BalancerUnreachable, match="no permission to use IPVS; expected root or CAP_NET_ADMIN"):
        Lvs(WEB, as_nobody).read()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "Can't initialize ipvs: Protocol not available\nAre you sure that IP Virtual Server is built in?\n",
            "this kernel has no IPVS, or its module is not loaded",
        ),
        ("No such service\n", "no such virtual service"),
        ("Memory allocation problem\n", "`ipvsadm -Sn` failed: Memory allocation problem"),
        ("", "`ipvsadm -Sn` failed: without a message"),
    ],
)
def test_what_ipvsadm_complains_of_is_reported_in_words(error: str, words: str) -> None:
    with pytest.raises(BalancerUnreachable) as caught:
        Lvs(WEB, lambda _argv, _stdin: CommandResult(2, "", error)).read()
    assert str(caught.value).startswith(f"IPVS service `{WEB}`: {words}")


def test_output_of_something_else_is_refused() -> None:
    with pytest.raises(BalancerError, match="expected ipvsadm's `-A` or `-a` line, got 'hello'"):
        Lvs(WEB, lambda _argv, _stdin: CommandResult(0, "hello\n", "")).read()


def test_a_service_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(BalancerError, match="is no virtual service"):
        Lvs("web", run_here(1.0))


def test_a_command_that_is_not_there_or_hangs_is_named() -> None:
    assert run_here(60.0)(["cat"], "what was given") == CommandResult(0, "what was given", "")
    with pytest.raises(BalancerUnreachable, match="no-such-command is not on this host"):
        run_here(60.0)(["no-such-command"], "")
    with pytest.raises(BalancerUnreachable, match="may not be run by this user"):
        run_here(60.0)(["/etc/passwd"], "")
    started_s = time.monotonic()
    with pytest.raises(BalancerUnreachable, match=r"`sleep 30` did not end within 0\.1 s"):
        run_here(0.1)(["sleep", "30"], "")
    assert time.monotonic() - started_s < 25.0


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[fd01::2]:80", "fd01::2_80"),
        ("[::2]:80", "0::2_80"),
        ("10.0.0.1:0", "10.0.0.1:0"),
    ],
)
def test_a_real_server_has_a_safe_name(address: str, name: str) -> None:
    assert server_name(address) == name
