"""ipvsadm's output as values. The texts are what ipvsadm 1.31 printed on Linux 6.1."""

from __future__ import annotations

import pytest

from slackwater.lbengine.backends.ipvs.table import (
    Destination,
    Entry,
    Service,
    TableError,
    Thresholds,
    edit_line,
    parse_connections,
    parse_save,
    parse_service_connections,
    parse_thresholds,
)

SAVED = """\
-A -t 10.9.0.1:80 -s wrr
-a -t 10.9.0.1:80 -r 10.9.1.2:80 -m -w 100
-a -t 10.9.0.1:80 -r 10.9.1.3:8080 -m -w 30
-A -u 10.9.0.1:53 -s rr -p 60 -M 255.255.255.0 -o
-a -u 10.9.0.1:53 -r 10.9.1.9:53 -g -w 10
-A --sctp-service 10.9.0.1:54 -s lc
-A -t [fd00::1]:80 -s wlc -p 600 -M 64
-a -t [fd00::1]:80 -r [fd01::2]:80 -g -w 65535
-a -t [fd00::1]:80 -r [fd01::3]:80 -g -w 3000000
-A -f 8 -s sh -p 300 -b sh-fallback,sh-port
-a -f 8 -r 10.9.1.4:0 -i -w 10 --tun-type ipip
-a -f 8 -r 10.9.1.5:0 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum
-a -f 8 -r 10.9.1.6:0 -i -w 5 --tun-type gue --tun-port 6080 --tun-remcsum
-A -f 8 -6 -s mh -b mh-port
-a -f 8 -6 -r [fd01::4]:80 -i -w 10 --tun-type gre --tun-nocsum
-a -f 8 -6 -r [fd01::5]:0 -g -w 10
"""
THRESHOLDS = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn 
  -> RemoteAddress:Port
TCP  10.9.0.1:80 wrr
  -> 10.9.1.2:80                  50         20         7          3         
  -> 10.9.1.3:8080                0          0          0          0         
UDP  10.9.0.1:53 rr persistent 60 mask 255.255.255.0 ops
  -> 10.9.1.9:53                  0          0          0          0         
SCTP 10.9.0.1:54 lc
TCP  [fd00::1]:80 wlc persistent 600 mask 64
  -> [fd01::2]:80                 0          0          0          0         
  -> [fd01::3]:80                 0          0          0          0         
FWM  8 sh (sh-fallback,sh-port) persistent 300
  -> 10.9.1.4:0                   0          0          0          0         
  -> 10.9.1.5:0                   0          0          0          0         
  -> 10.9.1.6:0                   9          3          0          0         
FWM  8 IPv6 mh (mh-port)
  -> [fd01::4]:80                 1          0          2          1         
  -> [fd01::5]:0                  0          0          0          0         
"""  # noqa: W291
STATS = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
TCP  10.9.0.1:80                        31      155       95     8308     5312
  -> 10.9.1.2:80                       150      750      555    40200    30660
  -> 10.9.1.3:8080                      31      155       95     8308     5312
FWM  8                                   0        0        0        0        0
  -> 10.9.1.4:0                          0        0        0        0        0
FWM  8 IPv6                              9        0        0        0        0
  -> [fd01::4]:80                9876543210        0        0        0        0
"""
WEB = Service("-t", "10.9.0.1:80")
MARK, MARK6 = Service("-f", "8"), Service("-f", "8", True)


def test_services_come_with_scheduler_flags_and_persistence() -> None:
    assert [
        (str(e.service), e.scheduler, set(e.flags), e.persistent_s, len(e.destinations)) for e in parse_save(SAVED)
    ] == [
        ("-t 10.9.0.1:80", "wrr", set(), None, 2),
        ("-u 10.9.0.1:53", "rr", set(), 60, 1),
        ("--sctp-service 10.9.0.1:54", "lc", set(), None, 0),
        ("-t [fd00::1]:80", "wlc", set(), 600, 2),
        ("-f 8", "sh", {"sh-fallback", "sh-port"}, 300, 3),
        ("-f 8 -6", "mh", {"mh-port"}, None, 2),
    ]


