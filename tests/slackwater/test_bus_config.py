"""A nats-server of one's own: what `slackwater bus config` writes, on the real server, with TLS."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from nats.aio.msg import Msg

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError, subject_of
from slackwater.core.bus.config import WSENGINE, ListedNode, config_text, read_nodes
from slackwater.core.config import CONTROL, CONTROLLER, BusSettings, ConfigError
from slackwater.core.messages import Change, Knobs, Order, Sample, Weight, encode
from slackwater.orders.signing import Signer
from tests.support.certificates import IN_TIME_S, certificates
from tests.support.real_processes import free_address
from tests.support.real_wsengine import make_keys


class Site:
    """A running server, and what its users need."""

    def __init__(self, folder: Path, listen: str, server: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.server = server
        self.listen = listen
        self.url = f"tls://{listen}"

    def settings(self, user: str) -> BusSettings:
        password = self.folder / f"bus/passwords/{user}.password"
        return BusSettings(self.url, user=user, password_file=str(password), tls_ca=str(self.folder / "ca.pem"))


def write(folder: Path, *options: str) -> Result:
    (folder / "nodes.txt").write_text("# pool node\nweb  web-1.example\nweb  web-2\n\napi  api-1  # the other pool\n")
    command = ["bus", "config", "--nodes", str(folder / "nodes.txt"), "--out", str(folder / "bus"), *options]
    return CliRunner().invoke(cli, command)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there (make setup)")
    certificates(tmp_path)
    listen = free_address()
    tls = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    done = write(tmp_path, "--listen", listen, *tls)
    assert done.exit_code == 0, done.output
    log = tmp_path / "nats.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["nats-server", "-c", str(tmp_path / "bus/nats.conf")], stdout=output, stderr=output
        ) as server,
    ):
        try:
            nats_server.wait_until_it_answers(listen, log)
            yield Site(tmp_path, listen, server)
        finally:
            server.terminate()


def sample(node: str, seq: int = 0) -> Sample:
    return Sample(1, node, "web", 1.0, "boot", seq, 0.2)


def test_a_node_publishes_under_its_own_name_only(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[str]:
        controller = await Bus.connect(site.settings(CONTROLLER), "controller")
        node = await Bus.connect(site.settings("web-2"), "node")
        seen: list[str] = []
        await controller.subscribe("sample", lambda message: seen.append(message.node))
        await controller.flush(IN_TIME_S)
        for name in ("web-1.example", "web-2"):
            await node.publish(sample(name))
        await node.flush(IN_TIME_S)
        async with asyncio.timeout(IN_TIME_S):
            while "web-2" not in seen:
                await asyncio.sleep(0.01)
        for bus in (node, controller):
            await bus.close()
        return seen

    assert asyncio.run(run()) == ["web-2"]
    assert "permissions violation" in caplog.text.lower()
    assert "slackwater.sample.web.web-1.example" in caplog.text.lower()


def weight(node: str) -> Weight:
    return Weight(1, node, "web", 1.0, 50, 3.0)


def test_a_node_hears_its_own_weight_which_the_controller_alone_may_say(site: Site) -> None:
    async def run() -> list[int]:
        controller = await Bus.connect(site.settings(CONTROLLER), "controller")
        node = await Bus.connect(site.settings("web-2"), "node")
        heard: list[int] = []
        for name in ("web-1.example", "web-2"):
            await node._client.subscribe(f"slackwater.weight.web.{name}", cb=_hearing(heard))
        await node.flush(IN_TIME_S)
        await node.publish(msgspec.structs.replace(weight("web-2"), percent=0))
        await node.flush(IN_TIME_S)
        for name in ("web-1.example", "web-2"):
            await controller.publish(msgspec.structs.replace(weight(name), percent=len(name)))
        await controller.flush(IN_TIME_S)
        async with asyncio.timeout(IN_TIME_S):
            while not heard:
                await asyncio.sleep(0.01)
        for bus in (node, controller):
            await bus.close()
        return heard

    assert asyncio.run(run()) == [len("web-2")]


def _hearing(heard: list[int]) -> Callable[[Msg], Awaitable[None]]:
    async def hear(raw: Msg) -> None:
        heard.append(msgspec.json.decode(raw.data)["percent"])

    return hear


def test_without_the_password_or_the_authority_nobody_gets_in(site: Site) -> None:
    password = site.folder / "bus/passwords/web-2.password"
    for settings in (
        BusSettings(site.url, tls_ca=str(site.folder / "ca.pem")),
        BusSettings(site.url, user="web-2", password_file=str(password)),
    ):
        with pytest.raises(BusError, match=f"no NATS at tls://{site.listen}"):
            asyncio.run(Bus.connect(settings, "stranger", wait_s=2.0))
    password.chmod(0o644)
    with pytest.raises(BusError, match=r"web-2\.password can be used by everybody on this machine \(mode 0644\)"):
        asyncio.run(Bus.connect(site.settings("web-2"), "open"))


def test_a_wsengine_hears_orders_of_the_controller_and_of_nobody_else(site: Site) -> None:
    """Also when the Order is rightly signed: a node that has one cannot send it on."""
    program = shutil.which("slackwater-wsengine")
    if program is None:
        pytest.skip("slackwater-wsengine is not built (make setup)")
    private, public = make_keys(site.folder)
    signer = Signer.load(private)
    config = site.folder / "wsengine.toml"
    config.write_text(
        f'node = "web-2"\nstate_dir = "{site.folder}/state"\n[bus]\nurl = "{site.url}"\nuser = "{WSENGINE}web-2"\n'
        f'password_file = "{site.folder}/bus/passwords/{WSENGINE}web-2.password"\ntls_ca = "{site.folder}/ca.pem"\n'
        f'[orders]\npublic_key = "{public}"\n'
    )

    async def run() -> list[Change]:
        seen: list[Change] = []
        knobs: list[Knobs] = []
        controller = await Bus.connect(site.settings(CONTROLLER), "controller")
        node = await Bus.connect(site.settings("web-2"), "node")
        await controller.subscribe("change", seen.append, pool="web")
        await controller.subscribe("knobs", knobs.append, pool="web")
        await controller.flush(IN_TIME_S)
        async with asyncio.timeout(IN_TIME_S):
            # The engine may not listen yet when the first Orders come.
            number = 0
            while not (seen and knobs):
                for bus, by in ((node, "node"), (controller, "controller")):
                    number += 1
                    order = Order(
                        *(1, f"{by}-{number}", "web-2", "web", time.time(), f"{by}.knob", 1, 30.0, "a test", by)
                    )
                    payload = encode(order)
                    await bus._client.publish(subject_of(order), payload, headers=signer.headers(payload))
                    await bus.flush(IN_TIME_S)
                await asyncio.sleep(0.1)
        for bus in (node, controller):
            await bus.close()
        return seen

    with subprocess.Popen([program, "run", "--config", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            seen = asyncio.run(run())
        finally:
            process.terminate()
    assert {change.what for change in seen} == {"controller.knob"}
    assert 'there is no knob "controller.knob"' in seen[0].why


def monitor_says(site: Site, node: str, user: str, until: Callable[[str], bool]) -> str:
    """Runs the real monitor until its log is as wanted; returns the log."""
    monitor = shutil.which("slackwater-monitor")
    if monitor is None:
        pytest.skip("slackwater-monitor is not built (make setup)")
    log, config = site.folder / f"{node}.log", site.folder / f"{node}.toml"
    config.write_text(
        f'node = "{node}"\nperiod_s = 0.05\n[bus]\nurl = "{site.url}"\nuser = "{user}"\n'
        f'password_file = "{site.folder}/bus/passwords/{user}.password"\ntls_ca = "{site.folder}/ca.pem"\n'
        '[sniffer]\ninterface = ""\n[canary]\nenabled = false\n[metrics]\nlisten = ""\n'
    )
    with log.open("wb") as output, subprocess.Popen([monitor, "run", "--config", config], stderr=output) as process:
        try:
            deadline_s = time.monotonic() + IN_TIME_S
            while not until(log.read_text()) and process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.02)
        finally:
            process.terminate()
    return log.read_text()


def test_the_monitor_publishes_as_itself_over_tls_and_says_when_the_server_refuses(site: Site) -> None:
    async def heard() -> Sample:
        controller = await Bus.connect(site.settings(CONTROLLER), "controller")
        received: asyncio.Queue[Sample] = asyncio.Queue()
        await controller.subscribe("sample", received.put_nowait)
        await controller.flush(IN_TIME_S)
        until = asyncio.to_thread(monitor_says, site, "web-2", "web-2", lambda _: not received.empty())
        monitor = asyncio.create_task(until)
        try:
            return await asyncio.wait_for(received.get(), IN_TIME_S)
        finally:
            received.put_nowait(sample("end"))
            await monitor
            await controller.close()

    assert asyncio.run(heard()).node == "web-2"
    refused = 'permissions violation for publish to "slackwater.sample.web.web-1.example"'
    assert refused in monitor_says(site, "web-1.example", "web-2", lambda text: refused in text.lower()).lower()


def test_the_monitor_refuses_a_password_file_that_others_can_read(site: Site) -> None:
    (site.folder / "bus/passwords/web-2.password").chmod(0o604)
    printed = monitor_says(site, "web-2", "web-2", lambda text: "chmod" in text)
    assert "bus.password_file: " in printed
    assert "can be used by everybody on this machine (mode 0604)" in printed


def test_passwords_stay_when_nodes_come_and_files_are_closed_to_others(tmp_path: Path) -> None:
    write(tmp_path)
    passwords = tmp_path / "bus/passwords"
    before = {path.name: path.read_text() for path in passwords.iterdir()}
    nodes = ("web-1.example", "web-2", "api-1")
    users = (CONTROLLER, CONTROL, *nodes, *(WSENGINE + node for node in nodes))
    assert set(before) == {f"{user}.password" for user in users}
    assert len(set(before.values())) == 8
    assert write(tmp_path).exit_code == 0
    assert {path.name: path.read_text() for path in passwords.iterdir()} == before
    for path in (tmp_path / "bus/nats.conf", *passwords.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("web\n", r"nodes:1: expected `POOL NODE`, got 'web'"),
        ("web a\nweb b;c\n", r"nodes:2: 'b;c' is no name"),
        ("web >\n", r"nodes:1: '>' is no name"),
        ("web a\napi a\n", r"nodes:2: the name a is taken"),
        (f"web {CONTROLLER}\n", "is taken"),
        (f"web {WSENGINE}a\n", r"nodes:1: names that begin with wsengine: are those of wsengines"),
        ("# none\n", "expected at least one line"),
    ],
)
def test_a_wrong_list_of_nodes_is_refused_with_its_line(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        read_nodes(text, "nodes")


def test_passwords_in_the_clear_stay_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:4222 is reached from outside: passwords need TLS"):
        config_text([ListedNode("web", "a")], {CONTROLLER: "x", "a": "y", f"{WSENGINE}a": "z"}, "0.0.0.0:4222", None)
    assert write(tmp_path, "--listen", "0.0.0.0:4222").exit_code == 1
    assert not (tmp_path / "bus").exists()


def test_nothing_of_the_library_is_told_on_the_terminal_when_the_bus_ends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-py has asyncio take a stream for a plain one that is over TLS by then."""
    caplog.set_level("DEBUG", "asyncio")

    async def come_and_go() -> None:
        for user in (CONTROL, CONTROLLER):
            bus = await Bus.connect(site.settings(user), user)
            await bus.flush()
            await bus.close()
        bus = await Bus.connect(site.settings(CONTROL), CONTROL)
        site.server.terminate()
        await asyncio.to_thread(site.server.wait)
        await asyncio.sleep(0)
        await bus.close()

    asyncio.run(come_and_go())
    assert not [record for record in caplog.records if "eof_received" in record.getMessage()]
