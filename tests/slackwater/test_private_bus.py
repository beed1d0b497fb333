"""The controller's own nats-server lets in whom it knows, and each to its own subjects; on the real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest
from click.testing import CliRunner, Result
from nats.aio.client import Client

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.bus.config import LIMITS, WSENGINE
from slackwater.core.config import CONTROL, CONTROLLER, BusSettings, ControllerSettings, host_and_port, load
from slackwater.core.control import Request, send
from slackwater.core.messages import Change, Sample, encode
from slackwater.core.state_dir import ServeLock, write_serve
from tests.support.certificates import certificates
from tests.support.nats_process import IN_TIME_S, as_node, until
from tests.support.paths import ROOT
from tests.support.real_lab import eventually
from tests.support.real_processes import free_address

PARTS = ("sample", "verdict", "order", "weight", "ask", "knobs", "change")
OF_NODES = [f"slackwater.{kind}.web.{node}" for kind in PARTS for node in ("web1", "web2")]
OF_OTHERS = [
    *("slackwater.cycle.web", "slackwater.controller-change.web", "slackwater.control.web", "slackwater.request.web"),
    *("$JS.API.STREAM.CREATE.any", "$JS.API.STREAM.DELETE.KV_slackwater_lease", "$KV.slackwater_lease.web"),
    "$KV.slackwater_replace.web",
    *("_INBOX.any", "_INBOX.slackwater-control.any", "_INBOX.slackwater-controller.any", "anything"),
]
MAY_PUBLISH = {
    "web1": {"slackwater.sample.web.web1"},
    f"{WSENGINE}web1": {"slackwater.change.web.web1", "slackwater.knobs.web.web1"},
    CONTROL: {"slackwater.control.web"},
    CONTROLLER: {
        *(subject for subject in OF_NODES if subject.split(".")[1] in ("sample", "verdict", "order", "weight", "ask")),
        *(subject for subject in OF_OTHERS if subject not in ("slackwater.control.web", "anything")),
    },
}
MAY_HEAR = {
    "web1": {"slackwater.weight.web.web1", "slackwater.ask.web.web1"},
    f"{WSENGINE}web1": {"slackwater.order.web.web1"},
    CONTROL: {"_INBOX.slackwater-control.any"},
}


def write(folder: Path, bus: str) -> Path:
    path = folder / "controller.toml"
    path.write_text(
        f'state_dir = "{folder}/state"\n[bus]\n{bus}\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
    )
    return path


def run(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--config", str(config)])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, f'listen = "{free_address()}"')


@pytest.fixture
def site(config: Path) -> Iterator[ControllerSettings]:
    """A running server with two nodes, which `slackwater bus node` finds as if `serve` had started it."""
    settings = load(config)
    for name in ("web1", "web2"):
        done = run(config, "bus", "node", "add", "web", name)
        assert done.exit_code == 0, done.output
    with subprocess.Popen(nats_server.command(settings)) as server:
        lock = ServeLock(Path(settings.state_dir))
        lock.acquire()
        try:
            nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings))
            write_serve(Path(settings.state_dir), {"children": {"nats-server": server.pid}})
            yield settings
        finally:
            lock.release()
            server.terminate()


async def connected(bus: BusSettings) -> tuple[Client, list[str]]:
    """A client, and what the server refuses it."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    password = Path(bus.password_file).read_text().strip() if bus.password_file else None
    client = Client()
    await client.connect(
        bus.url, user=bus.user or None, password=password, error_cb=note, allow_reconnect=False, connect_timeout=30
    )
    return client, refused


def settings_of(site: ControllerSettings, user: str) -> BusSettings:
    return {CONTROLLER: site.controller_bus, CONTROL: site.control_bus}.get(user) or as_node(site, user)


@pytest.mark.parametrize("user", [*MAY_PUBLISH])
def test_each_user_publishes_and_hears_what_is_its_own_and_nothing_else(site: ControllerSettings, user: str) -> None:
    async def story() -> None:
        client, refused = await connected(settings_of(site, user))
        for subject in (*OF_NODES, *OF_OTHERS):
            refused.clear()
            await client.publish(subject, b"{}")
            await until(lambda: client.pending_data_size == 0)
            await client.flush(60)
            assert bool(refused) != (subject in MAY_PUBLISH[user]), f"{user} publishes {subject}: {refused}"
            if user == CONTROLLER:
                continue
            refused.clear()
            await client.subscribe(subject)
            await until(lambda: client.pending_data_size == 0)
            await client.flush(60)
            assert bool(refused) != (subject in MAY_HEAR[user]), f"{user} hears {subject}: {refused}"
        await client.close()

    asyncio.run(story())


