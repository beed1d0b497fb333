"""`slackwater monitors` where the web servers are other machines: a certificate that the bus works with. And the login
that `init` names."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import cli
from slackwater.controller.haproxy_init.bus_address import own_address
from slackwater.core.bus import nats_server
from slackwater.core.bus.authority import CERTIFICATE_DAYS, AuthorityError, AuthorityFiles, ensure
from slackwater.core.bus.bus import Bus
from slackwater.core.config import load
from slackwater.web.users import Users
from tests.support.nats_process import as_node
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.real_processes import free_address

NOW = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)
LOGIN = "slackwater web user add NAME --role operator"


class Here:
    """A folder with a configuration to be, and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "etc" / "controller.toml"
        self.state = folder / "state"
        self.files = AuthorityFiles(folder / "etc")

    def init(self, balancer: RealHAProxy, *arguments: str) -> Result:
        where = ("--config", str(self.config), "--state-dir", str(self.state), "--socket", balancer.socket)
        done = CliRunner().invoke(cli, ["init", *where, *arguments])
        assert done.exit_code == 0, done.output
        return done

    def monitors(self, listen: str, *arguments: str) -> Result:
        done = CliRunner().invoke(cli, ["monitors", "--config", str(self.config), "--listen", listen, *arguments])
        assert done.exit_code == 0, done.output
        return done


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("listen", ["2001:db8::5:14222", "192.0.2.1", "192.0.2.1:99999", "tls://192.0.2.1:14222"])
def test_an_address_that_will_not_do_is_refused_at_its_option(tmp_path: Path, listen: str) -> None:
    words = ["monitors", "--config", str(tmp_path / "controller.toml"), "--listen", listen]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    expected = "expected HOST:PORT, as in 10.0.0.5:14222 or [2001:db8::5]:14222"
    assert f"Invalid value for '--listen': {expected}, got '{listen}'" in done.output


@needs_haproxy
def test_where_there_is_no_certificate_it_makes_one_and_says_so(here: Here, balancer: RealHAProxy) -> None:
    here.init(balancer)
    lines = here.monitors("192.0.2.1:14222").output.splitlines()
    files = here.files
    until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=CERTIFICATE_DAYS)).date()
    assert (
        f"made {files.certificate}: a certificate of {files.authority} for 192.0.2.1, valid until {until};"
        " `slackwater monitors` signs the next one in its last month"
    ) in lines
    assert f"made {files.authority_key}, which signs it: keep it, and let nobody read it" in lines
    assert stat.S_IMODE(files.authority_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.key.stat().st_mode) & 0o007 == 0
    bus = load(here.config).bus
    assert (bus.tls_cert, bus.tls_key, bus.tls_ca) == tuple(map(str, (files.certificate, files.key, files.authority)))
    assert sum(f"< {files.authority}" in line for line in lines) == 3, "each web server is given the authority"
    checked = ["openssl", "verify", "-CAfile", str(files.authority), "-verify_ip", "192.0.2.1", str(files.certificate)]
    assert subprocess.run(checked, capture_output=True, text=True).stdout == f"{files.certificate}: OK\n"


@needs_haproxy
def test_a_node_logs_in_over_tls_with_what_was_made(here: Here, balancer: RealHAProxy) -> None:
    port = free_address().rpartition(":")[2]
    AuthorityFiles(here.config.parent)
    here.init(balancer)
    here.monitors(f"127.0.0.1:{port}")
    ensure(here.files, "127.0.0.1", write, datetime.datetime.now(datetime.UTC))
    text = here.config.read_text().replace("[bus]\n", "[bus]\n" + "".join(
        f'{key} = "{path}"\n' for key, path in
        (("tls_cert", here.files.certificate), ("tls_key", here.files.key), ("tls_ca", here.files.authority))
    ))  # fmt: skip
    here.config.write_text(text)
    settings = load(here.config)

    async def main() -> None:
        bus = await Bus.connect(as_node(settings, "host1"), "test")
        await bus.close()

    process = subprocess.Popen(nats_server.command(settings))
    try:
        nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings))
        asyncio.run(main())
    finally:
        process.terminate()
        process.wait()


