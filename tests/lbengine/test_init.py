"""`slackwater init` beside a real HAProxy."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import cli
from slackwater.controller.haproxy_init.bus_address import with_servers
from slackwater.controller.haproxy_init.first_settings import NewNode, choose, lines_for, settings_text
from slackwater.core.bus import nats_server
from slackwater.core.config import ConfigError, is_loopback, load, parse
from slackwater.core.service_user import give_group
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration, StatsSocket, SurveyError, read_configuration
from slackwater.lbengine.backends.haproxy.survey import (
    Access,
    FoundBackend,
    FoundServer,
    Survey,
    access_of,
    find_socket,
)
from tests.support.certificates import certificates
from tests.support.paths import ROOT
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, web_servers

pytestmark = needs_haproxy


class Here:
    """A folder with a configuration to be, and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "etc" / "controller.toml"
        self.state = folder / "state"

    def init(self, *arguments: str) -> Result:
        words = ["init", "--config", str(self.config), "--state-dir", str(self.state), *arguments]
        return CliRunner().invoke(cli, words)

    def monitors(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["monitors", "--config", str(self.config), *arguments])

    def refusal(self, *arguments: str) -> str:
        done = self.init(*arguments)
        assert done.exit_code == 1, done.output
        assert not self.state.exists()
        return str(done.stderr if done.stderr_bytes else done.output).removeprefix("error: ").strip()


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.fixture
def mixed() -> Iterator[RealHAProxy]:
    """Backends that can be driven, and others."""
    with web_servers(3) as ports:
        sections = [
            backend(ports, options="weight 100"),
            backend(ports, options="weight 1", name="coarse"),
            backend(ports[:1], name="alone"),
            backend(ports, balance="static-rr", name="fixed"),
            "backend empty\n",
        ]
        with haproxy("\n".join(sections)) as running:
            yield running


def test_it_writes_settings_that_are_accepted_and_opens_nothing(here: Here, balancer: RealHAProxy) -> None:
    done = here.init("--haproxy-cfg", str(balancer.folder / "haproxy.cfg"))
    assert done.exit_code == 0, done.output
    settings = load(here.config)
    (pool,) = settings.pool
    assert (pool.name, pool.mode, pool.driven) == ("web", "observe", {"backend": "web", "socket": balancer.socket})
    assert stat.S_IMODE(here.config.stat().st_mode) in (0o600, 0o640)
    assert f"admin socket {balancer.socket} (from {balancer.folder}/haproxy.cfg:2)" in done.output
    assert f"  slackwater serve --config {here.config}\n" in done.output
    assert f"`slackwater monitors --config {here.config}` adds a monitor" in done.output
    assert settings.balancer_view.mode == "on"
    assert is_loopback(settings.bus.listen)
    assert [path.name for path in here.config.parent.iterdir()] == ["controller.toml"]
    assert not here.state.exists(), "no user, certificate or password is made for nodes"


