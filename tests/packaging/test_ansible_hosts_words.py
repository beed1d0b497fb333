"""A managed host whose root is somebody else answers what it likes: nothing of it becomes another host's settings."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509

from slackwater.core.bus import config as bus_config
from slackwater.core.config import ConfigError
from slackwater.core.messages import MAX_NAME, NAME_PATTERN
from tests.support.ansible_files import ANSIBLE, installed_collection, module, rendered
from tests.support.nats_identities import ACCOUNT, USER, Identity

ROLES = ANSIBLE / "roles"


def filters() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hosts_words", ANSIBLE / "plugins/filter/hosts_words.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def key(kind: int = USER) -> str:
    return Identity.new(kind).public


def host(**more: Any) -> dict[str, Any]:
    return {"slackwater_node_monitor_nkey": key(), "slackwater_node_wsengine_nkey": key(), "ansible_facts": {}} | more


def wrong(hostvars: dict[str, dict[str, Any]], **options: Any) -> list[str]:
    sentences: list[str] = filters().wrong_nodes(list(hostvars), hostvars, "web", **options)
    return sentences


def test_honest_nodes_are_let_in() -> None:
    assert wrong({"web1": host(), "web2": host(slackwater_node_name="second", slackwater_pool="api")}) == []


ONE = key()
INJECTED = '{}, permissions: {{ publish: ">", subscribe: ">" }} }}\n    {{ nkey: {}'


@pytest.mark.parametrize(
    "text",
    [
        INJECTED.format(key(), key()),
        f"{key()}\n",
        f" {key()}",
        key().lower(),
        key()[:-1],
        f"{'UA' if ONE[1] != 'A' else 'UB'}{ONE[2:]}",
        key(ACCOUNT),
        Identity.new(USER).seed,
        "",
        "ü" * 56,
        None,
        ["U"],
    ],
    ids=["rights", "line", "space", "case", "short", "checksum", "account", "seed", "empty", "letters", "none", "list"],
)
def test_what_has_not_the_form_of_a_public_key_is_refused(text: object) -> None:
    for part in ("monitor", "wsengine"):
        (sentence,) = wrong({"web1": host(), "web2": host(**{f"slackwater_node_{part}_nkey": text})})
        assert re.match(rf"web2: its {part}'s public key .* is no public key of a NATS user$", sentence)


def test_a_dry_run_before_the_first_has_no_keys_yet() -> None:
    none = host(slackwater_node_monitor_nkey="", slackwater_node_wsengine_nkey="")
    assert wrong({"web1": none, "web2": none}, before_first_run=True) == []
    assert len(wrong({"web1": none}, before_first_run=False)) == 2


def test_two_nodes_never_share_a_key() -> None:
    """nats-server would take the rights of one of them for both."""
    first = host()
    for part in ("monitor", "wsengine"):
        theirs = host(slackwater_node_monitor_nkey=first[f"slackwater_node_{part}_nkey"])
        assert wrong({"web1": first, "web2": theirs}) == [
            f"web2's monitor has the public key of web1's {part}: each has a key of its own"
        ]
    own = first | {"slackwater_node_wsengine_nkey": first["slackwater_node_monitor_nkey"]}
    assert wrong({"web1": own}) == ["web1's wsengine has the public key of web1's monitor: each has a key of its own"]


def test_a_host_that_was_not_asked_is_named() -> None:
    (sentence,) = wrong({"web1": host(), "web2": {"ansible_facts": {}}})
    assert "the public keys of web2 are not known: run the playbook without --limit" in sentence


@pytest.mark.parametrize("name", [">", "*", "a.>", "a b", "a\n", 'a"', "wsengine:a", "a..b", "x" * 129, ""])
def test_a_name_that_is_more_than_one_is_refused_as_the_command_refuses_it(name: str) -> None:
    for variable in ("slackwater_node_name", "slackwater_pool"):
        assert any("is no name of letters" in sentence for sentence in wrong({"web1": host(**{variable: name})}))
    if len(name) <= MAX_NAME and name == name.strip():
        with pytest.raises(ConfigError):
            bus_config.read_nodes(f"web {name}", "nodes")


def test_names_are_those_of_the_rest_of_slackwater() -> None:
    assert filters().NAME.pattern == NAME_PATTERN
    assert filters().MOST_LETTERS == MAX_NAME
    assert filters().OF_WSENGINE == bus_config.WSENGINE


def test_names_and_subjects_are_of_one_node_each() -> None:
    assert wrong({"web1": host(), "other": host(slackwater_node_name="web1")}) == [
        "other and web1 have the same name web1",
        "other and web1 have the same subject web.web1",
    ]
    crossed = {"b.c": host(slackwater_pool="a"), "c": host(slackwater_pool="a.b")}
    assert wrong(crossed) == ["c and b.c have the same subject a.b.c"]


@pytest.mark.parametrize("name", ["slackwater_node_name", "slackwater_pool", "ansible_slackwater_pool"])
def test_a_host_cannot_name_itself_by_a_fact(name: str) -> None:
    lie = host(slackwater_node_name="web1", ansible_facts={name: "web1"})
    assert any(
        f"web2 sent the facts '{name}', which only the inventory may set" in sentence
        for sentence in wrong({"web2": lie})
    )
    assert filters().wrong_facts(["web2"], {"web2": {"ansible_facts": {"distribution": "Debian"}}}) == []


# --- the files


USERS = {"controller_password": "c", "control_password": "d"}


def users_conf(**nodes: dict[str, Any]) -> str:
    return rendered(
        "slackwater_broker",
        "users.conf.j2",
        groups={"nodes": list(nodes)},
        slackwater_nodes_group="nodes",
        hostvars=nodes,
        slackwater_pool="web",
        slackwater_vault=USERS,
    )


def accepts(text: str, folder: Path) -> bool:
    (folder / "nats.conf").write_text(f'listen: "127.0.0.1:-1"\n{text}')
    return subprocess.run(["nats-server", "-t", "-c", str(folder / "nats.conf")], capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="needs nats-server")
def test_a_key_with_rights_behind_it_is_no_rights_in_the_brokers_file(tmp_path: Path) -> None:
    assert accepts(users_conf(web1=host(), web2=host()), tmp_path)
    lie = host(slackwater_node_monitor_nkey=INJECTED.format(key(), key()))
    assert not accepts(users_conf(web1=lie, web2=host()), tmp_path), "it is a text, and no key"


def test_an_address_of_another_host_adds_nothing_to_a_file() -> None:
    text = rendered(
        "slackwater_broker",
        "nats.conf.j2",
        groups={"brokers": ["a", "b"], "nodes": []},
        slackwater_brokers_group="brokers",
        slackwater_nodes_group="nodes",
        inventory_hostname="a",
        hostvars={"b": {"slackwater_base_address": '10.0.0.1" ]\n}\naccounts {'}},
        slackwater_broker_listen="10.0.0.2",
        slackwater_broker_port=14222,
        slackwater_broker_cluster_port=14248,
        slackwater_vault={"cluster_password": "x"},
    )
    assert not re.search("(?m)^accounts", text)
    (pattern,) = re.findall(
        r"slackwater_address is match\('(.*)'\)", (ROLES / "slackwater_base/tasks/main.yml").read_text()
    )
    assert [address for address in ("10.0.0.1", "fd00::1", "lb-1.example") if not re.match(pattern, address)] == []
    assert [text for text in ("10.0.0.1\n", "a b", 'a"', "-a", "", "a}") if re.match(pattern, text)] == []
    haproxy = module("haproxy")
    given = {"socket": "/s", "group": "g", "user": "u", "listen": "10.0.0.1:1", "backends": [], "weight": 100}
    lines = ["global\n", "\tstats socket /s level admin\n"]
    assert haproxy.wanted(lines, {**given, "allow": ["10.0.0.2"]})
    for odd in ({"allow": ["10.0.0.2 }\nfrontend x\n"]}, {"allow": ["a"], "listen": "10.0.0.1:1 user root"}):
        with pytest.raises(haproxy.Wrong, match="is no host name or IP address"):
            haproxy.wanted(lines, {**given, **odd})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_of_a_request_for_a_certificate_only_the_key_counts() -> None:
    identity, authority = module("identity"), module("authority")
    certificate, signs = authority.authority("Test", 100)
    private = identity.openssl(*identity.EC_KEY).stdout
    request = identity.request({"name": "slackwater-controller"}, private)
    made = x509.load_pem_x509_certificate(authority.sign(request, "lb1", ["lb1"], certificate, signs, 90).encode())
    assert made.subject.rfc4514_string() == "CN=lb1"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a key of root's")
@pytest.mark.parametrize("kind", ["nkey", "tls"])
def test_a_key_does_not_leave_its_host(kind: str, tmp_path: Path) -> None:
    """What the module answers is public; the key is in its file alone."""
    given: dict[str, Any] = {"kind": kind, "path": str(tmp_path / "key"), "_ansible_remote_tmp": str(tmp_path)}
    given |= {"name": "web1", "addresses": ["web1"], "certificate": str(tmp_path / "none")} if kind == "tls" else {}
    asked = json.dumps({"ANSIBLE_MODULE_ARGS": given})
    program = [sys.executable, str(ANSIBLE / "plugins/modules/identity.py")]
    done = subprocess.run(program, input=asked, capture_output=True, text=True)
    answered = json.loads(done.stdout)
    assert answered["changed"]
    secret = (tmp_path / "key").read_text()
    assert not any(line in done.stdout + done.stderr for line in secret.split("\n") if line and "-----" not in line)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o640


UNQUOTED = {
    ("slackwater_broker/templates/nats.conf.j2", "16 + 8 * groups[slackwater_nodes_group] | length"),
    ("slackwater_broker/templates/nats.conf.j2", "1024 + 2 * groups[slackwater_nodes_group] | length"),
    ("slackwater_broker/templates/nats.conf.j2", "[8388608, 65536 * groups[slackwater_nodes_group] | length] | max"),
    ("slackwater_broker/templates/users.conf.j2", "made"),
    ("slackwater_broker/templates/users.conf.j2", "answers"),
    ("slackwater_controller/templates/controller.toml.j2", "slackwater_controller_max_mitigated"),
    ("slackwater_controller/templates/controller.toml.j2", "setting"),
    ("slackwater_controller/templates/site.conf.j2", "slackwater_controller_groups | join(' ')"),
    *(
        (f"slackwater_{role}/templates/{file}.toml.j2", name)
        for role, file in (("controller", "controller"), ("node", "node"), ("node", "wsengine"))
        for name in ("section", "key")
    ),
}
"""Numbers, words of ours, and names of settings from the inventory."""


def test_templates_quote_every_value() -> None:
    unquoted = set()
    for file in ROLES.rglob("*.j2"):
        for expression in re.findall(r"{{ (.*?) }}", file.read_text()):
            if not expression.endswith("| to_json") and not expression.startswith('", "'):
                unquoted.add((str(file.relative_to(ROLES)), expression))
    assert unquoted == UNQUOTED


OTHERS = re.compile(r"hostvars\[|map\('extract', hostvars\)")
LOOKED_AT = re.compile(r"slackwater\.slackwater\.wrong_(facts|nodes)|nodes\.yml|own_facts\.yml")


def test_what_other_hosts_said_is_looked_at_before_it_is_used() -> None:
    """Each file of tasks that takes another host's variables, itself or by a template, looks at its facts first."""
    templates = {file.name for file in ROLES.rglob("*.j2") if OTHERS.search(file.read_text())}
    assert templates == {"nats.conf.j2", "users.conf.j2", "controller.toml.j2"}
    seen = set()
    for file in ROLES.glob("*/tasks/*.yml"):
        text = file.read_text()
        uses = [start for start in (text.find(f"src: {name}") for name in templates) if start >= 0]
        uses += [match.start() for match in OTHERS.finditer(text)]
        if uses:
            looked_at = LOOKED_AT.search(text)
            assert looked_at, file
            assert looked_at.start() < min(uses), file
            seen.add(f"{file.parent.parent.name}/{file.name}")
    assert seen >= {"slackwater_broker/setup.yml", "slackwater_controller/setup.yml", "slackwater_balancer/main.yml"}


