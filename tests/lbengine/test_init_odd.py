"""What `slackwater init` says of configurations that are not as usual: what, where, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from tests.support.asked_haproxy import started
from tests.support.real_haproxy import needs_haproxy

pytestmark = needs_haproxy
BACKENDS = """
resolvers dns
 nameserver here 127.0.0.1:5399
fcgi-app php
 docroot /var/www
frontend in
 bind unix@FOLDER/in.sock
backend noport
 server a 198.51.100.11
 server b 198.51.100.12
backend template
 server-template t 3 nowhere.invalid:80 resolvers dns init-addr none
backend dns
 server d1 web1.invalid:80 resolvers dns init-addr none
 server d2 198.51.100.13:80
backend off
 server o1 198.51.100.21:80 disabled
 server o2 198.51.100.22:80 disabled
backend backups
 server k1 198.51.100.31:80 backup
 server k2 198.51.100.32:80 backup
backend fcgi
 use-fcgi-app php
 server f1 198.51.100.41:9000 proto fcgi
 server f2 198.51.100.42:9000 proto fcgi
backend tcp
 mode tcp
 server p1 198.51.100.51:3306
 server p2 198.51.100.52:3306
backend zero
 server z1 198.51.100.81:80 weight 0
 server z2 198.51.100.82:80 weight 0
"""
DEFAULTS = "defaults\n mode http\n timeout connect 2s\n timeout client 2s\n timeout server 2s\n"


def init(*words: str | Path) -> Any:
    return CliRunner().invoke(cli, ["init", "--dry-run", *map(str, words)])


def written(folder: Path, backends: str) -> Path:
    folder.mkdir()
    file = folder / "haproxy.cfg"
    socket = f"global\n stats socket {folder}/admin.sock level admin\n"
    file.write_text(f"{socket}{DEFAULTS}{backends.replace('FOLDER', str(folder))}\n")
    return file


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By backend: what init says of it."""
    folder = tmp_path_factory.mktemp("odd") / "site"
    file = written(folder, BACKENDS)
    with started([file], folder / "admin.sock"):
        done = init("--haproxy-cfg", file, "--config", folder / "controller.toml")
        assert done.exit_code == 0, done.output
        counts = {name: HAProxy(f"{folder}/admin.sock", name, 5.0).read().counts for name in ("tcp", "fcgi")}
        assert counts == {"tcp": "connections", "fcgi": "requests"}
    parts = done.output.partition("would write")[0].split("\nbackend ")[1:]
    return {part.partition(":")[0]: part for part in parts}


@pytest.mark.parametrize(
    ("backend", "texts"),
    [
        ("noport", ["a 198.51.100.11 weight", "no packet shows response times from here", "give the server a port"]),
        ("template", ["HAProxy has not resolved nowhere.invalid (t1, t2, t3); look at its section `resolvers`"]),
        ("dns", ["d1 web1.invalid (no address yet)", "can be driven", "has not resolved web1.invalid (d1)"]),
        ("off", ["no server that is in use", "all its servers are `disabled`", "set server off/o1 state ready"]),
        ("backups", ["has backup servers alone; expected at least 2 usual servers"]),
        ("fcgi", ["f1, f2: no HTTP/1 in the clear", "HAProxy's own counts and mean at most"]),
        ("tcp", ["p1, p2: no HTTP/1 in the clear"]),
        ("zero", ["z1, z2 have weight 0 and are left alone until they are given one"]),
    ],
)
def test_what_is_odd_is_said_with_what_to_do(reports: dict[str, str], backend: str, texts: list[str]) -> None:
    for text in texts:
        assert text in reports[backend]


def test_what_does_not_apply_is_not_said(reports: dict[str, str]) -> None:
    assert "no port" not in reports["dns"], "it has one; what it lacks is an address"
    assert "address yet" not in reports["off"]
    assert not any(":0 " in text for text in reports.values())


def test_two_haproxies_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("site_files", "command"):
        monkeypatch.setattr(f"slackwater.controller.haproxy_init.{module}.USUAL_CONFIGURATION", tmp_path / "none.cfg")
    monkeypatch.setattr("slackwater.lbengine.backends.haproxy.survey.USUAL_SOCKETS", ())
    servers = "frontend in\n bind unix@FOLDER/in.sock\nbackend web\n server a 192.0.2.1:80\n server b 192.0.2.2:80"
    first, second = (written(tmp_path / name, servers) for name in ("one", "two"))
    config = ["--config", str(tmp_path / "controller.toml")]
    with started([first], first.parent / "admin.sock"), started([second], second.parent / "admin.sock"):
        unnamed = init("--socket", "", *config)
        assert unnamed.exit_code == 1
        assert "name one with --haproxy-cfg: " in unnamed.output
        assert f"{first}, {second}" in unnamed.output
        named = init("--haproxy-cfg", first, *config)
        assert f"admin socket {first.parent}/admin.sock" in named.output
        (others,) = (line for line in named.output.splitlines() if "other HAProxies run on this host" in line)
        assert str(second) in others
        assert str(first) not in others
        assert str(second) in json.loads(init("--haproxy-cfg", first, *config, "--json").output)["others"]
