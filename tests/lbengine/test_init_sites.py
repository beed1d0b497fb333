"""`slackwater init` and `check` beside HAProxies as sites have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.config import LbengineSettings, load
from slackwater.lbengine.backends.haproxy.configuration import Started
from slackwater.lbengine.backends.haproxy.configuration import started as haproxies
from slackwater.lbengine.backends.haproxy.fleet import haproxy_of
from slackwater.lbengine.backends.haproxy.preflight import check
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.haproxy.site import spoken
from slackwater.lbengine.balancer import BalancerError
from tests.support.asked_haproxy import asked, started
from tests.support.certificates import certificates
from tests.support.placed_case import placed_case
from tests.support.real_haproxy import haproxy_program, needs_haproxy
from tests.support.real_processes import free_port

pytestmark = needs_haproxy
PROXIES = "defaults\n mode http\n timeout connect 2s\n timeout client 2s\n timeout server 2s\n"


class Case:
    """A site's files, and a controller's beside them."""

    def __init__(self, folder: Path, tls: Path) -> None:
        self.folder = folder
        self.config = folder / "controller.toml"
        certificates(tls)
        self.words = ["--haproxy-cfg", str(folder / "haproxy.cfg"), "--config", str(self.config)]
        self.bus = ["--listen", "127.0.0.1:14222"]
        self.bus += ["--tls-cert", str(tls / "server.pem"), "--tls-key", str(tls / "server.key")]
        self.state = ["--state-dir", str(folder / "state")]

    @contextmanager
    def running(self, program: str = "haproxy", *more: Path) -> Iterator[None]:
        with started([self.folder / "haproxy.cfg", *more], self.folder / "admin.sock", program):
            yield

    def init(self, *words: str) -> dict[str, Any]:
        """Both steps: what `init` and `monitors` say to programs."""
        answers: dict[str, Any] = {}
        for step in (["init", *self.state, *words], ["monitors", *self.bus]):
            done = CliRunner().invoke(cli, [*step, *self.words, "--json"])
            assert done.exit_code == 0, done.output
            answers |= json.loads(done.stdout)
        return answers

    def text(self, *words: str) -> str:
        """What `init` prints for people."""
        return CliRunner().invoke(cli, ["init", *self.words, *self.state, *words]).output

    def last_line(self, *words: str) -> str:
        """One line that says why nothing was written."""
        done = CliRunner().invoke(cli, ["init", *self.words, *self.state, *words])
        assert done.exit_code == 1, done.output
        assert not self.config.exists()
        (line,) = done.output.splitlines()
        return line

    def nodes_checked(self) -> list[str]:
        done = CliRunner().invoke(cli, ["check", "--config", str(self.config), "--json"])
        return [line["about"] for line in json.loads(done.stdout) if line["about"].startswith("node ")]


def case_of(tmp_path: Path, backends: str) -> Case:
    """A site of one file: these sections, and before them what HAProxy needs to start."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "haproxy.cfg").write_text(
        f"global\n stats socket {folder}/admin.sock level admin\n{PROXIES}frontend in\n bind unix@{folder}/in.sock\n"
        f"{backends}"
    )
    return Case(folder, tmp_path)


