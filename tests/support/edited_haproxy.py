"""A haproxy.cfg that the Ansible module edits, run as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.ansible_files import ANSIBLE
from tests.support.paths import ROOT
from tests.support.real_haproxy import haproxy_program

LINE = "\tdefault-server weight 100  # added by Slackwater\n"
PROXIES = "defaults\n mode http\n timeout connect 2s\n timeout client 2s\n timeout server 2s\n"


def edit(folder: Path, **given: Any) -> dict[str, Any]:
    """What the module answers, run as Ansible runs it."""
    arguments = {
        "path": str(folder / "haproxy.cfg"),
        "socket": str(folder / "admin.sock"),
        "group": "root",
        "user": "root",
        "backends": ["web"],
        "command": str(haproxy_program("haproxy")),
    }
    done = subprocess.run(
        [sys.executable, str(ANSIBLE / "plugins/modules/haproxy.py")],
        cwd=ROOT,
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments | given}),
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def written(folder: Path, servers: str, more: str = "") -> Path:
    """A configuration with backend `web` in a folder of its own."""
    file = folder / "haproxy.cfg"
    file.write_text(
        f"global\n stats socket {folder}/admin.sock mode 600 level admin\n{PROXIES}{more}"
        f"frontend in\n bind unix@{folder}/in.sock\n default_backend web\nbackend web\n balance roundrobin\n{servers}"
    )
    return file
