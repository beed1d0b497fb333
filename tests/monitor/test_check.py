"""`check` of the node's programs logs in at a real nats-server, and says what the server answered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.bus import nats_server
from slackwater.core.bus.config import WSENGINE, ListedNode, Tls, config_text, users
from tests.support.certificates import IN_TIME_S, certificates
from tests.support.real_processes import free_address
from tests.support.real_wsengine import wait_for

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("nats-server", "openssl", "slackwater-monitor"))), reason="make setup was not run"
)
NODES = [ListedNode("web", "web1")]


class Site:
    """A nats-server with TLS and the node web1 of pool web."""

    def __init__(self, folder: Path, *, tls: bool = True) -> None:
        self.folder, self.listen = folder, free_address()
        self.passwords = {user: f"word-of-{user}" for user in users(NODES)}
        with_tls = Tls(folder / "server.pem", folder / "server.key") if tls else None
        (folder / "nats.conf").write_text(config_text(NODES, self.passwords, self.listen, with_tls))
        log = folder / "nats.log"
        command = ["nats-server", "-c", str(folder / "nats.conf"), "-l", str(log)]
        self.process = subprocess.Popen(command)
        nats_server.wait_until_it_answers(self.listen, log)

    def settings(self, login: str, /, **changed: str) -> Path:
        """The settings of a node, or of its wsengine, with these values instead of the right ones."""
        word = self.folder / f"{login}.password"
        word.write_text(changed.pop("password", self.passwords[login]) + "\n")
        word.chmod(0o600)
        node = changed.pop("node", "web1")
        bus = {
            "url": f"tls://{self.listen}",
            "user": login,
            "password_file": str(word),
            "tls_ca": str(self.folder / "ca.pem"),
            **changed,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in bus.items() if value]
        file = self.folder / "node.toml"
        file.write_text("\n".join([f'node = "{node}"', "[bus]", *lines, ""]))
        return file


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    certificates(tmp_path)
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.process.terminate()
        site.process.wait(IN_TIME_S)


def item_of(part: str, file: Path) -> dict[str, Any]:
    command = ["slackwater-monitor", "check", "--json", "--config", str(file), "--no-collector.traffic"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S, check=False)
    return next(item for item in json.loads(done.stdout) if item["what"] == part)


def bus_of(file: Path) -> dict[str, Any]:
    return item_of("bus", file)


def test_it_logs_in_over_tls_as_the_monitor_does(site: Site) -> None:
    bus = bus_of(site.settings("web1"))
    assert bus["works"], bus
    expected = f"{site.listen}: logged in as web1 over TLS; node and pool are those that the server knows"
    assert bus["detail"] == expected


def test_each_answer_of_the_server_has_its_remedy(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificates(other)
    for changed, detail, remedy in (
        ({"password": "wrong"}, "refuses user web1 with the password in", "wrong password or unknown user"),
        ({"node": "web9"}, "does not permit what node web9 of pool web does", "`slackwater bus node add POOL NODE`"),
        ({"tls_ca": str(other / "ca.pem")}, "no TLS with a certificate of", "bus.tls_ca must be the authority"),
        ({"tls_ca": ""}, "this machine knows no authority", "name it in bus.tls_ca"),
        ({"user": "", "password_file": ""}, "wants a login, and the settings have none", "slackwater bus node add web"),
        ({"url": f"tls://{free_address()}"}, "cannot be reached: Connection refused", "start nats-server"),
    ):
        bus = bus_of(site.settings("web1", **changed))
        assert not bus["works"]
        assert bus["needed"]
        assert detail in bus["detail"], bus
        assert remedy in bus["remedy"], bus
        assert "word-of" not in json.dumps(bus)


def test_a_server_without_tls_gets_no_password(tmp_path: Path) -> None:
    certificates(tmp_path)
    site = Site(tmp_path, tls=False)
    try:
        assert "offers no TLS, and the settings demand it" in bus_of(site.settings("web1"))["detail"]
        plain = bus_of(site.settings("web1", url=f"nats://{site.listen}", tls_ca=""))
        assert plain["detail"].endswith("logged in as web1 without TLS; node and pool are those that the server knows")
    finally:
        site.process.terminate()
        site.process.wait(IN_TIME_S)


def test_wsengine_logs_in_too(site: Site) -> None:
    user = WSENGINE + "web1"
    for changed, expected in (
        ({}, f"fine  bus: {site.listen}: logged in as {user} over TLS"),
        ({"password": "wrong"}, f"away  bus: {site.listen} refuses user {user}"),
        ({"node": "web9"}, "does not permit what node web9 of pool web does"),
    ):
        file = site.settings(user, **changed)
        file.write_text(f'state_dir = "{site.folder}/state"\n' + file.read_text())
        command = ["slackwater-wsengine", "check", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S, check=False)
        assert expected in done.stdout, done


def test_it_says_whether_a_monitor_runs_and_publishes(site: Site) -> None:
    file = site.settings("web1")
    file.write_text(file.read_text() + f'[metrics]\nlisten = "{free_address()}"\n')
    absent = item_of("monitor", file)
    assert absent["detail"].startswith("none runs here that reads these settings: ")
    assert absent["remedy"].startswith("systemctl enable --now slackwater-monitor; ")
    command = ["slackwater-monitor", "run", "--config", str(file), "--no-collector.traffic"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as monitor:
        try:
            wait_for(lambda: item_of("monitor", file)["works"], "a monitor that publishes")
            assert item_of("monitor", file)["detail"].startswith("runs: ")
        finally:
            monitor.terminate()


@pytest.mark.lab
def test_the_usual_file_is_read_without_being_named(site: Site) -> None:
    if os.geteuid():
        pytest.skip("mounts")
    file = site.settings("web1")
    script = (
        f"cd {site.folder} && cp -a /etc etc && mkdir -p etc/slackwater && mount --bind etc /etc && "
        f"cp {file} /etc/slackwater/node.toml && slackwater-monitor check --no-collector.traffic"
    )
    done = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True, timeout=IN_TIME_S)
    assert "ok       settings      /etc/slackwater/node.toml: node web1, pool web\n" in done.stdout, done
    assert "logged in as web1 over TLS" in done.stdout