@pytest.fixture
def case(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Case:
    short = tmp_path_factory.mktemp("s")  # a socket's path may have 97 bytes
    tls = short / "tls"
    tls.mkdir()
    return Case(placed_case(request.param, short), tls)


def with_case(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [name], indirect=True)


def commands(answers: dict[str, Any]) -> list[str]:
    return [command for node in answers["nodes"] for command in node["commands"]]


@with_case("same-name")
@pytest.mark.parametrize("program", ["haproxy-2.2", "haproxy", "haproxy-3.2"])
def test_a_frontend_and_a_backend_may_share_a_name(case: Case, program: str) -> None:
    if haproxy_program(program) is None:
        pytest.skip(f"needs {program}")
    with case.running(program):
        assert [pool["name"] for pool in case.init()["pools"]] == ["shop"]
        driven = haproxy_of("shop", [str(case.folder / "admin.sock")], 5.0)
        assert [(server.name, server.weight) for server in driven.read().servers] == [("shop1", 100), ("shop2", 100)]
        driven.set_weights({"shop1": 5})
        assert driven.read().servers[0].weight == 5


def test_a_name_that_begins_with_digits_is_no_proxy_s_number(tmp_path: Path) -> None:
    file, admin = tmp_path / "haproxy.cfg", tmp_path / "admin.sock"
    servers = "".join(f" server {name} 192.0.2.1:80 weight 10\n" for name in ("a", "b"))
    file.write_text(
        f"global\n stats socket {admin} level admin\n{PROXIES}frontend in\n bind unix@{tmp_path}/in.sock\n"
        f"backend other\n server x 192.0.2.9:80\nbackend 3web\n{servers}"
    )
    with started([file], admin):
        assert [server.name for server in haproxy_of("3web", [str(admin)], 5.0).read().servers] == ["a", "b"]


@with_case("several-servers-a-machine")
def test_a_machine_with_several_servers_has_one_monitor(case: Case) -> None:
    with case.running():
        first = CliRunner().invoke(cli, ["init", *case.words, *case.state, "--json"])
        assert load(case.config).pool[0].servers == {}, "each server is seen from the balancer"
        assert [len(node["servers"]) for node in json.loads(first.stdout)["pools"][0]["nodes"]] == [1, 1, 1, 1]
        answers = case.init("--force")
        pool = load(case.config).pool[0]
        assert pool.servers == {"vm1-3001": "vm1", "vm1-3002": "vm1", "vm2-3001": "vm2", "vm2-3002": "vm2"}
        assert [node.name for node in nats_server.nodes_of(load(case.config))] == ["vm1", "vm2"]
        assert [line.count("--port 3001 --port 3002") for line in commands(answers)] == [0, 1, 0, 1]
        assert case.nodes_checked() == ["node vm1 of pool app", "node vm2 of pool app"]


@with_case("server-template")
def test_a_slot_without_an_address_is_no_machine_and_is_named_once(case: Case) -> None:
    with case.running():
        answers = case.init()
        assert [node.name for node in nats_server.nodes_of(load(case.config))] == ["fixed1", "fixed2"]
        warnings = answers["haproxy"]["backends"][0]["warnings"]
        named = [text for text in warnings if "app1" in text]
        assert len(named) == 1
        reason = "have no address: no machine is looked for there until there is one"
        assert named[0].endswith(f"app1, app2, app3, app4, app5, app6 {reason}")
        assert case.nodes_checked() == ["node fixed1 of pool app", "node fixed2 of pool app"]


@with_case("nbproc-socket-each")
@pytest.mark.skipif(haproxy_program("haproxy-2.2") is None, reason="needs haproxy-2.2")
def test_one_of_several_processes_is_refused_and_all_of_them_are_driven(case: Case) -> None:
    sockets = [str(case.folder / f"admin{n}.sock") for n in (1, 2)]
    with started([case.folder / "haproxy.cfg"], Path(sockets[0]), "haproxy-2.2", master=True):
        printed = case.last_line()
        assert "HAProxy runs 2 processes (`nbproc 2`), each with weights of its own" in printed
        settings = LbengineSettings(socket_timeout_s=20.0)
        with pytest.raises(BalancerError, match="this socket reached process 2 alone"):
            check(HAProxyPool(name="app", backend="app", socket=sockets[1]), settings)
        check(HAProxyPool(name="app", backend="app", socket=sockets[0], sockets=sockets[1:]), settings)
        haproxy_of("app", sockets, 5.0).read()


@with_case("tls-8443")
@pytest.mark.parametrize("program", ["haproxy-2.2", "haproxy"])
def test_a_server_with_tls_is_of_an_unknown_protocol(case: Case, program: str) -> None:
    if haproxy_program(program) is None:
        pytest.skip(f"needs {program}")
    with case.running(program):
        lines = commands(case.init())
        assert [line.partition(" --port ")[2].partition(" ")[0] for line in lines[1::2]] == [
            "8443:unknown",
            "8444:unknown",
        ]


@pytest.mark.parametrize(
    ("server", "more", "port"),
    [
        ("192.0.2.1:80", "", ""),
        ("192.0.2.1:8080", "", "8080"),
        ("192.0.2.1:8080", " proto h2", "8080:unknown"),
        ("192.0.2.1:443", "", "443:http1"),
        ("192.0.2.1:443", " ssl verify none", "443"),
        ("192.0.2.1:11211", "", "11211:http1"),
        ("[2001:db8::1]:8080", "", "8080"),
    ],
)
def test_what_haproxy_knows_of_a_server_s_protocol_is_written(
    tmp_path: Path, server: str, more: str, port: str
) -> None:
    case = case_of(
        tmp_path,
        f"backend app\n default-server weight 100{more}\n server web1 {server}\n server web2 192.0.2.2:80\n",
    )
    with case.running():
        line = commands(case.init())[1]
        assert line.partition(" --port ")[2].partition(" ")[0] == port
        assert f"ssh root@{server.rpartition(':')[0].strip('[]')} " in line


@pytest.mark.parametrize(
    ("spoken_of", "expected"),
    [
        (("", "http", 80, False), "http1"),
        (("h1", "http", 443, False), "http1"),
        (("h2", "http", 80, False), "unknown"),
        (("", "http", 80, True), "unknown"),
        (("", "tcp", 80, False), "unknown"),
        (("", "tcp", 11211, False), "memcached"),
        (("", "spop", 80, False), "unknown"),
    ],
)
def test_what_is_not_http_in_the_clear_is_only_timed(spoken_of: tuple[str, str, int, bool], expected: str) -> None:
    protocol, mode, port, uses_ssl = spoken_of
    assert spoken(protocol, mode, port, uses_ssl=uses_ssl) == expected


def test_unix_sockets_names_and_disabled_servers_are_what_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "haproxy.cfg").write_text(
        f"global\n stats socket {folder}/admin.sock level admin\n{PROXIES}"
        f"resolvers dns\n nameserver here 127.0.0.1:5399\nfrontend in\n bind unix@{folder}/in.sock\n"
        "backend app\n default-server weight 100\n server one 192.0.2.1:80\n server beside 127.0.0.1:8080\n"
        f" server local unix@{folder}/a.sock\n server local2 {folder}/b.sock\n"
        " server named web9.internal:80 resolvers dns init-addr none\n"
        " server slot 127.0.0.1:80 disabled\n server nowhere 0.0.0.0:80\n"
    )
    case = Case(folder, tmp_path)
    with case.running():
        answers = case.init()
        assert load(case.config).pool[0].servers == {"local": "beside", "local2": "beside"}
        hosts = {node["name"]: node["host"] for pool in answers["pools"] for node in pool["nodes"]}
        assert hosts == {"one": "192.0.2.1", "beside": "", "local": "", "local2": "", "named": "web9.internal"}
        assert [node["node"] for node in answers["nodes"]] == ["one", "beside", "named"]
        lines = commands(answers)
        assert not [line for line in lines if "root@unix" in line or "root@local" in line or "root@127" in line]
        assert any(line.startswith("install -D -m 640") for line in lines), "on this host, without ssh"
        # The site enables the slot: what `disabled` left in its state is no maintenance any more.
        driven = haproxy_of("app", [str(folder / "admin.sock")], 5.0)
        slot = {server.name: server for server in driven.read().servers}["slot"]
        assert (slot.available, slot.placeholder) == (False, "disabled")
        asked(folder / "admin.sock", "set server app/slot state ready")
        slot = {server.name: server for server in driven.read().servers}["slot"]
        assert (slot.available, slot.placeholder) == (True, "")


