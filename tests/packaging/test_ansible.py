"""The rollout without hosts: its linters, its modules, and what it says as other parts of the code do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from slackwater.core.bus import config as bus_config
from slackwater.core.config import parse
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from tests.support.ansible_files import ANSIBLE, COLLECTION, accepted_systems, installed_collection, module, rendered
from tests.support.nats_identities import USER, Identity
from tests.support.paths import ROOT
from tools.systems import DEBIAN_12, MACHINES, SYSTEMS, System

GIVEN = {
    "socket": "/run/haproxy/admin.sock",
    "group": "haproxy",
    "user": "haproxy",
    "listen": "",
    "allow": [],
    "backends": ["web"],
    "weight": 100,
}
CFG = """global
\tchroot /var/lib/haproxy
\tstats socket /run/haproxy/admin.sock mode 660 level admin

backend web
\tserver web1 10.0.0.1:80 check
"""


def edited(text: str, **given: object) -> tuple[str, list[str]]:
    lines, reasons, _ = module("haproxy").wanted(text.splitlines(keepends=True), {**GIVEN, **given})
    return "".join(lines), reasons


def test_only_what_haproxy_s_file_lacks_is_added_and_taken_away_again_byte_for_byte() -> None:
    after, reasons = edited(CFG)
    assert after == CFG.replace("backend web\n", "backend web\n\tdefault-server weight 100  # added by Slackwater\n")
    assert len(reasons) == 1
    assert edited(after)[0] == after, "a second time nothing changes"
    lines = module("haproxy").without_ours(after.splitlines(keepends=True))
    assert "".join(lines) == CFG


def test_servers_that_have_weights_keep_theirs() -> None:
    own = CFG.replace("check", "check weight 30")
    assert edited(own) == (own, [])


def test_a_missing_socket_is_added_and_one_of_a_lower_level_is_refused() -> None:
    wrong = module("haproxy")
    none = re.sub(r"\tstats socket.*\n", "", CFG)
    assert "\tstats socket /run/haproxy/admin.sock mode 660 group haproxy level admin" in edited(none)[0]
    for level in ("level operator", "level user", ""):
        lower = CFG.replace("level admin", level)
        with pytest.raises(Exception, match="only `level admin` lets weights be set") as caught:
            wrong.wanted(lower.splitlines(keepends=True), GIVEN)
        assert type(caught.value).__name__ == "Wrong"
    with pytest.raises(Exception, match="no backend `shop`; the file has: web"):
        wrong.wanted(CFG.splitlines(keepends=True), {**GIVEN, "backends": ["shop"]})


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_haproxy_accepts_the_way_for_other_controllers(tmp_path: Path) -> None:
    local = CFG.replace("/var/lib/haproxy", str(tmp_path)).replace("/run/haproxy", str(tmp_path))
    local += "defaults\n\tmode http\n\ttimeout client 1s\n\ttimeout server 1s\n\ttimeout connect 1s\n"
    user = "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")
    given = {"socket": f"{tmp_path}/admin.sock", "listen": "127.0.0.1:14299", "allow": ["10.0.0.1", "10.0.0.2"]}
    after, _ = edited(local, **given, user=user)
    assert "tcp-request connection reject unless { src 10.0.0.1 10.0.0.2 }" in after
    file = tmp_path / "haproxy.cfg"
    file.write_text(after)
    done = subprocess.run(["haproxy", "-c", "-q", "-f", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "".join(module("haproxy").without_ours(after.splitlines(keepends=True))) == local


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_node_s_key_is_one_that_nats_knows() -> None:
    identity = module("identity")
    seed = identity.new_nkey()
    assert seed.startswith(b"SU")
    public = identity.public_nkey(seed)
    known = Identity.new(USER)
    assert identity.public_nkey(known.seed.encode()) == known.public
    assert public.startswith("U")
    assert len(public) == 56


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_fits_its_key_its_authority_and_its_addresses(tmp_path: Path) -> None:
    identity, authority = module("identity"), module("authority")
    certificate, key = authority.authority("Test", 100)
    private = identity.openssl(*identity.EC_KEY).stdout
    addresses = ["10.0.0.1", "lb1"]
    file = tmp_path / "certificate.pem"
    given = {
        "name": "lb1",
        "certificate": str(file),
        "authority": certificate,
        "addresses": addresses,
        "valid_days": 30,
    }
    assert not identity.certificate_fits(given, private), "it isn't there yet"
    request = identity.request(given, private)
    file.write_text(authority.sign(request, "lb1", addresses, certificate, key, 90))
    assert identity.certificate_fits(given, private)
    assert not identity.certificate_fits({**given, "addresses": ["10.0.0.9"]}, private)
    assert not identity.certificate_fits({**given, "valid_days": 91}, private)
    assert not identity.certificate_fits({**given, "authority": authority.authority("Other", 100)[0]}, private)
    assert not identity.certificate_fits(given, identity.openssl(*identity.EC_KEY).stdout)


def permissions(text: str) -> set[str]:
    """What follows `permissions:`, without spaces, quotes around keys, and an `allow` that a list alone also means."""
    blocks = re.findall(r'permissions"?:\s*(\{(?:[^{}]|\{[^{}]*\})*\})', text)
    plain = (re.sub(r'"(\w+)":', r"\1:", re.sub(r"\s", "", block)) for block in blocks)
    return {re.sub(r"\{allow:(\[[^\]]*\])\}", r"\1", block) for block in plain}


def test_the_broker_s_permissions_are_those_of_the_command() -> None:
    nodes = [bus_config.ListedNode("web", name) for name in ("web1", "second")]
    command = bus_config.config_text(nodes, dict.fromkeys(bus_config.users(nodes), "x"), "127.0.0.1:4222", None)
    facts = {"slackwater_node_monitor_nkey": "U1", "slackwater_node_wsengine_nkey": "U2"}
    role = rendered(
        "slackwater_broker",
        "users.conf.j2",
        groups={"nodes": ["web1", "web2"]},
        slackwater_nodes_group="nodes",
        hostvars={"web1": facts, "web2": {**facts, "slackwater_node_name": "second"}},
        slackwater_pool="web",
        slackwater_vault={"controller_password": "x"},
    )
    assert permissions(role) == permissions(command)
    assert len(permissions(role)) == 6


def controller(**values: Any) -> str:
    given: dict[str, Any] = {
        "slackwater_pool": "web",
        "slackwater_mode": "observe",
        "slackwater_balancer": "haproxy",
        "slackwater_backend": "web",
        "slackwater_socket": "/run/haproxy/admin.sock",
        "slackwater_shared": False,
        "slackwater_admin_port": 14299,
        "slackwater_balancers_group": "balancers",
        "slackwater_nodes_group": "nodes",
        "groups": {"balancers": ["lb1", "lb2"], "nodes": ["web1", "web2"]},
        "hostvars": {
            "lb1": {"slackwater_base_address": "10.0.0.1"},
            "lb2": {"slackwater_base_address": "10.0.0.2"},
            "web1": {},
            "web2": {
                "slackwater_node_name": "w2",
                "slackwater_node_zone": "eu-1a",
                "slackwater_node_machine_type": "m5.large",
            },
        },
        "slackwater_controller_law": "optimal",
        "slackwater_controller_max_mitigated": 0.5,
        "slackwater_controller_service": "",
        "slackwater_controller_servers": {},
        "slackwater_controller_settings": {},
        "slackwater_controller_bus_url": "tls://10.0.0.1:14222",
        "slackwater_controller_web_listen": "127.0.0.1:8099",
    }
    return rendered("slackwater_controller", "controller.toml.j2", **{**given, **values})


def test_the_controller_s_settings_are_what_the_controller_reads() -> None:
    alone = parse(controller(slackwater_controller_settings={"detector": {"calm_dwell_s": 5.0}}), "alone").pool[0]
    assert isinstance(alone, HAProxyPool)
    assert (alone.mode, alone.all_sockets) == ("observe", ["/run/haproxy/admin.sock"])
    shared = parse(controller(slackwater_shared=True, slackwater_mode="act"), "shared").pool[0]
    assert isinstance(shared, HAProxyPool)
    assert shared.all_sockets == ["tcp://10.0.0.1:14299", "tcp://10.0.0.2:14299"]
    lvs = controller(
        slackwater_balancer="lvs",
        slackwater_controller_service="-t 10.0.0.9:80",
        slackwater_controller_servers={"10.0.0.1:80": "web1"},
    )
    assert parse(lvs, "lvs").pool[0].servers == {"10.0.0.1:80": "web1"}


def test_the_controller_is_told_the_zones_and_machine_types_of_the_nodes() -> None:
    pool = parse(controller(), "labelled").pool[0]
    assert (pool.zones, pool.machine_types) == ({"w2": "eu-1a"}, {"w2": "m5.large"})
    assert parse(controller(hostvars={"web1": {}, "web2": {}}), "bare").pool[0].zones == {}


CHOOSE = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: slackwater.slackwater.slackwater_base, tasks_from: find_package.yml}
    - ansible.builtin.debug: {msg: "chosen: {{ slackwater_base_debs | map('basename') | join(' ') }}"}
"""