def test_without_a_password_or_with_another_one_nobody_is_let_in(site: ControllerSettings, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text(Path(as_node(site, "web2").password_file).read_text())
    wrong.chmod(0o600)
    for bus in (BusSettings(site.bus.address), BusSettings(site.bus.address, user="web1", password_file=str(wrong))):
        # nats-server closes the connection at once: the client's system may drop the refusal that was sent before.
        with pytest.raises(BusError, match=r"no NATS at .*(Authorization Violation|Connection reset by peer)"):
            asyncio.run(Bus.connect(bus, "stranger", wait_s=2.0))


def test_a_node_can_neither_speak_for_another_one_nor_command_lbengine(site: ControllerSettings) -> None:
    """What an attacker who has web2's monitor tries, and what the controller hears of it."""

    async def story() -> None:
        heard: list[str] = []
        commands: list[object] = []

        async def carry_out(question: dict[str, object]) -> dict[str, object]:
            commands.append(question)
            return {"sentence": "done"}

        controller = await Bus.connect(site.controller_bus, "controller")
        for kind in ("sample", "change", "knobs"):
            await controller.subscribe(kind, lambda message: heard.append(getattr(message, "node", "") or message.id))
        await controller.serve("slackwater.control.web", carry_out)
        await controller.bucket("slackwater_lease")
        await controller.flush(IN_TIME_S)

        thief, refused = await connected(as_node(site, "web2"))
        forged = Change(1, "forged", "web", 1.0, "weight", "web1", 100, 0, "maintenance", "anna", True)
        await thief.publish("slackwater.sample.web.web1", encode(Sample(1, "web1", "web", 1.0, "boot", 0, 0.2)))
        await thief.publish("slackwater.controller-change.web", encode(forged))
        await thief.publish("slackwater.change.web.web1", encode(forged))
        await thief.publish("slackwater.control.web", b'{"action": "mode", "mode": "act", "by": "anna"}')
        await thief.publish("$KV.slackwater_lease.web", b"mine")
        await thief.publish("$JS.API.STREAM.CREATE.full", b'{"name": "full", "subjects": ["full.>"]}')
        await thief.publish("slackwater.sample.web.web2", encode(Sample(1, "web2", "web", 1.0, "boot", 0, 0.2)))
        await until(lambda: bool(heard))
        await until(lambda: len(refused) == 6)
        assert (heard, commands) == (["web2"], [])

        person = await Bus.connect(site.control_bus, "person")
        assert await send(person, "web", Request(action="pause", by="anna")) == "done"
        assert len(commands) == 1
        for bus in (controller, person):
            await bus.close()
        await thief.close()

    asyncio.run(story())


def test_a_node_that_comes_is_let_in_and_one_that_goes_is_thrown_out(site: ControllerSettings, config: Path) -> None:
    assert run(config, "bus", "node", "list").output == "web web1\nweb web2\n"
    before = Path(as_node(site, "web1").password_file).read_text()

    async def story() -> None:
        client, _ = await connected(as_node(site, "web2"))
        done = run(config, "bus", "node", "add", "web", "web3")
        assert done.exit_code == 0, done.output
        assert f"bus.url {site.bus.address}, bus.user web3" in done.output
        async with asyncio.timeout(IN_TIME_S):
            while True:  # until the server has read its file again
                with contextlib.suppress(nats.errors.Error, OSError):
                    new, _ = await connected(as_node(site, "web3"))
                    break
                await asyncio.sleep(0.05)
        await new.close()
        assert client.is_connected, "the others stay"
        assert run(config, "bus", "node", "remove", "web2").exit_code == 0
        await until(lambda: client.is_closed)

    asyncio.run(story())
    assert run(config, "bus", "node", "list").output == "web web1\nweb web3\n"
    assert Path(as_node(site, "web1").password_file).read_text() == before
    assert not Path(as_node(site, "web2").password_file).exists()


def test_only_their_owner_reads_the_passwords(site: ControllerSettings) -> None:
    assert site.bus_folder.stat().st_mode & 0o777 == 0o700
    files = [path for path in site.bus_folder.rglob("*") if path.is_file()]
    assert len(files) == len(("nats.conf", "nodes")) + 6
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("add", "api", "web3"), "no pool `api`"),
        (("add", "web", "web;3"), "'web;3' is no name"),
        (("add", "web", CONTROL), f"the name {CONTROL} is taken"),
        (("remove", "web3"), "no node `web3`"),
    ],
)
def test_a_node_that_cannot_be_is_refused(config: Path, words: tuple[str, ...], wrong: str) -> None:
    done = run(config, "bus", "node", *words)
    assert done.exit_code == 1
    assert wrong in done.output
    assert run(config, "bus", "node", "list").output == ""