def test_a_port_that_no_monitor_can_know_is_not_made_up(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        f"backend app\n default-server weight 100\n server here {tmp_path}/site/a.sock\n server other 192.0.2.1\n",
    )
    with case.running():
        lines = [line for line in commands(case.init()) if line.startswith("slackwater bus node settings")]
        assert ["--no-port" in line for line in lines] == [True, False]
        printed = case.text("--force")
        assert (
            "! other: no port in HAProxy, which takes the one that the client came in by; so no packet shows response"
            " times from here, and HAProxy's mean alone is shown: give the server a port in HAProxy's configuration. A"
            " monitor there looks at port 80, unless `slackwater bus node settings` names another with `--port`"
        ) in printed


def test_a_port_that_haproxy_adds_to_the_clients_is_no_port_of_the_server(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        "backend app\n default-server weight 100\n server more 192.0.2.1:+1000\n server less 192.0.2.2:-5\n"
        " server-template t 2 192.0.2.3:+8000\n server usual 192.0.2.4:8080\n",
    )
    with case.running():
        lines = [line for line in commands(case.init()) if line.startswith("slackwater bus node settings")]
        assert ["--port" in line for line in lines] == [False, False, False, True]
        printed = case.text("--force")
        tail = "so no packet shows response times from here"
        for text in (
            "more 192.0.2.1:+1000 weight 100, less 192.0.2.2:-5 weight 100",
            f"! more: HAProxy adds 1000 to the port that the client came in by; {tail}",
            f"! less: HAProxy takes 5 from the port that the client came in by; {tail}",
            f"! t1, t2: HAProxy adds 8000 to the port that the client came in by; {tail}",
        ):
            assert text in printed


