"""Ansible against the test hosts: an inventory, playbooks, and what they said; and requests while they run."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.ansible_files import COLLECTION, installed_collection
from tests.support.rollout_hosts import Hosts

PLAYBOOK_WITHIN_S = 1700.0


@dataclass
class Said:
    """A playbook's end."""

    status: int
    text: str

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """Host -> counts, of the last table."""
        lines = self.text.rpartition("PLAY RECAP")[2].splitlines()[1:]
        rows = [line.split(":", 1) for line in lines if ": ok=" in line or "ok=" in line]
        return {
            host.strip(): {key: int(value) for key, value in (word.split("=") for word in counts.split())}
            for host, counts in rows
        }

    @property
    def changed(self) -> int:
        return sum(counts["changed"] for counts in self.recap.values())

    @property
    def end(self) -> str:
        return self.text[-3000:]


@dataclass
class Site:
    """Hosts with their inventory."""

    hosts: Hosts
    groups: dict[str, list[str]]
    packages: Path
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        place = self.hosts.folder / "inventory"
        place.mkdir(exist_ok=True)
        return place

    @property
    def vault(self) -> Path:
        return self.folder / "slackwater-vault.yml"

    def write_inventory(self) -> Path:
        everyone = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.hosts.key),
            "ansible_ssh_common_args": " ".join(f"-o {option}" for option in self.hosts.ssh_options()),
            "slackwater_packages_dir": str(self.packages),
            **self.variables,
        }
        addresses = {name: {"ansible_host": host.address} for name, host in self.hosts.hosts.items()}
        groups = {
            f"slackwater_{group}": {"hosts": {name: addresses[name] for name in names}}
            for group, names in self.groups.items()
        }
        file = self.folder / "hosts.json"
        file.write_text(json.dumps({"all": {"vars": everyone, "children": groups}}))
        return file

    @property
    def _password(self) -> Path:
        password = self.hosts.folder / "vault-password"
        password.write_text("test\n")
        password.chmod(0o600)
        return password

    @cached_property
    def _environment(self) -> dict[str, str]:
        return installed_collection(self.hosts.folder) | {"ANSIBLE_VAULT_PASSWORD_FILE": str(self._password)}

    def secrets(self) -> str:
        """What is encrypted in the vault's file."""
        command = ["ansible-vault", "view", str(self.vault)]
        shown = subprocess.run(
            command, env=self._environment | {"PAGER": "cat"}, capture_output=True, text=True, check=True
        )
        return shown.stdout

    def play(self, playbook: str, *options: str) -> Said:
        """Runs a playbook of the collection to its end."""
        done = subprocess.run(
            ["ansible-playbook", "-i", str(self.write_inventory()), f"{COLLECTION}.{playbook}", *options],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PLAYBOOK_WITHIN_S,
        )
        return Said(done.returncode, done.stdout)


class Requests:
    """Users of the site: some threads that ask for a page, one request after the other, until the block ends."""

    THREADS = 2
    EVERY_S = 0.02

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/index.php"
        self.sent = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(self.THREADS)]

    def __enter__(self) -> Requests:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self) -> None:
        while not self._stop.wait(self.EVERY_S):
            try:
                with urllib.request.urlopen(self.url, timeout=30) as answer:
                    fault = "" if answer.status == 200 and answer.read() else f"status {answer.status}"
            except (urllib.error.URLError, OSError) as error:
                fault = str(error)
            with self._lock:
                self.sent += 1
                if fault:
                    self.failures.append(fault)
