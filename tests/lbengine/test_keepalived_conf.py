"""keepalived's configuration, read as keepalived reads it (its own reading is shown in test_lbengine_keepalived.py)."""

from __future__ import annotations

import pytest

from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.conf import (
    ConfigurationError,
    RealServer,
    TrackFile,
    VirtualServer,
    gather,
    virtual_servers,
)

FILE1 = TrackFile("/run/w/one")


def parse(text: str) -> list[VirtualServer]:
    return virtual_servers({"k.conf": text})


def test_a_virtual_server_has_its_real_servers_with_weights_and_files() -> None:
    (server,) = parse(
        """
        ! a comment
        track_file one { # another
            file "/run/w/one"
        }
        track_file two {
            file /run/w/two
            weight 3 reverse
        }
        virtual_server 10.0.0.1 80 {
            lb_algo wrr   # weights
            protocol TCP
            quorum 4
            real_server 10.0.1.1 80 {
                weight 100
                TCP_CHECK {
                    connect_timeout 1
                }
                FILE_CHECK {
                    track_file one
                }
            }
            real_server 10.0.1.2 8080
            {
                FILE_CHECK {
                    track_file two
                }
                MISC_CHECK {
                    misc_path "/bin/sh -c '{ exit 5; } # no comment'"
                    misc_dynamic
                }
            }
            real_server 10.0.1.3 80 { weight 7
                FILE_CHECK { track_file nobody } }
        }
        """
    )
    assert server.services == (Service("-t", "10.0.0.1:80"),)
    assert server.quorum == 4
    assert server.servers == (
        RealServer("10.0.1.1:80", 100, (("one", FILE1),)),
        RealServer("10.0.1.2:8080", 1, (("two", TrackFile("/run/w/two", 3, True)),), dynamic_scripts=True),
        RealServer("10.0.1.3:80", 7, (("nobody", None),)),
    )


def test_a_file_check_may_weigh_the_file_otherwise() -> None:
    (server,) = parse(
        'track_file one {\n file "/run/w/one"\n}\nvirtual_server fwmark 7 {\n real_server 10.0.1.1 {\n FILE_CHECK {\n'
        " track_file one\n weight 2 reverse\n }\n FILE_CHECK {\n track_file one\n weight 0\n }\n }\n}\n"
    )
    assert server.servers[0] == RealServer("10.0.1.1:0", 1, (("one", TrackFile("/run/w/one", 2, True)), ("one", FILE1)))


@pytest.mark.parametrize(
    ("head", "services"),
    [
        ("virtual_server 10.0.0.1 53 {\nprotocol UDP\n}", [Service("-u", "10.0.0.1:53")]),
        ("virtual_server fd00:0::1 80 {\nprotocol SCTP\n}", [Service("--sctp-service", "[fd00::1]:80")]),
        ("virtual_server fwmark 9 {\n}", [Service("-f", "9")]),
        ("virtual_server fwmark 9 {\nip_family inet6\n}", [Service("-f", "9", True)]),
        (
            "virtual_server_group g {\n10.0.0.1 80\nfd00::1 80\nfwmark 3\n}\nvirtual_server group g {\nprotocol TCP\n}",
            [Service("-t", "10.0.0.1:80"), Service("-t", "[fd00::1]:80"), Service("-f", "3")],
        ),
        (
            "virtual_server_group g {\n10.0.0.254-255 80\nfd00::9-b 80\n}\nvirtual_server group g {\nprotocol tcp\n}",
            [
                Service("-t", f"{host}:80")
                for host in ("10.0.0.254", "10.0.0.255", "[fd00::9]", "[fd00::a]", "[fd00::b]")
            ],
        ),
        ("virtual_server 10.0.0.1 80 {\n}", [Service("-u", "10.0.0.1:80")]),
        ("virtual_server group missing {\n}", []),
        ("virtual_server $VIP 80 {\n}", []),
        ("virtual_server 10.0.0.1 http {\n}", []),
    ],
)
def test_services_are_named_as_ipvsadm_names_them(head: str, services: list[Service]) -> None:
    (server,) = parse(head)
    assert list(server.services) == services


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("virtual_server 1.2.3.4 80 {\n", r"k\.conf:1: `\{` of `virtual_server 1\.2\.3\.4 80` is never closed"),
        ("a b\n}\n", r"k\.conf:2: `\}` without `\{`"),
        ("{\n", r"k\.conf:1: `\{` after nothing"),
        ('file "x\n', r"k\.conf:1: a quote is never closed"),
        ("virtual_server 1.2.3.4 80 {\nprotocol HTTP\n}", r"k\.conf:2: expected TCP, UDP, SCTP in `protocol HTTP`"),
        *(
            (
                f"virtual_server_group g {{\n{member}\n}}\nvirtual_server group g {{\n}}",
                rf"k\.conf:2: expected an address, a range .* in the group, got `{member}`",
            )
            for member in (
                "web.example.com 80",
                "10.0.0.5-2 80",
                "10.0.0.5-256 80",
                "10.0.0.5- 80",
                "fwmark-3 9",
                "fwmark",
            )
        ),
        ("a {\n" * 2000 + "}\n" * 2000, r"k\.conf:51: more than 50 blocks within each other"),
    ],
)
def test_what_does_not_match_is_reported_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse(text)


def test_included_files_are_followed_from_where_they_are_named() -> None:
    tree = {
        "/etc/k/k.conf": "include d/*.conf\nglobal_defs {\n}\n",
        "/etc/k/d/a.conf": "virtual_server 10.0.0.1 80 {\n include ../rs.conf\n}\n",
        "/etc/k/d/../rs.conf": "real_server 10.0.1.1 80 {\n weight 20\n}\ninclude d/*.conf\n",
    }
    texts = gather(
        "/etc/k/k.conf",
        tree.get,
        lambda pattern: {
            "/etc/k/d/*.conf": ["/etc/k/d/a.conf"],
            "/etc/k/d/../rs.conf": ["/etc/k/d/../rs.conf"],
            "/etc/k/d/../d/*.conf": [],
        }[pattern],
    )
    assert list(texts) == list(tree)
    (server,) = virtual_servers(texts)
    assert server.servers == (RealServer("10.0.1.1:80", 20, ()),)
    with pytest.raises(ConfigurationError, match=r"/nowhere: cannot be read"):
        gather("/nowhere", tree.get, lambda _: [])