def test_an_address_of_ipv4_that_is_written_as_one_of_ipv6_is_the_same_machine(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        "backend app\n default-server weight 100\n server vm1-a 192.0.2.1:80\n server vm1-b ::ffff:192.0.2.1:81\n"
        " server vm2 [2001:db8::2]:80\n",
    )
    with case.running():
        answers = case.init()
    assert [node["node"] for node in answers["nodes"]] == ["vm1", "vm2"]
    assert load(case.config).pool[0].servers == {"vm1-a": "vm1", "vm1-b": "vm1"}
    assert "root@192.0.2.1 " in commands(answers)[0]


@pytest.mark.parametrize(
    ("servers", "place"),
    [
        (" server a 192.0.2.1:80\n server b ::ffff:192.0.2.1:81\n", "one machine (192.0.2.1)"),
        (" server a /run/a.sock\n server b /run/b.sock\n", "this host"),
        (" server a 192.0.2.1:80\n server b 192.0.2.2:80\n", ""),
    ],
)
def test_servers_that_are_all_on_one_machine_have_nowhere_to_move_load_to(
    tmp_path: Path, servers: str, place: str
) -> None:
    case = case_of(tmp_path, f"backend app\n default-server weight 100\n{servers}")
    with case.running():
        printed = case.text()
    warning = f"! all its servers are on {place}: a noisy neighbour slows them alike, and no other machine can take"
    assert (warning in printed) == bool(place)
    assert printed.count("all its servers are on") == bool(place)


def test_a_backend_in_each_branch_of_a_condition_is_named_with_both_places(tmp_path: Path) -> None:
    servers = " server a 192.0.2.1:80 weight 100\n server b 192.0.2.2:80 weight 100\n"
    case = case_of(
        tmp_path,
        f".if defined(BLUE)\nbackend app\n balance source\n{servers}.else\nbackend app\n balance first\n{servers}"
        ".endif\n",
    )
    with case.running():
        text = case.text()
    file = case.folder / "haproxy.cfg"
    assert f"backend `app` ({file}:11 or {file}:16): `balance first` cannot be driven" in text


def test_a_branch_that_is_not_taken_says_nothing_of_a_server(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        ".if defined(NOT_SET)\nbackend app\n server a 192.0.2.1:8080 ssl verify none\n server b 192.0.2.2:+1000\n"
        ".else\nbackend app\n server a 192.0.2.1:8080\n server b 192.0.2.2:8080\n.endif\n",
    )
    with case.running():
        lines = [line for line in commands(case.init()) if line.startswith("slackwater bus node settings")]
    assert [line.partition(" | ")[0] for line in lines] == [
        f"slackwater bus node settings {name} --port 8080 --config {case.config}" for name in ("a", "b")
    ]


def test_servers_that_share_machines_in_two_pools_are_told_a_table_that_is_taken(tmp_path: Path) -> None:
    servers = " server a1 192.0.2.{0}1:80\n server a2 192.0.2.{0}1:81\n server b1 192.0.2.{0}2:80\n"
    case = case_of(tmp_path, f"backend web\n{servers.format(1)}backend api\n{servers.format(2)}")
    with case.running():
        assert CliRunner().invoke(cli, ["init", *case.words, *case.state]).exit_code == 0
        for _ in range(3):
            done = CliRunner().invoke(cli, ["monitors", *case.words, *case.bus])
            if done.exit_code == 0:
                break
            table = done.output.partition("run it again: ")[2]
            pool = done.output.partition("pool `")[2].partition("`")[0]
            parts = case.config.read_text().partition(f'name = "{pool}"')
            case.config.write_text(parts[0] + parts[1] + re.sub("servers = .*\n", table, parts[2], count=1))
    assert done.exit_code == 0, done.output


