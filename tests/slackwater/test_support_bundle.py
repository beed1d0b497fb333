"""`slackwater support-bundle`: what is in it, what never is, and how large it may be."""

from __future__ import annotations

import base64
import json
import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers)
from slackwater.controller.cli.main import cli
from slackwater.controller.support import contents
from slackwater.controller.support.scrub import REMOVED, SECRET_KEY, Scrubber
from slackwater.core.config import describe, load
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change
from slackwater.web import create_app
from slackwater.web.http_server import HttpServer
from slackwater.web.users import Users
from tests.support.real_processes import free_port
from tests.support.web_story import T0, Clock, story

MARKER = "Mark3rThatNobodyMaySee"
NKEY_SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
JWT = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.eyJqdGkiOiJBQkNERUZHSCJ9.c2lnbmF0dXJlLW9mLWl0"
BCRYPT = "$2a$11$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"
TOKEN = "swt_0123456789abcdefghijklmnopqrstuvwxyz"
PLAIN = {
    "pool.name", "pool.balancer", "pool.mode", "pool.law", "pool.backend", "pool.socket", "pool.sockets",
    "pool.weight_delivery", "pool.servers", "pool.service", "pool.scheduler", "pool.group", "pool.config",
    "pool.zones", "pool.machine_types", "pool.causes_off", "balancer_view.mode", "balancer_view.sniffer",
    "state_dir", "bus.url", "bus.listen", "bus.tls_cert", "bus.user", "bus.control_user", "bus.tls_ca",
    "detector.model", "lbengine.hooks", "retune.mode", "retune.policy", "retune.knowledge", "retune.calm_frequency",
    "retune.leave_alone", "governor.mode", "governor.policy", "governor.knobs", "governor.curve", "web.listen",
    "web.read_without_login", "web.hosts", "web.proxy_user_header", "web.proxies", "replace.command", "replace.states",
    "web.proxy_operators", "web.grafana_url", "otlp.endpoint", "otlp.headers_file", "otlp.tls_ca",
}  # fmt: skip
"""Settings with texts that are no secrets. Those that are URLs lose user and password."""
NUMBERS = {"governor.clocks_mhz", "governor.quota_shares"}
"""Lists of numbers."""


def private_key() -> str:
    made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.decode()


class Site:
    """A controller's folder and configuration, with a secret wherever there may be one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.config = folder / "controller.toml"
        self.key = private_key()
        passwords = self.state / "bus" / "passwords"
        passwords.mkdir(parents=True)
        for name in ("control", "web1", "wsengine.web1"):
            (passwords / f"{name}.password").write_text(f"{MARKER}-bus-{name}\n")
        for name in ("own", "control"):
            (folder / f"{name}.password").write_text(f"{MARKER}-{name}\n")
        (folder / "order.pem").write_text(self.key)
        (self.state / "bus" / "nats.conf").write_text(f"password: {MARKER}-conf\n")
        self.web_port = free_port()
        self.write()
        users = Users(self.state)
        users.add_user("anna", "operator", f"{MARKER}-login")
        self.token = users.add_token("grafana", "viewer")
        self.hashes = [
            *(user.password_hash for user in users.all()[0]),
            *(token.sha256 for token in users.all()[1]),
        ]

    def write(self, more: str = "", order_key: str = "order.pem") -> None:
        folder = self.folder
        self.config.write_text(
            f"# the old password was {MARKER}-comment\n"
            f'state_dir = "{self.state}"\n'
            f'[bus]\nurl = "nats://bus:{MARKER}-url@127.0.0.1:1"\n'
            f'user = "controller"\npassword_file = "{folder}/own.password"\n'
            f'control_user = "people"\ncontrol_password_file = "{folder}/control.password"\n'
            f'[retune]\nmode = "act"\norder_key = "{folder}/{order_key}"\n'
            f'[web]\nlisten = "127.0.0.1:{self.web_port}"\n'
            f'grafana_url = "https://anna:{MARKER}-grafana@grafana.example.org/d/1"\n'
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n{more}'
        )

    def record(self, *more: Change) -> None:
        with Journal.open(journal_path(self.state), clock=Clock()) as journal:
            journal.record(*story(), *more)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def bundle(site: Site, *words: str) -> Result:
    """Runs the command; the archive is `bundle.tar.gz` in the site's folder."""
    out = ["--out", str(site.folder / "bundle.tar.gz")]
    return CliRunner().invoke(cli, ["support-bundle", "--config", str(site.config), *out, *words])


