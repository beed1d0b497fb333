"""Every command in README.md is run as it stands there, in its order: in a copy of the checkout, on a balancer host.

What installs with pip, and what is run of it, takes a minute and is left to `make test-full`. What cannot run here (it
needs hosts, or minutes) has a line in INSTEAD: the test that runs it, and a command that is run here in its place.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slackwater.controller.cli.main import COMMANDS
from slackwater.core.config import load
from tests.support.live_cluster import live_cluster
from tests.support.nats_process import as_node
from tests.support.paths import PROGRAMS, ROOT, copy_of_checkout
from tests.support.real_haproxy import needs_haproxy

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM_NAMES = {"ansible", "cargo", "cp", "make", "pip", "python", "python3", "slackwater", "systemctl"}
"""The first word of each, up to a hyphen."""
RUNS_WITHIN_S = 240.0
INSTALLED, NODE_SETTINGS, VAULT_PASSWORD = "/tmp/slackwater", "/etc/slackwater/node.toml", "~/.slackwater-vault"
"""Places in README.md; the test has them in a folder of its own."""


@dataclass(frozen=True)
class Instead:
    """Why a command is not run here, which test runs it, and what is run here in its place."""

    why: str
    test: str
    command: str


INSTEAD = {
    "make demo": Instead("sets the checkout up, takes minutes", "tests/lab/test_story.py", "make -n demo"),
    "make test": Instead("runs this test", "tests/project/test_run_tests.py", "make -n test"),
    "make deb": Instead("takes minutes", "tests/packaging/test_packages.py", "make -n deb"),
    "make deb DEB_RELEASE=trixie": Instead(
        "takes minutes", "tests/packaging/test_clean_install.py", "make -n deb DEB_RELEASE=trixie"
    ),
    "make deb DEB_RELEASE=noble": Instead(
        "takes minutes", "tests/packaging/test_clean_install.py", "make -n deb DEB_RELEASE=noble"
    ),
    "ansible-playbook -i my-site/hosts.yml slackwater.slackwater.site": Instead(
        "needs hosts",
        "tests/packaging/test_rollout.py",
        "ansible-playbook --syntax-check -i my-site/hosts.yml slackwater.slackwater.site",
    ),
    "apt install ./slackwater-controller_*.deb": Instead(
        "needs the package that `make deb` builds", "tests/packaging/test_clean_install.py", "make -n deb"
    ),
    "slackwater monitors": Instead(
        "needs a configuration that nothing has changed", "tests/lbengine/test_init.py", "slackwater monitors --help"
    ),
    "slackwater status --watch": Instead(
        "goes on until Ctrl-C", "tests/slackwater/test_first_use.py", "slackwater status"
    ),
    "systemctl enable --now slackwater-controller": Instead(
        "needs the controller's unit",
        "tests/packaging/test_clean_install.py",
        "test -e packaging/controller/slackwater-controller.service",
    ),
    "systemctl stop slackwater-controller": Instead(
        "needs the controller's unit",
        "tests/packaging/test_controller_package.py",
        "test -e packaging/controller/slackwater-controller.service",
    ),
    "slackwater web user add NAME --role operator": Instead(
        "asks for a password", "tests/web/test_login.py", "slackwater web user add --help"
    ),
}
STAYS = {f"{INSTALLED}/bin/slackwater try": "again and again until Ctrl-C"}
"""Commands that go on until Ctrl-C -> what they print when they do it."""
FIRST_OF_ITS_KIND = {"slackwater init"}
"""Needs a HAProxy with its socket at the usual place, and no configuration yet."""
PLACEHOLDERS = {"NODE": "host1", "POOL": "web", "FILE": "$SLACKWATER_CONFIG", "LIST": "nodes.txt", "FOLDER": "bus"}


def commands(text: str) -> list[str]:
    """Each command of a page once, in the page's order: lines of `sh` blocks, and words in backquotes that call a
    program. Words from `#` on are a comment."""
    lines: list[str] = []
    for block, span in re.findall(r"(?ms)^```sh\n(.*?)^```$|(?<!`)`([^`\n]+)`(?!`)", text):
        if block:
            lines += [re.sub(r"(^|\s)#.*", "", line).strip() for line in block.splitlines()]
        elif re.split(r"[-\s]", span)[0] in PROGRAM_NAMES and re.search(r"\s", span):
            lines.append(span.strip())
    return list(dict.fromkeys(filter(None, lines)))


COMMANDS_OF_README = commands(README)


@dataclass(frozen=True)
class Desk:
    """Where somebody works who follows README.md: a copy of the checkout, on a balancer host with a controller."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: str, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            [*before, "bash", "-c", command],
            cwd=self.folder,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=RUNS_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.communicate()
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """host1 had a neighbour."""
    folder = copy_of_checkout(tmp_path_factory.mktemp("desk"))
    (folder / "nodes.txt").write_text("web web1\n")
    with live_cluster(tmp_path_factory.mktemp("site")) as cluster:
        cluster.noise("host1")
        cluster.calm()
        node = as_node(load(cluster.config), "host1")
        (folder / "places").mkdir()
        (folder / "places/node.toml").write_text(
            f'node = "host1"\n[bus]\nurl = "{node.url}"\nuser = "host1"\npassword_file = "{node.password_file}"\n'
        )
        environment = os.environ | {
            "SLACKWATER_CONFIG": str(cluster.config),
            "PATH": f"{PROGRAMS}:{ROOT / 'target/release'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ANSIBLE_HOME": str(folder / "ansible-home"),
            "HAPROXY_SOCKET": cluster.balancer.socket,
        }
        yield Desk(folder, environment)


