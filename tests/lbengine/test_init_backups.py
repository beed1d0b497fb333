"""`slackwater init` and `monitors` where all backends share a machine of `backup` servers, which says sorry."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.controller.haproxy_init.first_settings import NewNode, one_for_each_machine
from slackwater.core.config import load
from tests.support.asked_haproxy import started
from tests.support.real_haproxy import needs_haproxy

pytestmark = needs_haproxy
PROXIES = "defaults\n mode http\n timeout connect 2s\n timeout client 2s\n timeout server 2s\n"
SITE = """\
frontend in
 bind unix@{folder}/in.sock
backend shop
 server shop1 192.0.2.1:80 weight 100
 server shop2 192.0.2.2:80 weight 100
 server sorry 192.0.2.9:80 backup
backend api
 server api1 192.0.2.3:80 weight 100
 server api2 192.0.2.4:80 weight 100
 server sorry 192.0.2.9:80 backup
backend img
 server img1 192.0.2.2:81 weight 100
 server img2 192.0.2.5:80 weight 100
"""


def test_a_backup_server_that_backends_share_leaves_none_of_them_out(tmp_path: Path) -> None:
    file, admin, config = tmp_path / "haproxy.cfg", tmp_path / "admin.sock", tmp_path / "controller.toml"
    file.write_text(f"global\n stats socket {admin} level admin\n{PROXIES}{SITE.format(folder=tmp_path)}")
    at = ["--haproxy-cfg", str(file), "--config", str(config)]
    with started([file], admin):
        done = CliRunner().invoke(cli, ["init", *at, "--state-dir", str(tmp_path / "state")])
        assert done.exit_code == 0, done.output
        assert "sorry 192.0.2.9:80 weight 1 backup" in done.output
        assert [(pool.name, pool.servers) for pool in load(config).pool] == [
            ("shop", {}),
            ("api", {"sorry": "api-sorry"}),
        ], "of the machine 192.0.2.2, which does not only wait, a pool is made once"
        answer = CliRunner().invoke(cli, ["monitors", *at, "--listen", "127.0.0.1:14222", "--dry-run", "--json"])
        assert answer.exit_code == 0, answer.output
        nodes = [line["node"] for line in json.loads(answer.stdout)["nodes"]]
        assert nodes == ["shop1", "shop2", "sorry", "api1", "api2"]


def test_one_on_the_balancers_host_is_set_up_once_and_each_at_loopback_is_a_machine() -> None:
    def node(name: str, host: str, *, is_backup: bool) -> NewNode:
        return NewNode(name, "shop", [name], host, ["80"], not host, is_backup)

    here = [node("sorry", "", is_backup=True), node("api-sorry", "", is_backup=True)]
    assert one_for_each_machine(here) == here[:1]
    lab = [node("shop1", "127.0.0.1", is_backup=False), node("sorry", "127.0.0.1", is_backup=True)]
    assert one_for_each_machine(lab) == lab