def test_monitors_are_the_second_step_and_let_the_nodes_log_in(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    before = here.config.read_text()
    done = here.monitors()
    assert done.exit_code == 0, done.output
    assert here.config.read_text() == before, "all servers are on this machine"
    settings = load(here.config)
    assert [(node.pool, node.name) for node in nats_server.nodes_of(settings)] == [
        ("web", name) for name in ("host1", "host2", "host3")
    ]
    password = settings.bus_folder / "passwords" / "host1.password"
    assert password.exists()
    assert "  ssh root@127.0.0.1 'install -D -m 640 -g slackwater-node /dev/stdin" in done.output
    assert f"< {password}" in done.output

    node = CliRunner().invoke(cli, ["bus", "node", "settings", "host1", "--port", "8080", "--config", str(here.config)])
    assert node.exit_code == 0, node.output
    for line in ('node = "host1"', 'pool = "web"', f'url = "{settings.bus.address}"', "ports = [8080]"):
        assert f"{line}\n" in node.output
    file = here.config.with_name("node.toml")
    file.write_text(node.output)
    monitor = ROOT / "target/release/slackwater-monitor"
    done_there = subprocess.run([monitor, "config", file], capture_output=True, text=True)
    assert done_there.stdout == f"{file}: fine (node host1, pool web)\n", done_there.stderr


def test_monitors_change_nothing_of_what_a_person_has_set(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    mine = here.config.read_text().replace('mode = "observe"', 'mode = "act"') + "target_p95_ms = 40.0\n"
    here.config.write_text(mine)
    listen = ("--listen", "192.0.2.1:14222")
    assert here.monitors(*listen, "--dry-run").exit_code == 0
    assert here.config.read_text() == mine
    assert not here.state.exists()
    assert here.monitors(*listen).exit_code == 0
    assert here.config.read_text().startswith(mine)
    settings = load(here.config)
    assert (settings.bus.listen, settings.pool[0].mode, settings.pool[0].target_p95_ms) == (listen[1], "act", 40.0)
    assert here.monitors().exit_code == 0, "it listens where they reach it"
    other = here.monitors("--listen", "192.0.2.2:14222")
    assert other.exit_code == 1
    assert 'its section [bus] says otherwise: write this there, and run it again: listen = "192.0.2.2' in other.output


def test_a_second_init_cuts_no_monitor_off(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    assert here.monitors("--listen", "192.0.2.1:14222").exit_code == 0
    bus = load(here.config).bus
    assert bus.listen == "192.0.2.1:14222"
    mine = here.config.read_text() + '# of mine\n\n[web]\nlisten = "127.0.0.1:1"\n'
    here.config.write_text(mine.replace("[bus]", "[bus] # and this"))
    assert here.init("--socket", balancer.socket, "--force").exit_code == 0
    assert load(here.config).bus == bus
    assert load(here.config).web.listen != "127.0.0.1:1"
    for comment in ("\n[bus] # and this\n", "\n# of mine\n"):
        assert comment in here.config.read_text()


def test_names_that_a_person_gave_hold_also_of_servers_that_are_away(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    mine = here.config.read_text() + 'servers = { host1 = "host1", host2 = "second", away = "third" }\n'
    here.config.write_text(mine)
    for _ in range(2):
        done = here.monitors()
        assert done.exit_code == 0, done.output
        assert here.config.read_text() == mine
    assert [node.name for node in nats_server.nodes_of(load(here.config))] == ["host1", "second", "host3"]


def test_the_servers_of_a_machine_stay_together_while_one_of_them_is_away(tmp_path: Path) -> None:
    text = '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"  # mine\n'
    together = with_servers(text, "web", {"vm-1": "vm", "vm-2": "vm", "other": "other"}, tmp_path)
    assert parse(together, "test").pool[0].servers == {"vm-1": "vm", "vm-2": "vm"}
    assert together.replace('servers = { "vm-1" = "vm", "vm-2" = "vm" }\n', "") == text
    assert with_servers(together, "web", {"vm-2": "vm", "other": "other"}, tmp_path) == together
    with pytest.raises(ConfigError, match='"vm-1" = "vm", "vm-2" = "vm", "other" = "vm"'):
        with_servers(together, "web", {"vm-2": "vm", "other": "vm"}, tmp_path)


def test_monitors_need_no_socket_that_may_set_weights(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    by_agents = here.config.read_text().replace(balancer.socket, balancer.operator)
    by_agents += 'weight_delivery = "agent-check"\nsockets = ["/no/such.sock"]\n'
    here.config.write_text(by_agents)
    done = here.monitors()
    assert done.exit_code == 0, done.output
    first_away = by_agents.replace(balancer.operator, "/other.sock").replace("/no/such.sock", balancer.operator)
    here.config.write_text(first_away)
    assert here.monitors().exit_code == 0
    here.config.write_text(by_agents.replace('backend = "web"', 'backend = "gone"'))
    done = here.monitors("--listen", "192.0.2.1:14222")
    assert done.exit_code == 1
    assert "HAProxy has no backend `gone` with servers" in done.output
    assert [path.name for path in here.config.parent.iterdir()] == ["controller.toml"], "no certificate either"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_settings_keep_their_owner_their_mode_and_their_place(here: Here, balancer: RealHAProxy) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    place = here.config.with_name("kept-in-git.toml")
    here.config.rename(place)
    here.config.symlink_to(place.name)
    os.chown(place, 65534, 65534)
    place.chmod(0o644)
    steps = (("--listen", "192.0.2.1:14222"), here.monitors), (("--socket", balancer.socket, "--force"), here.init)
    for words, step in steps:
        place.write_text(before := place.read_text() + "# mine\n")
        done = step(*words)
        assert done.exit_code == 0, done.output
        assert here.config.is_symlink()
        assert place.read_text() != before
        status = place.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (65534, 65534, 0o644)


@pytest.mark.parametrize("bus", ["[ bus ]\n", '["bus"]\n', "  [bus]  # ours\n", "bus."])
def test_settings_of_the_bus_that_would_be_lost_are_refused(here: Here, balancer: RealHAProxy, bus: str) -> None:
    assert here.init("--socket", balancer.socket).exit_code == 0
    listen = 'listen = "127.0.0.1:14333"\n'
    text = here.config.read_text()
    here.config.write_text(f"{bus}{listen}{text}" if bus == "bus." else f"{text}{bus}{listen}")
    before = here.config.read_text()
    done = here.init("--socket", balancer.socket, "--force")
    assert done.exit_code == 1
    assert "not all settings of its bus stand below a line `[bus]`, so they would be lost" in done.output
    assert here.config.read_text() == before


def test_what_is_there_stays_unless_forced(here: Here, balancer: RealHAProxy) -> None:
    here.config.parent.mkdir()
    here.config.write_text("mine")
    refused = here.refusal("--socket", balancer.socket)
    assert refused == f"{here.config} is there already; --force replaces it, --dry-run shows what would be written"
    assert here.config.read_text() == "mine"
    assert here.init("--socket", balancer.socket, "--force").exit_code == 0
    assert here.monitors().exit_code == 0
    passwords = {path.name: path.read_text() for path in (here.state / "bus" / "passwords").iterdir()}
    assert here.init("--socket", balancer.socket, "--force").exit_code == 0
    assert here.monitors().exit_code == 0
    assert {path.name: path.read_text() for path in (here.state / "bus" / "passwords").iterdir()} == passwords
    assert [path.name for path in here.config.parent.iterdir()] == ["controller.toml"]


def test_a_dry_run_writes_nothing(here: Here, balancer: RealHAProxy) -> None:
    done = here.init("--socket", balancer.socket, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert not report["written"]
    assert parse(report["text"], "f.toml").pool[0].name == "web"
    assert [node["name"] for node in report["pools"][0]["nodes"]] == ["host1", "host2", "host3"]
    assert report["haproxy"]["backends"][0]["servers"][0]["weight"] == 100
    assert not here.state.exists()
    assert not here.config.exists()


def test_each_backend_is_told_what_it_lacks(here: Here, mixed: RealHAProxy) -> None:
    cfg = str(mixed.folder / "haproxy.cfg")
    done = here.init("--haproxy-cfg", cfg)
    assert done.exit_code == 0, done.output
    assert sorted(pool.name for pool in load(here.config).pool) == ["coarse", "web"]
    lines = done.output.splitlines()

    def after(name: str) -> str:
        return lines[next(number for number, line in enumerate(lines) if line.startswith(f"backend {name}:")) + 1]

    assert after("web") == "  ✓ can be driven"
    assert "expected at least 2" in after("alone")
    assert "`balance static-rr` cannot be driven" in after("fixed")
    assert "use `balance roundrobin`" in after("fixed")
    line_number = next(
        number for number, line in enumerate(Path(cfg).read_text().splitlines(), start=1) if "fixed" in line
    )
    assert f"({cfg}:{line_number})" in after("fixed")
    assert (
        "the weights of host1, host2, host3 are too small for fine steps: a slow server gets all of its" in done.output
    )
    assert "give each server 20 or more, and a larger one more than a smaller" in done.output
    assert "empty" not in done.output
    # Two backends here have servers of the same names: each machine's monitor has a name of its own.
    assert here.monitors().exit_code == 0
    names = {node.name for node in nats_server.nodes_of(load(here.config))}
    assert len(names) == 6
    assert {"host1", "coarse-host1"} <= names or {"host1", "web-host1"} <= names


def test_only_the_backends_that_are_named(here: Here, mixed: RealHAProxy) -> None:
    assert here.init("--socket", mixed.socket, "--backend", "coarse").exit_code == 0
    assert [pool.name for pool in load(here.config).pool] == ["coarse"]


def test_nothing_is_written_when_nothing_can_be_driven(here: Here, mixed: RealHAProxy) -> None:
    assert "no backend can be driven:\n  fixed: " in here.refusal("--socket", mixed.socket, "--backend", "fixed")
    assert "no backend `none`; HAProxy has: web, " in here.refusal("--socket", mixed.socket, "--backend", "none")
    for path, expected in (
        (mixed.operator, "this socket has no admin level; add `level admin`"),
        (str(here.state), "no such socket"),
    ):
        assert expected in here.refusal("--socket", path)
    assert not here.config.exists()


def test_a_bus_that_others_reach(here: Here, balancer: RealHAProxy, tmp_path: Path) -> None:
    certificates(tmp_path)
    authority = tmp_path / "ca.pem"
    assert here.init("--socket", balancer.socket).exit_code == 0
    for refused, expected in (
        (("192.0.2.1:14222", "--tls-ca", __file__), "`tls_ca` demands TLS"),
        (("0.0.0.0:14222",), "0.0.0.0 is no address that a certificate can be for; name the one that the others reach"),
    ):
        done = here.monitors("--listen", *refused)
        assert done.exit_code == 1
        assert expected in done.output, "a certificate is made where none of its files is named"
        assert not here.state.exists()
    tls = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    tls += ["--tls-ca", str(authority)]
    done = here.monitors("--listen", "127.0.0.1:14222", *tls)
    assert done.exit_code == 0, done.output
    assert load(here.config).bus.address == "tls://127.0.0.1:14222"
    assert f"< {authority}" in done.output
    node = CliRunner().invoke(cli, ["bus", "node", "settings", "host1", "--config", str(here.config)])
    assert 'tls_ca = "/etc/slackwater/authority.pem"\n' in node.output


# --- the parts


def cfg(tmp_path: Path, text: str) -> SiteConfiguration:
    path = tmp_path / "haproxy.cfg"
    path.write_text(text)
    return read_configuration(path)


def test_the_socket_of_the_configuration_comes_first(tmp_path: Path) -> None:
    path = cfg(tmp_path, "global\n  stats socket ipv4@127.0.0.1:9999 level admin\n  stats socket /a level admin # b\n")
    assert find_socket("", path) == ("/a", f"from {tmp_path}/haproxy.cfg:3")
    assert find_socket("/b", path) == ("/b", "as given")
    usual = tmp_path / "admin.sock"
    with pytest.raises(SurveyError, match=r"add the line `stats socket /run/haproxy/admin\.sock mode 660"):
        find_socket("", SiteConfiguration(), [str(usual)])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(usual))
        assert find_socket("", SiteConfiguration(), [str(usual)]) == (str(usual), "at a usual place")
    with pytest.raises(SurveyError, match=rf"to the section `global` \({tmp_path}/haproxy.cfg:2\) and restart HAProxy"):
        find_socket("", cfg(tmp_path, "\nglobal\n"), [str(tmp_path / "none")])
    with pytest.raises(SurveyError, match=r"haproxy.cfg:2: `stats socket /a` has level operator; add `level admin`"):
        find_socket("", cfg(tmp_path, "global\n  stats socket /a mode 660\nbackend stats\n"))
    with pytest.raises(SurveyError, match="cannot be read: No such file"):
        read_configuration(tmp_path / "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another group")
def test_access_for_the_controllers_user_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    user = pwd.getpwnam("nobody")
    configuration = SiteConfiguration([StatsSocket(str(path), "admin", "haproxy.cfg:3")])
    path.touch()
    path.chmod(0o600)
    access = access_of(str(path), configuration, "nobody")
    (sentence,) = access.lacks()
    assert "add `mode 660 group haproxy` to haproxy.cfg:3" in sentence
    assert "SupplementaryGroups=haproxy" in sentence
    (sentence,) = access.lacks(is_given=True)
    assert "SupplementaryGroups" not in sentence
    path.chmod(0o660)
    os.chown(path, 0, 1)
    lacking = access_of(str(path), configuration, "nobody")
    (sentence,) = lacking.lacks()
    assert "SupplementaryGroups=daemon" in sentence
    assert lacking.lacks(is_given=True) == []
    drop_ins = tmp_path / "slackwater-controller.service.d"
    drop_ins.mkdir()
    (drop_ins / "override.conf").write_text("[Service]\nSupplementaryGroups=daemon audio\n")
    assert access_of(str(path), configuration, "nobody", tmp_path) == Access()
    (drop_ins / "z.conf").write_text("[Service]\nSupplementaryGroups=\n")
    assert access_of(str(path), configuration, "nobody", tmp_path) == lacking
    assert give_group("daemon", tmp_path).read_text().endswith("[Service]\nSupplementaryGroups=daemon\n")
    (drop_ins / "z.conf").unlink()
    (drop_ins / "override.conf").unlink()
    assert access_of(str(path), configuration, "nobody", tmp_path) == Access()
    os.chown(path, 0, user.pw_gid)
    assert access_of(str(path), configuration, "nobody") == Access()
    assert access_of(str(path), configuration, "no-such-user") == Access()


def survey_of(**backends: list[str]) -> Survey:
    """Backends with servers at these addresses."""
    return Survey(
        "/a",
        "as given",
        "2.6",
        [
            FoundBackend(
                name, "roundrobin", [FoundServer(f"web{n}", address, 100) for n, address in enumerate(all_at)], [], []
            )
            for name, all_at in backends.items()
        ],
        Access(),
    )


def test_a_machine_is_in_one_pool() -> None:
    http, https = ["10.0.0.1:80", "10.0.0.2:80"], ["10.0.0.1:443", "10.0.0.2:443", "10.0.0.3:443"]
    pools, left_out = choose(survey_of(http=http, https=https))
    assert [pool.name for pool in pools] == ["https"]
    assert [pool.backend for pool in left_out] == ["http"]
    assert "are machines of pool `https` too" in left_out[0].why
    pools, _ = choose(survey_of(http=http, https=https), ["http", "https"])
    assert [pool.name for pool in pools] == ["http"]


def test_machines_of_the_same_name_get_names_of_their_own() -> None:
    survey = survey_of(a=["10.0.0.1:80", "10.0.0.2:80"], b=["10.0.1.1:8080", "10.0.1.2:8080"])
    pools, left_out = choose(survey)
    assert left_out == []
    assert [node.name for pool in pools for node in pool.nodes] == ["web0", "web1", "b-web0", "b-web1"]
    settings = parse(settings_text(survey, pools), "f.toml")
    assert settings.pool[1].servers == {"web0": "b-web0", "web1": "b-web1"}
    lines = lines_for(pools[1].nodes[0], Path("/state/passwords"), "")
    assert lines[0].endswith("< /state/passwords/b-web0.password")
    assert lines[0].startswith("ssh root@10.0.1.1 ")
    assert lines[1].startswith("slackwater bus node settings b-web0 --port 8080 | ssh root@10.0.1.1 ")


def test_a_name_that_looks_like_an_option_is_none() -> None:
    node = NewNode("-a", "web", ["-a"], "10.0.0.1", ["80"])
    line = lines_for(node, Path("/p"), "", interface="ens3")[1]
    assert line.startswith("slackwater bus node settings --interface ens3 -- -a | ssh root@10.0.0.1 ")


def test_a_monitor_looks_where_its_requests_arrive() -> None:
    """Behind 127.0.0.1 that is the loopback interface."""
    pools, _ = choose(survey_of(a=["10.0.0.1:80", "127.0.0.1:8080"]))
    lines = [lines_for(node, Path("/state/passwords"), "", interface="ens3")[1] for node in pools[0].nodes]
    assert lines[0].startswith("slackwater bus node settings web0 --interface ens3 | ")
    assert " --port 8080 --interface lo | " in lines[1]
    pools, _ = choose(survey_of(a=["127.0.0.1:8080", "127.0.0.2:8080"]))
    lines = [lines_for(node, Path("/state/passwords"), "", interface="ens3")[1] for node in pools[0].nodes]
    assert all(" --port 8080 --interface lo | " in line for line in lines)