def with_places(command: str, folder: Path) -> str:
    command = re.sub(r"\b[A-Z]+\b", lambda match: PLACEHOLDERS.get(match[0], match[0]), command)
    for place in (INSTALLED, NODE_SETTINGS, VAULT_PASSWORD):
        command = command.replace(place, str(folder / "places" / Path(place).name))
    return command


def has_package_index(desk: Desk) -> bool:
    asked = f"{sys.executable} -m pip download -q --no-deps --dest index setuptools"
    return desk.run(asked).returncode == 0


def until_ctrl_c(desk: Desk, command: str, last: str) -> tuple[int, str]:
    """Runs a command that stays, and sends Ctrl-C after `last`; its status and what it printed."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=desk.folder, env=desk.environment | {"PYTHONPATH": ""},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        while last not in printed and (line := process.stdout.readline()):
            printed += line
        process.send_signal(signal.SIGINT)
        printed += process.communicate(timeout=RUNS_WITHIN_S)[0]
    finally:
        process.kill()
        process.wait()
    return process.returncode, printed


def beside_a_new_haproxy(desk: Desk, command: str) -> subprocess.CompletedProcess[str]:
    """With folders of its own in place of the machine's: a socket at the usual place, and nothing of Slackwater."""
    own = "for one in /run /var/lib; do mount -t tmpfs none $one; done; mkdir -p /run/haproxy; "
    own += "ln -s $HAPROXY_SOCKET /run/haproxy/admin.sock; "
    may = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if desk.run("true", may).returncode != 0:
        pytest.skip("needs a mount namespace")
    return desk.run(own + command, may, SLACKWATER_CONFIG=str(desk.folder / "first.toml"))


@needs_haproxy
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[pytest.mark.slow] if INSTALLED in command else []) for command in COMMANDS_OF_README],
)
def test_a_command_of_the_readme_does_what_it_should(desk: Desk, command: str) -> None:
    instead = INSTEAD.get(command)
    runs = with_places(instead.command if instead else command, desk.folder)
    if "pip install" in command and not has_package_index(desk):
        pytest.skip("no index of Python packages is reached")
    if command.startswith("slackwater-monitor check") and os.geteuid() != 0:
        pytest.skip("all is there for the monitor only where it may capture: needs root")
    if command in STAYS:
        if not (desk.folder / "places/slackwater/bin/slackwater").exists():
            pytest.skip("Slackwater was not installed: no index of Python packages is reached")
        status, printed = until_ctrl_c(desk, runs, STAYS[command])
        assert status == 0, printed
        assert STAYS[command] in printed
        return
    done = beside_a_new_haproxy(desk, runs) if command in FIRST_OF_ITS_KIND else desk.run(runs)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lines_for_ansible_bring_what_the_first_run_asks_for(tmp_path: Path) -> None:
    """The playbook needs hosts; the step of it that asks for a password runs on Ansible's machine."""
    (block,) = [
        candidate for candidate in re.findall(r"(?ms)^```sh\n(.*?)^```$", README) if "ansible-playbook" in candidate
    ]
    lines = [line for line in block.splitlines() if not line.startswith(("make ", "ansible-playbook "))]
    play = """- hosts: localhost
  gather_facts: false
  vars: {slackwater_pool: web}
  tasks:
    - ansible.builtin.include_role: {name: slackwater.slackwater.slackwater_base, tasks_from: make_vault.yml}
"""
    shutil.copytree(ROOT / "ansible", tmp_path / "ansible")
    (tmp_path / "first.yml").write_text(play)
    lines.append("ansible-playbook -i my-site/hosts.yml -e slackwater_vault_file=$PWD/my-site/vault.yml first.yml")
    environment = os.environ | {
        "HOME": str(tmp_path),
        "ANSIBLE_HOME": str(tmp_path / "ansible-home"),
        "PATH": f"{PROGRAMS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("ANSIBLE_VAULT_PASSWORD_FILE", None)

    def run(script: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", "\n".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=RUNS_WITHIN_S,
        )  # fmt: skip

    without = run([line for line in lines if "slackwater-vault" not in line])
    assert "name the file with ansible-vault's password" in without.stdout, without.stdout + without.stderr
    shutil.rmtree(tmp_path / "my-site")
    done = run(lines)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "my-site/vault.yml").read_text().startswith("$ANSIBLE_VAULT;")
    assert (tmp_path / ".slackwater-vault").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("page", ["README.md", "ansible/README.md", "docs/operations/install.md"])
def test_pages_that_install_with_ansible_name_the_password_s_file(page: str) -> None:
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"))
    first_runs = [block for block in blocks if re.search(r"ansible-playbook .*\.site\b(?!.*--check)", block)]
    assert first_runs
    assert all("export ANSIBLE_VAULT_PASSWORD_FILE=" in block for block in first_runs)


def test_what_is_not_run_stands_in_the_readme_and_has_its_test() -> None:
    assert len(COMMANDS_OF_README) > 20
    assert INSTEAD.keys() | STAYS.keys() | FIRST_OF_ITS_KIND <= set(COMMANDS_OF_README)
    assert not [instead.test for instead in INSTEAD.values() if not (ROOT / instead.test).is_file()]


def test_no_command_of_the_readme_leaves_out_its_program() -> None:
    spans = [span.split() for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", README)]
    assert not [span for span in spans if len(span) > 1 and span[0] in COMMANDS]


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    page = "```sh\ncp a b  # copies\n\n# nothing\n```\nUse `slackwater log` or `slackwater-monitor check`, not `a b`.\n"
    assert commands(page) == ["cp a b", "slackwater log", "slackwater-monitor check"]