def test_files_of_ansible_s_machine_are_named_by_the_inventory() -> None:
    ours = re.compile("slackwater_vault_file|slackwater_packages_dir")
    tasks = {file: file.read_text() for file in ROLES.glob("*/tasks/*.yml") if ours.search(file.read_text())}
    assert len(tasks) == 4
    for file, text in tasks.items():
        assert re.search(r"(own_facts|vault)\.yml", text.partition("- name: ")[2].partition("\n- name:")[0]), file


BOOK = """
- hosts: slackwater_nodes
  gather_facts: false
  tasks:
    - lies: {facts: "{{ facts }}"}
    - ansible.builtin.set_fact:
        slackwater_node_monitor_nkey: "{{ keys[0] }}"
        slackwater_node_wsengine_nkey: "{{ keys[1] }}"
- hosts: slackwater_brokers
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: "web1 is called {{ hostvars.web1.slackwater_node_name }}"}
    - ansible.builtin.include_role: {name: slackwater.slackwater.slackwater_broker, tasks_from: nodes.yml}
    - ansible.builtin.debug: {msg: let in}
"""
LIES = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"facts": {"type": "dict"}})
module.exit_json(ansible_facts=module.params["facts"])
"""


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook")
@pytest.mark.timeout(900)  # two starts of Ansible
def test_ansible_itself_lets_no_host_take_another_s_name(tmp_path: Path) -> None:
    """As an installation without our ansible.cfg has it: facts are variables there, and count for more."""
    environment = installed_collection(tmp_path) | {"ANSIBLE_LIBRARY": str(tmp_path)}
    environment |= {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_INJECT_FACT_VARS": "1"}
    (tmp_path / "ansible.cfg").touch()
    (tmp_path / "lies.py").write_text(LIES)
    (tmp_path / "book.yml").write_text(BOOK)
    hosts = "".join(f"[slackwater_{group}]\nlb1\n" for group in ("brokers", "balancers", "controllers"))
    hosts += "[slackwater_nodes]\nweb1 slackwater_node_name=first\n[all:vars]\nansible_connection=local\n"
    hosts += "slackwater_address=10.0.0.1\nslackwater_base_looked=1\n"
    (tmp_path / "hosts").write_text(hosts)

    def play(**facts: str) -> str:
        given = json.dumps({"facts": facts, "keys": [key(), key()]})
        command = ["ansible-playbook", "-i", str(tmp_path / "hosts"), "-e", given, str(tmp_path / "book.yml")]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return " ".join((done.stdout + done.stderr).split())

    honest = play(kernel="Linux")
    assert "web1 is called first" in honest
    assert "let in" in honest
    lie = play(slackwater_node_name="web2")
    assert "web1 is called web2" in lie, "so Ansible has it"
    assert "web1 sent the facts 'slackwater_node_name', which only the inventory may set" in lie
    assert "let in" not in lie