def test_weights_are_those_that_are_set_with_the_configured_ones_where_they_differ(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        "backend app\n balance random(3)\n default-server weight 100\n server a 192.0.2.1:80\n server b 192.0.2.2:80\n"
        " server c 192.0.2.3:80\n",
    )
    with case.running():
        asked(
            case.folder / "admin.sock",
            "set server app/a weight 40; set server app/b state maint; set server app/c weight 0",
        )
        printed = case.text()
    assert (
        "backend app: balance random; a 192.0.2.1:80 weight 40 (configured: 100), b 192.0.2.2:80 weight 100,"
        " c 192.0.2.3:80 weight 0 (configured: 100)"
    ) in printed


@with_case("quoted-socket")
def test_a_quoted_socket_is_found(case: Case) -> None:
    with case.running():
        assert case.init()["haproxy"]["socket"] == str(case.folder / "admin.sock")


@with_case("tcp-admin-socket")
def test_an_admin_socket_on_tcp_is_named_with_what_to_write_instead(case: Case) -> None:
    why = (
        "an admin socket on a TCP address has no login, so anyone who reaches it controls HAProxy; add the line `stats"
        " socket /run/haproxy/admin.sock mode 660 level admin group haproxy` to the section `global`{} and restart"
        ' HAProxy, or write the configuration by hand, with `socket = "tcp://127.0.0.1:19991"` and'
        " `allow_tcp_socket = true`"
    )
    cfg = f"{case.folder}/haproxy.cfg"
    assert case.last_line() == f"error: {cfg}:2: {why.format(f' ({cfg}:1)')}"
    why = why.format(" of its configuration")
    for named in ("tcp://127.0.0.1:19991", "ipv4@127.0.0.1:19991", "127.0.0.1:19991"):
        assert case.last_line("--socket", named) == f"error: {named}: {why}"
    for anywhere in ("*:19991", ":19991", "ipv4@0.0.0.0:19991", "[::]:19991"):
        assert case.last_line("--socket", anywhere) == f"error: {anywhere}: {why}", "an address to connect to"


def test_the_socket_may_stand_in_another_file_and_after_others(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "haproxy.cfg").write_text(
        f"{PROXIES}frontend in\n bind unix@{folder}/in.sock\nbackend app\n"
        " default-server weight 100\n server a 192.0.2.1:80\n server b 192.0.2.2:80\n"
    )
    second = folder / "second.cfg"
    second.write_text(
        f"global\n setenv FOLDER {folder}\n stats socket ipv4@127.0.0.1:19992 level admin\n"
        f" stats socket {folder}/operator.sock level operator\n"
        ' stats socket "unix@${FOLDER}/admin.sock" mode 600 level admin # x\n'
    )
    case = Case(folder, tmp_path)
    with case.running("haproxy", second):
        survey = case.init()["haproxy"]
        assert (survey["socket"], survey["found_by"]) == (f"{folder}/admin.sock", f"from {second}:5")
    case.config.unlink()
    second.write_text('global\n stats socket "$NOBODY_KNOWS" level admin\n')
    (folder / "haproxy.cfg").write_text(second.read_text())
    assert "has a variable whose value only HAProxy knows; name the socket with --socket" in case.last_line()


def test_a_server_that_was_added_at_runtime_without_a_weight_is_named(tmp_path: Path) -> None:
    file, admin = tmp_path / "haproxy.cfg", tmp_path / "admin.sock"
    file.write_text(
        f"global\n stats socket {admin} level admin\n{PROXIES}frontend in\n bind unix@{tmp_path}/in.sock\n"
        "backend web\n balance roundrobin\n default-server weight 100\n server a 192.0.2.1:80\n server b 192.0.2.2:80\n"
    )
    pool = HAProxyPool(name="web", backend="web", socket=str(admin))
    settings = LbengineSettings(socket_timeout_s=20.0)
    with started([file], admin):
        assert not any("HAProxy's own" in text for text in check(pool, settings))
        asked(admin, "add server web/new 192.0.2.3:80")
        asked(admin, "set server web/new state ready")
        warning = "new has weight 1, HAProxy's own for a server without one, beside 100 of a, and gets next to nothing"
        assert any(warning in text for text in check(pool, settings))