@needs_haproxy
def test_a_second_run_keeps_what_fits_and_a_dry_run_makes_nothing(here: Here, balancer: RealHAProxy) -> None:
    here.init(balancer, "--dry-run")
    assert not here.config.parent.exists()
    here.init(balancer)
    here.monitors("192.0.2.1:14222", "--dry-run")
    assert [path.name for path in here.config.parent.iterdir()] == ["controller.toml"]
    here.monitors("192.0.2.1:14222")
    before = {path.name: path.read_bytes() for path in here.config.parent.iterdir()}
    for again in (here.monitors("192.0.2.1:14222"), here.monitors("")):
        assert ", was there\n" in again.output
    assert {path.name: path.read_bytes() for path in here.config.parent.iterdir()} == before
    here.config.write_text(here.config.read_text().replace("192.0.2.1", "192.0.2.2"))
    other = here.monitors("192.0.2.2:14222")
    assert f"made {here.files.certificate}" in other.output
    after = {path.name: path.read_bytes() for path in here.config.parent.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"bus.pem", "bus.key", "controller.toml"}


@needs_haproxy
def test_it_says_that_the_buttons_need_a_login_until_somebody_has_one(here: Here, balancer: RealHAProxy) -> None:
    done = here.init(balancer)
    line = f"  {LOGIN} --config {here.config}   # the dashboard's buttons, such as pause, need a login"
    assert line in done.output.splitlines()
    Users(here.state).add_user("anna", "operator", "a long password")
    done = here.init(balancer, "--force", "--json")
    assert json.loads(done.stdout)["login"] == []


def test_what_is_there_is_kept_while_it_fits(tmp_path: Path) -> None:
    files = AuthorityFiles(tmp_path)
    made, until = ensure(files, "lb1.example.org", write, NOW)
    assert set(made) == {files.certificate, files.key, files.authority, files.authority_key}
    assert until - NOW == datetime.timedelta(days=CERTIFICATE_DAYS)
    assert ensure(files, "lb1.example.org", write, NOW) == ([], until)
    soon = until - datetime.timedelta(days=29)
    assert ensure(files, "lb1.example.org", write, soon)[0] == [files.certificate, files.key], "it is about to end"
    files.certificate.write_text("no certificate")
    assert ensure(files, "lb1.example.org", write, soon)[0] == [files.certificate, files.key]
    files.authority_key.unlink()
    with pytest.raises(AuthorityError, match=rf"{files.authority} is there without {files.authority_key}"):
        ensure(files, "lb1.example.org", write, NOW)
    write(files.authority_key, files.key.read_text(), 0o600)
    with pytest.raises(AuthorityError, match="not the key of"):
        ensure(files, "lb1.example.org", write, NOW)


def test_the_own_address_is_the_one_that_leads_there() -> None:
    assert own_address(["127.0.0.1"]) == "127.0.0.1"
    assert own_address(["web1.invalid", "127.0.0.1"]) == "127.0.0.1"
    assert own_address(["web1.invalid"]) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of another user")
def test_a_login_that_root_adds_can_be_read_by_the_controllers_user() -> None:
    with tempfile.TemporaryDirectory(prefix="slackwater-logins-") as name:  # pytest's own are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        os.chown(folder, 65534, 65534)
        users = Users(folder)
        users.add_user("anna", "operator", "a long password")
        assert (users.path.stat().st_uid, stat.S_IMODE(users.path.stat().st_mode)) == (65534, 0o600)
        users.path.with_suffix(".lock").unlink()
        (folder / "others").write_text("")
        users.path.with_suffix(".lock").symlink_to(folder / "others")
        with pytest.raises(Exception, match="cannot be written"):
            users.add_user("bert", "operator", "a long password")
        assert (folder / "others").stat().st_uid == 0, "root follows nobody's link"