def test_servers_keep_every_option_they_came_with() -> None:
    by_service = {entry.service: entry for entry in parse_save(SAVED)}
    assert by_service[WEB].destinations == (
        Destination("10.9.1.2:80", 100, ("-m",)),
        Destination("10.9.1.3:8080", 30, ("-m",)),
    )
    assert by_service[MARK].destinations[1].options == ("-i", "--tun-type", "gue", "--tun-port", "6080", "--tun-csum")
    assert by_service[MARK6].destinations[0] == Destination(
        "[fd01::4]:80", 10, ("-i", "--tun-type", "gre", "--tun-nocsum")
    )


def test_an_option_that_is_not_known_is_repeated_as_it_is() -> None:
    (entry,) = parse_save("-A -t 1.2.3.4:80 -s wrr\n-a -t 1.2.3.4:80 -r 5.6.7.8:80 -i --new -w 4 --more\n")
    line = edit_line(entry.service, entry.destinations[0], Thresholds(9, 3, 0, 0), 2)
    assert line == "-e -t 1.2.3.4:80 -r 5.6.7.8:80 -i --new --more -w 2 -x 9 -y 3"


def test_an_empty_table_has_no_services() -> None:
    assert parse_save("") == []
    assert parse_thresholds("", WEB) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("IP Virtual Server version 1.2.1\n", "expected ipvsadm's `-A` or `-a` line, got 'IP Virtual"),
        ("-a -t 1.2.3.4:80 -r 5.6.7.8:80 -m -w 1\n", "expected a real server of a service listed before"),
        ("-A -t 1.2.3.4:80 -s\n", "expected a value after -s"),
        ("-A -s wrr\n", "expected a service"),
        ("-A -t 1.2.3.4:80 -s wrr\n-a -t 1.2.3.4:80 -r 5.6.7.8:80 -m -w many\n", "expected a number, got 'many'"),
    ],
)
def test_what_ipvsadm_does_not_say_is_refused_with_the_line(text: str, problem: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_save(text)
    assert problem in str(caught.value)


def test_thresholds_and_connections_are_the_services_own() -> None:
    assert parse_thresholds(THRESHOLDS, WEB) == {
        "10.9.1.2:80": Thresholds(50, 20, 7, 3),
        "10.9.1.3:8080": Thresholds(0, 0, 0, 0),
    }
    assert parse_thresholds(THRESHOLDS, MARK)["10.9.1.6:0"] == Thresholds(9, 3, 0, 0)
    assert parse_thresholds(THRESHOLDS, MARK6) == {
        "[fd01::4]:80": Thresholds(1, 0, 2, 1),
        "[fd01::5]:0": Thresholds(0, 0, 0, 0),
    }
    assert parse_thresholds(THRESHOLDS, Service("-t", "10.9.0.1:8")) == {}


def test_counts_are_the_services_own() -> None:
    assert parse_connections(STATS, WEB) == {"10.9.1.2:80": 150, "10.9.1.3:8080": 31}
    assert parse_connections(STATS, MARK) == {"10.9.1.4:0": 0}
    assert parse_connections(STATS, MARK6) == {"[fd01::4]:80": 9876543210}
    assert [parse_service_connections(STATS, service) for service in (WEB, MARK, MARK6)] == [31, 0, 9]


@pytest.mark.parametrize("text", ["hello\n", STATS.replace("    5312", "", 2)])
def test_a_list_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(TableError, match="expected"):
        parse_connections(text, WEB)


@pytest.mark.parametrize("text", ["-t 10.0.0.1:80", "-u [fd00::1]:53", "--sctp-service 10.0.0.1:5", "-f 7", "-f 7 -6"])
def test_a_service_is_named_as_for_ipvsadm(text: str) -> None:
    assert str(Service.parse(text)) == text


@pytest.mark.parametrize("text", ["", "-t", "10.0.0.1:80", "-t 10.0.0.1:80 -6", "-f 7 -6 x", "-A -t 1.2.3.4:80"])
def test_what_names_no_service_is_refused_in_words(text: str) -> None:
    with pytest.raises(TableError, match="is no virtual service; expected it as for ipvsadm: `-t ADDRESS:PORT`"):
        Service.parse(text)


def test_a_service_without_a_scheduler_has_ipvsadms_default() -> None:
    assert parse_save("-A -t 1.2.3.4:80\n") == [Entry(Service("-t", "1.2.3.4:80"), "wlc")]