def opened(path: Path) -> dict[str, str]:
    """Name -> text of all files in the archive, which are regular ones of the one folder, for the owner alone."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(member.isreg() and member.mode == 0o600 for member in members)
        assert len({member.name.partition("/")[0] for member in members}) == 1
        texts = {}
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name.partition("/")[2]] = file.read().decode()
    return texts


def made(site: Site, *words: str) -> dict[str, str]:
    done = bundle(site, *words)
    assert done.exit_code == 0, done.output
    return opened(site.folder / "bundle.tar.gz")


def test_it_has_versions_settings_state_and_rows_of_the_journal(site: Site) -> None:
    site.record()
    (site.state / "serve.json").write_text('{"pid": 7}')
    files = made(site)
    assert files["versions.txt"].startswith("slackwater ")
    settings = json.loads(files["settings.json"])
    assert settings["in_force"]["retune"]["mode"] == "act"
    assert settings["in_force"]["lbengine"]["cycle_s"] == 0.2, "defaults too"
    assert settings["given"][str(site.config)]["pool"][0]["backend"] == "web"
    assert json.loads(files["state/serve.json"]) == {"pid": 7}
    assert "web-users.json" in files["state/listing.txt"]
    assert json.loads(files["journal/changes.jsonl"])["id"] == "c1"
    assert json.loads(files["journal/web-episodes.jsonl"])["node"] == "web1"
    latest = json.loads(files["journal/web-latest.json"])
    assert set(latest["samples"]) == set(latest["verdicts"]) == {"web1", "web2"}
    assert latest["cycle"]["sentence"] == "web: web1 100 -> 0"
    series = json.loads(files["journal/web-series.json"])
    assert any(value is not None for value in series["nodes"]["web1"]["rps"])
    for name in files.keys() - {"README.txt", "contents.json"}:
        assert f"{name}: " in files["README.txt"], "it says what is in it"


def test_marks_are_in_it_without_their_notes(site: Site) -> None:
    mark = Change(
        1, "k1", "web", T0 - 5, "mark_episode", "web1", None, "deploy", MARKER, "anna", True, since_unix_s=T0 - 42
    )  # fmt: skip
    site.record(mark)
    files = made(site)
    changes = [json.loads(line) for line in files["journal/changes.jsonl"].splitlines()]
    assert [(change["after"], change["why"]) for change in changes if change["what"] == "mark_episode"] == [
        ("deploy", REMOVED)
    ]
    marked = json.loads(files["journal/web-episodes.jsonl"])["marked"]
    assert (marked["mark"], marked["note"], marked["by"]) == ("deploy", REMOVED, "anna")
    assert not any(MARKER in text for text in files.values())


def test_what_cannot_be_had_is_listed_with_its_reason(site: Site) -> None:
    done = bundle(site, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    files = opened(site.folder / "bundle.tar.gz")
    assert "journal.sqlite is not there" in report["left_out"]["journal"]
    assert "does not answer" in report["left_out"]["metrics"]
    assert {file["name"] for file in report["files"]} == files.keys() - {"README.txt", "contents.json"}
    assert json.loads(files["contents.json"])["left_out"] == report["left_out"]
    assert "journal.sqlite is not there" in files["README.txt"]
    assert report["bytes"] == (site.folder / "bundle.tar.gz").stat().st_size


def test_no_secret_is_in_it_wherever_it_stood(site: Site) -> None:
    why = f"token={MARKER}-why; see https://me:{MARKER}-link@example.org"
    site.record(Change(1, "c2", "web", T0, "pause", "web", None, None, why, "anna", True))
    passwords = "\n".join(file.read_text() for file in sorted((site.state / "bus/passwords").iterdir()))
    lines = [
        *(passwords, f"connected as {MARKER}-own", f"also {MARKER}-control", site.key, *site.hashes, site.token),
        *(NKEY_SEED, JWT, BCRYPT, TOKEN, f"Authorization: Bearer {MARKER}-bearer", f'"password": "{MARKER}-json"'),
        f"nats://x:{MARKER}-log@h:1",
    ]
    (site.state / "nats.log").write_text("\n".join(lines))
    (site.state / "paused-web.json").write_text(json.dumps({"by": "anna", "why": f"secret: {MARKER}-paused"}))
    files = made(site)
    whole = "\n".join([*files, *files.values()])
    assert MARKER not in whole
    for secret in (NKEY_SEED, JWT, BCRYPT, TOKEN, site.token, *site.hashes, *site.key.splitlines()):
        assert secret not in whole
    assert "nats.conf" in whole, "its name is no secret"
    assert "connected as [removed]" in files["nats.log"], "the rest of the line is there"
    assert json.loads(files["contents.json"])["secrets_removed"] >= len(lines)
    settings = json.loads(files["settings.json"])["in_force"]
    assert settings["bus"]["password_file"] == f"[removed: a file of {len(MARKER) + 5} bytes, mode 0644]"
    assert "the old password" not in whole, "comments are left out"


def test_each_setting_with_a_text_is_a_secret_or_is_known_to_be_none() -> None:
    """A new setting belongs in `PLAIN`, or has a name that `SECRET_KEY` finds."""
    of_texts = {name for name, default, _ in describe() if default[:1] in ('"', "[", "{", "(")}
    secret = {name for name in of_texts if SECRET_KEY.search(name.rpartition(".")[2])}
    assert secret == {
        "bus.password_file",
        "bus.control_password_file",
        "bus.tls_key",
        "retune.order_key",
        "web.proxy_secret_file",
    }
    assert {name for name in of_texts - secret if name not in PLAIN} <= NUMBERS
    assert not secret & PLAIN


@pytest.mark.parametrize("name", ["password_file", "control_password_file", "tls_key", "order_key", "nkey_file"])
def test_a_secret_that_stands_in_a_setting_itself_is_not_in_it(name: str) -> None:
    """Somebody wrote the password where its file belongs."""
    scrubber = Scrubber()
    shown = scrubber.settings({"bus": {name: f"{MARKER}-value", "user": "me"}})
    assert shown == {"bus": {name: "[removed: no file that can be looked at]", "user": "me"}}
    assert MARKER not in scrubber.text(f"{name}: {MARKER}-value: no such file")


def test_a_configuration_that_is_refused_is_told_without_its_secrets(site: Site) -> None:
    site.write(more=f'pasword = "{MARKER}-slip"\n', order_key=f"{MARKER}-no-such-file")
    files = made(site)
    settings = json.loads(files["settings.json"])
    assert "pasword" in settings["problem"]
    given = settings["given"][str(site.config)]
    assert given["pool"][0]["pasword"] == "[removed: no setting of this name is known]"
    assert given["retune"]["order_key"] == "[removed: no file that can be looked at]"
    assert given["pool"][0]["name"] == "web"
    assert MARKER not in "".join(files.values())
    assert "the settings cannot be used" in json.loads(files["contents.json"])["left_out"]["journal"]


@pytest.mark.parametrize("content", ["no = toml = at all", "\xff"])
def test_a_configuration_that_is_no_toml_is_left_out(site: Site, content: str) -> None:
    site.config.write_bytes(f"{content} {MARKER}".encode("latin-1"))
    files = made(site)
    assert str(site.config) in json.loads(files["contents.json"])["left_out"]
    assert MARKER not in "".join(files.values())


def test_the_archive_stays_below_its_limit_and_keeps_the_newest_lines(site: Site) -> None:
    site.record()
    noise = (base64.b64encode(os.urandom(45)).decode() for _ in range(20_000))
    (site.state / "nats.log").write_text("\n".join([*noise, "the last line"]))
    (site.state / "hooks.json").write_text(json.dumps({"x": os.urandom(400_000).hex()}))
    done = bundle(site, "--max-mb", "0.1", "--json")
    assert done.exit_code == 0, done.output
    path = site.folder / "bundle.tar.gz"
    assert path.stat().st_size <= 100_000
    files = opened(path)
    report = json.loads(done.output)
    cut = {file["name"] for file in report["files"] if file["cut"]}
    assert cut == {"nats.log"}
    assert files["nats.log"].endswith("the last line")
    assert len(files["nats.log"]) > 10_000, "as much as fits"
    assert "do not fit into the limit (--max-mb)" in report["left_out"]["state/hooks.json"]


def test_no_symbolic_link_is_followed_and_no_pipe_waited_for(site: Site) -> None:
    outside = site.folder / "outside"
    outside.mkdir()
    with Journal.open(outside / "journal.sqlite") as journal:
        journal.record(*story(why="what is outside"))
    (outside / "web.json").write_text('"what is outside"')
    (outside / "shadow").write_text("what is outside")
    (site.state / "nats.log").symlink_to(outside / "shadow")
    (site.state / "serve.json").symlink_to(outside / "shadow")
    (site.state / "baseline").symlink_to(outside)
    (site.state / "journal.sqlite").symlink_to(outside / "journal.sqlite")
    os.mkfifo(site.state / "hooks.json")
    files = made(site)
    assert "what is outside" not in "".join(files.values())
    left_out = json.loads(files["contents.json"])["left_out"]
    assert "a symbolic link is not followed" in left_out["journal"]
    assert "symbolic link, which is not followed" in left_out["nats-server's log"]
    assert "symbolic link, which is not followed" in files["state/baseline/web.json"]
    assert "no regular file" in files["state/hooks.json"]


def test_only_its_owner_may_read_it_and_nothing_is_overwritten(site: Site) -> None:
    path = site.folder / "bundle.tar.gz"
    before = os.umask(0)
    try:
        assert bundle(site).exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = bundle(site)
    assert again.exit_code == 1
    assert again.output == f"error: {path}: is there already; name another file with --out\n"
    target = site.folder / "target"
    path.unlink()
    path.symlink_to(target)
    assert bundle(site).exit_code == 1
    assert not target.exists(), "nothing is written through a link"


@pytest.fixture
def dashboard(site: Site) -> Iterator[None]:
    site.record()
    server = HttpServer(create_app(load(site.config), clock=Clock()), "127.0.0.1", site.web_port, lambda: None)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield
    server.end()
    thread.join()


@pytest.mark.usefixtures("dashboard")
def test_metrics_of_a_running_dashboard_are_in_it(site: Site) -> None:
    files = made(site)
    assert "slackwater_server_weight{" in files["metrics.txt"]
    assert json.loads(files["healthz.txt"])["ok"] is True


def test_the_check_is_run_with_this_configuration(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def output(*command: str, **_: Any) -> str:
        ran.append(command)
        return f"bus: password={MARKER}-check\n"

    monkeypatch.setattr(contents, "output", output)
    checks = dict(contents.checks(contents.BundledSite(site.config, None, "", "1 hour ago", has_check=True)))
    assert ran[0][-3:] == ("check", "--config", str(site.config))
    assert Scrubber().text(checks["check.txt"]) == f"bus: password={REMOVED}\n"


def test_the_help_has_an_example() -> None:
    done = CliRunner().invoke(cli, ["support-bundle", "--help"])
    assert "Example: slackwater support-bundle --out /tmp/bundle.tar.gz" in done.output