def chosen(
    installed: dict[str, str], folder: Path, package: str, system: System, kernel: str, version: str = ""
) -> str:
    """Looks for a package in a folder as the role does for a host of a system, whose kernel names this architecture;
    what Ansible printed, on one line."""
    book = folder / "book.yml"
    book.write_text(CHOOSE)
    name, number = system.title.split()
    facts = {"distribution_version": number, "distribution_major_version": number.partition(".")[0]}
    given = {
        "ansible_facts": {"architecture": kernel, "distribution": name, **facts},
        "slackwater_base_package": package,
        "slackwater_packages_dir": str(folder),
        "slackwater_version": version,
    }
    command = ["ansible-playbook", "-i", "host,", "-c", "local", "-e", json.dumps(given), str(book)]
    done = subprocess.run(command, env=installed, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.timeout(900)  # three starts of Ansible
def test_a_host_gets_the_package_of_its_own_architecture(installed: dict[str, str], tmp_path: Path) -> None:
    files = {kernel: f"slackwater-node_1.0.0-1_{name}.deb" for name, kernel in MACHINES.items()}
    for name in files.values():
        (tmp_path / name).touch()
    for kernel, name in files.items():
        assert f'"chosen: {name}"' in chosen(installed, tmp_path, "slackwater-node", DEBIAN_12, kernel)
    (tmp_path / files["aarch64"]).unlink()
    expected = (
        f"expected one slackwater-node_VERSION_arm64.deb in {tmp_path} for Debian 12, arm64; found 0; "
        "`make deb DEB_RELEASE=bookworm DEB_ARCH=arm64` makes it"
    )
    assert expected in chosen(installed, tmp_path, "slackwater-node", DEBIAN_12, "aarch64")


@pytest.mark.timeout(900)  # four starts of Ansible
@pytest.mark.parametrize("system", SYSTEMS.values(), ids=list(SYSTEMS))
def test_of_several_packages_in_a_folder_a_host_gets_the_one_for_its_system(
    system: System, installed: dict[str, str], tmp_path: Path
) -> None:
    def package(version: str = "") -> str:
        return chosen(installed, tmp_path, "slackwater-controller", system, "x86_64", version)

    name = f"slackwater-controller_1.0.0-1{system.suffix}_amd64.deb"
    for other in SYSTEMS.values():
        for architecture in MACHINES:
            (tmp_path / f"slackwater-controller_1.0.0-1{other.suffix}_{architecture}.deb").touch()
    assert f'"chosen: {name}"' in package()
    (tmp_path / name.replace("-1", "-2")).touch()
    expected = (
        f"expected one slackwater-controller_VERSION{system.suffix}_amd64.deb in {tmp_path} for {system.title}, amd64;"
    )
    assert f"{expected} found 2" in package()
    assert f'"chosen: {name}"' in package("1.0.0-1")
    (tmp_path / name).unlink()
    assert f"found 0; `make deb DEB_RELEASE={system.release} DEB_ARCH=amd64` makes it" in package("1.0.0-1")


def lint(environment: dict[str, str], program: str, *words: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    done = subprocess.run(
        [program, *words], cwd=ANSIBLE, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Ansible finds the collection, built and installed."""
    if shutil.which("ansible-galaxy") is None:
        pytest.skip("needs ansible-galaxy")
    return installed_collection(tmp_path_factory.mktemp("collection"))


def test_yamllint_finds_nothing() -> None:
    lint(dict(os.environ), "yamllint", "-s", "-c", ".yamllint.yml", ".")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ansible_lint_finds_nothing_with_its_production_profile(installed: dict[str, str]) -> None:
    lint(installed, "ansible-lint", "-q", "-c", ".ansible-lint.yml", "--nocolor", "--offline")


@pytest.mark.parametrize("inventory", ["three-nodes", "two-balancers", "lvs"])
def test_an_example_inventory_has_all_groups(inventory: str, tmp_path: Path) -> None:
    if shutil.which("ansible-inventory") is None:
        pytest.skip("needs ansible-inventory")
    done = subprocess.run(
        ["ansible-inventory", "-i", str(ANSIBLE / "inventories" / inventory / "hosts.yml"), "--list"],
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = json.loads(done.stdout)
    for group in ("brokers", "controllers", "balancers", "nodes"):
        assert listed[f"slackwater_{group}"]["hosts"]
    assert len(listed["slackwater_nodes"]["hosts"]) == 3


PLAYBOOKS = sorted(file.stem for file in (ANSIBLE / "playbooks").glob("*.yml"))
ROLES = sorted((ANSIBLE / "roles").iterdir())


@pytest.mark.parametrize(
    ("inventory", "playbook"),
    [*(("three-nodes", name) for name in PLAYBOOKS), ("two-balancers", "site"), ("lvs", "site")],
)
def test_ansible_reads_each_installed_playbook_and_example_inventory(
    installed: dict[str, str], inventory: str, playbook: str
) -> None:
    file = ANSIBLE / "inventories" / inventory / "hosts.yml"
    done = subprocess.run(
        ["ansible-playbook", "--syntax-check", "-i", str(file), f"{COLLECTION}.{playbook}"],
        env=installed,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    assert installed["ANSIBLE_COLLECTIONS_PATH"] in done.stdout, "not the playbook of the collection"


@pytest.mark.parametrize("kind", ["role", "module"])
def test_ansible_s_own_documentation_has_each_role_and_module(installed: dict[str, str], kind: str) -> None:
    files = ROLES if kind == "role" else (ANSIBLE / "plugins/modules").glob("*.py")
    names = {file.stem for file in files}
    words = ["ansible-doc", "--json", "-t", kind, *(f"{COLLECTION}.{name}" for name in names)]
    done = subprocess.run(words, env=installed, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert {name.rpartition(".")[2] for name in json.loads(done.stdout)} == names


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_variable_of_a_role_is_described_and_has_a_default(role: Path) -> None:
    spec = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert list(spec["options"]) == list(yaml.safe_load((role / "defaults/main.yml").read_text()))
    page = (role / "README.md").read_text()
    assert not [name for name in spec["options"] if f"| `{name}` |" not in page]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_no_path_leaves_its_role(role: Path) -> None:
    files = [file for file in role.rglob("*") if file.is_file()]
    assert len(files) > 4
    assert not [file for file in files if ".." in re.split(r"[/\s'\"]", file.read_text())]


@pytest.mark.parametrize("inventory", ["three-nodes", "two-balancers", "lvs"])
def test_the_variables_of_an_example_inventory_are_ones_that_the_roles_declare(inventory: str) -> None:
    specs = [yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"] for role in ROLES]
    declared = {name for spec in specs for name in spec["main"]["options"]}
    text = (ANSIBLE / "inventories" / inventory / "hosts.yml").read_text()
    used = set(re.findall(r"(?m)^ {4}([a-z_]+):", text.split("children:")[0]))
    assert used
    assert used <= declared


def test_the_roles_accept_the_systems_that_there_are_packages_for() -> None:
    ours = {
        system.title: {"release": system.release, "suffix": system.suffix, "python": system.interpreter.name}
        for system in SYSTEMS.values()
    }
    assert {title: {name: facts[name] for name in ours[title]} for title, facts in accepted_systems().items()} == ours


def test_wsengine_s_unit_lets_it_write_for_the_php_fpm_of_each_system() -> None:
    unit = (ROOT / "packaging/node/slackwater-wsengine.service").read_text()
    versions = [facts["php"] for facts in accepted_systems().values()]
    assert sorted(re.findall(r"-/etc/php/([\d.]+)/fpm/pool\.d", unit)) == sorted(versions)
    (after,) = re.findall(r"(?m)^After=(.*)$", unit)
    assert {f"php{version}-fpm.service" for version in versions} <= set(after.split())