@with_case("several-config-files")
def test_the_files_are_those_that_haproxy_was_started_with(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of where they are, when only one HAProxy runs."""
    monkeypatch.setattr("slackwater.controller.haproxy_init.site_files.USUAL_CONFIGURATION", case.folder / "none.cfg")
    case.words = case.words[2:]
    with case.running("haproxy", case.folder / "second.cfg"):
        (ours,) = [haproxy for haproxy in haproxies() if str(case.folder / "haproxy.cfg") in haproxy.files]
        monkeypatch.setattr("slackwater.controller.haproxy_init.site_files.started", lambda: [ours])
        answers = case.init()
        assert answers["haproxy"]["found_by"] == f"from {case.folder}/haproxy.cfg:2"
        assert [backend["name"] for backend in answers["haproxy"]["backends"]] == ["web", "api"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no admin socket of HAProxy was found"),
        (b"# all of it is elsewhere\n\n", "no admin socket of HAProxy was found"),
        ("global\n stats socket /x level admin\n".encode("utf-16"), "has no section such as `global` or `backend`"),
        (b"ServerName site.test\nListen 80\n", "has no section such as `global` or `backend`"),
    ],
)
def test_a_file_without_sections_is_no_crash(
    tmp_path: Path, text: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "slackwater.lbengine.backends.haproxy.survey.find_socket.__defaults__", ((str(tmp_path / "none"),),)
    )
    (tmp_path / "haproxy.cfg").write_bytes(text)
    assert says in Case(tmp_path, tmp_path).last_line()


def test_a_path_that_no_socket_can_have_is_not_haproxys_fault(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text("")
    path = f"/{'x' * 107}"
    printed = Case(tmp_path, tmp_path).last_line("--socket", path)
    assert printed == f"error: {path}: the path has 108 bytes, and that of a Unix socket at most 107"


def test_a_file_of_a_certificate_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text("")
    case = Case(tmp_path, tmp_path)
    for option in ("--tls-cert", "--tls-key", "--tls-ca"):
        done = CliRunner().invoke(cli, ["monitors", *case.words, option, str(tmp_path / "none.pem")])
        assert done.exit_code == 2
        assert f"File '{tmp_path}/none.pem' does not exist." in done.output
    assert not case.config.exists()


def test_the_systems_refusal_of_a_file_is_said_in_words(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        "backend app\n default-server weight 100\n server a 192.0.2.1:80\n server b 192.0.2.2:80\n",
    )
    with case.running():
        case.text()
        (case.folder / "state").write_text("a file where the folder should be")
        assert case.text("--force") == f"error: --state-dir: {case.folder}/state: not a folder\n"
        done = CliRunner().invoke(cli, ["monitors", *case.words, *case.bus])
        assert done.output == f"error: {case.folder}/state: File exists\n"


def test_servers_with_names_that_only_haproxy_allows_get_nodes_with_names_of_their_own(tmp_path: Path) -> None:
    names = ("a..b", "a.b", ".", "BACKEND")
    servers = "".join(f" server {name} 192.0.2.{n}:80\n" for n, name in enumerate(names, start=1))
    servers += f" server {'x' * 200} 192.0.2.9:80\n"
    (tmp_path / "haproxy.cfg").write_text(
        f"global\n stats socket {tmp_path}/admin.sock level admin\n{PROXIES}frontend in\n"
        f" bind 127.0.0.1:{free_port()}\n default_backend web\nbackend web\n balance roundrobin\n{servers}"
    )
    case = Case(tmp_path, tmp_path)
    with case.running():
        case.init()
    (pool,) = load(case.config).pool
    assert pool.servers == {"a..b": "a.b-2", ".": "server"}


def test_of_several_haproxies_none_at_the_usual_place_the_first_thing_to_do_is_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to add an admin socket, which each of them may have."""
    files = "slackwater.controller.haproxy_init.site_files"
    monkeypatch.setattr(f"{files}.USUAL_CONFIGURATION", tmp_path / "none.cfg")
    ways = [Started([f"/{name}/haproxy.cfg"], "/", {}) for name in ("a", "b")]
    monkeypatch.setattr(f"{files}.started", lambda: ways)
    usual = "slackwater.lbengine.backends.haproxy.survey.find_socket.__defaults__"
    monkeypatch.setattr(usual, ((str(tmp_path / "none"),),))
    case = Case(tmp_path, tmp_path)
    case.words = case.words[2:]
    line = case.last_line()
    assert line.startswith("error: HAProxies run here with files that are not /etc/haproxy/haproxy.cfg; name one with")
    assert "--haproxy-cfg: /a/haproxy.cfg, /b/haproxy.cfg. Without one: no admin socket of HAProxy was found" in line
