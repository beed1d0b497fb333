"""How the monitor says who it is: NKeys, credentials files and client certificates, on a real nats-server."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.bus import nats_server
from tests.support.certificates import IN_TIME_S, certificates
from tests.support.nats_identities import ACCOUNT, OPERATOR, USER, Identity, credentials
from tests.support.real_processes import free_address

ASKS = "slackwater.ask.web.web-2"
"""Where its monitor listens."""
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("nats-server", "openssl", "slackwater-monitor"))), reason="make setup was not run"
)


def client_certificate(folder: Path) -> None:
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san.txt"]
    for command in (
        ["req", *new_key, "-subj", "/CN=web-2", "-keyout", "node.key", "-out", "node.csr"],
        ["x509", "-req", "-in", "node.csr", *signed, "-out", "node.pem"],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    (folder / "node.key").chmod(0o600)


def by_nkey(folder: Path) -> tuple[str, str]:
    """What the server and the monitor are told."""
    user = Identity.new(USER)
    (folder / "seed").write_text(user.seed + "\n")
    (folder / "seed").chmod(0o600)
    rights = '{ publish: "slackwater.sample.web.web-2", subscribe: "' + ASKS + '" }'
    return f"authorization {{ users: [{{ nkey: {user.public}, permissions: {rights} }}] }}", 'nkey_file = "{}/seed"'


def by_credentials(folder: Path) -> tuple[str, str]:
    operator, account, user = Identity.new(OPERATOR), Identity.new(ACCOUNT), Identity.new(USER)
    everything = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    of_account = operator.signs(account, "site", {"limits": everything, "type": "account", "version": 2})
    rights = {
        "pub": {"allow": ["slackwater.sample.web.web-2"]},
        "sub": {"allow": [ASKS]},
        "subs": -1,
        "data": -1,
    }
    of_user = account.signs(user, "web-2", {**rights, "payload": -1, "type": "user", "version": 2})
    (folder / "node.creds").write_text(credentials(of_user, user))
    (folder / "node.creds").chmod(0o600)
    (folder / "operator.jwt").write_text(operator.signs(operator, "site", {"type": "operator", "version": 2}))
    server = f"operator: {folder}/operator.jwt\nresolver: MEMORY\n"
    return server + f"resolver_preload: {{ {account.public}: {of_account} }}", 'credentials = "{}/node.creds"'


def connections(status: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{status}/connz?auth=1", timeout=5) as answer:
        return list(json.load(answer)["connections"])


def has_sent(seen: list[dict[str, Any]]) -> bool:
    return bool(seen) and seen[0]["in_msgs"] > 2


@pytest.mark.parametrize("identity", [by_nkey, by_credentials])
def test_the_monitor_comes_in_with_its_key_and_its_certificate(tmp_path: Path, identity: Any) -> None:
    certificates(tmp_path)
    client_certificate(tmp_path)
    users, access = identity(tmp_path)
    listen, status = free_address(), free_address()
    tls = f"tls {{ cert_file: {tmp_path}/server.pem, key_file: {tmp_path}/server.key, ca_file: {tmp_path}/ca.pem"
    (tmp_path / "nats.conf").write_text(f"listen: {listen}\nhttp: {status}\n{users}\n{tls}, verify: true }}\n")
    config = tmp_path / "node.toml"
    config.write_text(
        f'node = "web-2"\nperiod_s = 0.05\n[pace]\nby_event = false\n[bus]\nurl = "tls://{listen}"\n'
        f"{access.format(tmp_path)}\n"
        f'tls_ca = "{tmp_path}/ca.pem"\ntls_cert = "{tmp_path}/node.pem"\ntls_key = "{tmp_path}/node.key"\n'
        '[sniffer]\ninterface = ""\n[canary]\nenabled = false\n[metrics]\nlisten = ""\n'
    )
    log = tmp_path / "nats.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(["nats-server", "-c", tmp_path / "nats.conf"], stdout=output, stderr=output) as server,
    ):
        try:
            nats_server.wait_until_it_answers(listen, log)
            with subprocess.Popen(["slackwater-monitor", "run", "--config", config], stderr=output) as monitor:
                try:
                    deadline_s = time.monotonic() + IN_TIME_S
                    seen: list[dict[str, Any]] = []
                    while not has_sent(seen) and monitor.poll() is None and time.monotonic() < deadline_s:
                        time.sleep(0.05)
                        with contextlib.suppress(OSError):  # the server may take longer than usual
                            seen = connections(status)
                finally:
                    monitor.terminate()
        finally:
            server.terminate()
    assert seen, log.read_text()
    assert (seen[0]["name"], seen[0]["tls_cipher_suite"] != "") == ("slackwater-monitor web-2", True)
    assert seen[0]["in_msgs"] > 2, log.read_text()
    assert "ermissions" not in log.read_text()