def test_with_a_bus_of_the_site_there_are_no_nodes_to_add(tmp_path: Path) -> None:
    done = run(write(tmp_path, 'url = "nats://127.0.0.1:4222"'), "bus", "node", "add", "web", "web1")
    assert "bus.url names a nats-server of yours: use `slackwater bus config`" in done.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", [("config", "check"), ("serve", "--config")])
@pytest.mark.parametrize(
    ("bus", "wrong"),
    [
        ('listen = "10.0.0.5:14222"', "`listen` 10.0.0.5:14222 is reached from other machines: set `tls_cert`"),
        ('listen = "0.0.0.0:14222"', "is reached from other machines"),
        ('tls_cert = "/c.pem"', "`tls_cert` and `tls_key` must be set together"),
        (
            'listen = "0.0.0.0:1"\ntls_cert = "/c.pem"\ntls_key = "/k.pem"',
            "expected the address or name that the certificate is for",
        ),
        ('tls_ca = "/ca.pem"', "`tls_ca` demands TLS, and the private nats-server has none"),
        ('url = "nats://u:p@h:1"', "`url` would send the password in the clear to another machine"),
        ('url = "nats://10.0.0.5:1"\nuser = "u"\npassword_file = "/p"', "would send the password in the clear"),
        ('url = "nats://localhost.example:1"\ncontrol_user = "u"\ncontrol_password_file = "/p"', "in the clear"),
        ('url = "nats://h:1"\ncontrol_user = "x"', "bus.control_user and bus.control_password_file must be set"),
    ],
)
def test_a_bus_that_would_be_open_to_others_is_refused(
    tmp_path: Path, command: tuple[str, str], bus: str, wrong: str
) -> None:
    done = CliRunner().invoke(cli, [*command, str(write(tmp_path, bus))])
    assert done.exit_code == 1
    assert wrong in done.output
    assert not (tmp_path / "state").exists()


def test_from_other_machines_it_is_reached_over_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    config = write(
        tmp_path,
        f'listen = "{free_address()}"\ntls_cert = "{tmp_path}/server.pem"\ntls_key = "{tmp_path}/server.key"\n'
        f'tls_ca = "{tmp_path}/ca.pem"',
    )
    assert run(config, "bus", "node", "add", "web", "web1").exit_code == 0
    settings = load(config)
    assert settings.bus.address.startswith("tls://")

    async def story() -> None:
        bus = await Bus.connect(as_node(settings, "web1"), "node")
        await bus.close()
        with pytest.raises(BusError):
            await Bus.connect(BusSettings(f"nats://{settings.bus.listen}"), "in the clear", wait_s=2.0)

    with subprocess.Popen(nats_server.command(settings)) as server:
        try:
            nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings))
            asyncio.run(story())
        finally:
            server.terminate()


def test_who_may_not_read_the_password_is_reported_so(config: Path) -> None:
    with pytest.raises(BusError, match=r"slackwater-control\.password: is not there; has `slackwater serve`"):
        asyncio.run(Bus.connect(load(config).control_bus, "nobody"))


def test_two_nodes_never_share_a_subject(config: Path) -> None:
    """A pool's and a node's name may have dots."""
    text = config.read_text() + '[[pool]]\nname = "web.a"\nbackend = "b"\nsocket = "/nowhere"\n'
    config.write_text(text)
    assert run(config, "bus", "node", "add", "web", "a.b").exit_code == 0
    done = run(config, "bus", "node", "add", "web.a", "b")
    assert done.exit_code == 1
    assert "slackwater.sample.web.a.b is the subject of another node too" in done.output


def test_the_private_broker_has_the_limits_of_the_ansible_role(site: ControllerSettings) -> None:
    template = ROOT / "ansible/roles/slackwater_broker/templates/nats.conf.j2"
    of_role = set(re.findall(r"^(max_\w+|write_deadline|ping_interval):", template.read_text(), re.MULTILINE))
    text = (site.bus_folder / "nats.conf").read_text()
    assert of_role == set(LIMITS) | {"max_connections"}
    assert of_role <= set(re.findall(r"^(\w+):", text, re.MULTILINE))
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(host_and_port(site.bus.listen)))
        log = nats_server.log_file(site)
        eventually("more than parts and nodes have", lambda: "maximum connections exceeded" in log.read_text(), 60.0)
