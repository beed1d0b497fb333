"""What a managed host may not say: names and settings are the inventory's, and a key has a key's form.

A host whose root is somebody else answers each task with what it likes. Its address and its public keys are the only
words of it that go into another host's files. Where Ansible takes facts for variables, facts count for more than the
inventory: one with the name of a variable of ours would take its place.
"""

from __future__ import annotations

import re

try:
    from ansible_collections.slackwater.slackwater.plugins.module_utils.nkeys import is_public_user_key
except ImportError:  # started from the source tree
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
    from nkeys import is_public_user_key

OURS = re.compile(r"(ansible_)?slackwater_")
"""Names of the collection's variables; Ansible takes `ansible_` off a fact's name."""
NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9_:-]*(\.[A-Za-z0-9_:-]+)*$(?!\n)")
"""Names of pools and nodes, as everywhere in Slackwater: safe in NATS subjects."""
MOST_LETTERS = 128
OF_WSENGINE = "wsengine:"
"""Names that begin so belong to wsengines."""
KEYS = {"monitor": "slackwater_node_monitor_nkey", "wsengine": "slackwater_node_wsengine_nkey"}


def wrong_facts(hosts, hostvars) -> list[str]:
    """Hosts that answered with facts of our variables' names, in words."""
    sentences = []
    for host in hosts:
        facts = hostvars[host].get("ansible_facts") or {}
        if named := sorted(_shown(name) for name in facts if OURS.match(str(name))):
            sentences.append(
                f"{host} sent the facts {', '.join(named)}, which only the inventory may set: somebody else may be root"
                " there"
            )
    return sentences


def wrong_nodes(hosts, hostvars, pool, *, before_first_run: bool = False) -> list[str]:
    """What is wrong with the names and public keys of the nodes, in words: each name, subject and key is of one node.

    `pool`: of a node whose inventory names none. `before_first_run`: in a dry run a key that is not made yet is empty.
    """
    sentences = wrong_facts(hosts, hostvars)
    keys, names, places = {}, {}, {}

    def only_once(known: dict, kind: str, value: str, host: str) -> None:
        if known.setdefault(value, host) != host:
            sentences.append(f"{host} and {known[value]} have the same {kind} {value}")

    for host in hosts:
        variables = hostvars[host]
        node, own_pool = str(variables.get("slackwater_node_name", host)), str(variables.get("slackwater_pool", pool))
        for kind, name in (("name", node), ("pool", own_pool)):
            if not NAME.search(name) or len(name) > MOST_LETTERS or name.startswith(OF_WSENGINE):
                sentences.append(
                    f"{host}: its {kind} {_shown(name)} is no name of letters, digits, `_`, `-`, `:` and `.` of at most"
                    f" {MOST_LETTERS} letters that does not begin with {OF_WSENGINE}"
                )
        only_once(names, "name", node, host)
        only_once(places, "subject", f"{own_pool}.{node}", host)
        for part, variable in KEYS.items():
            if variable not in variables:
                sentences.append(
                    f"the public keys of {host} are not known: run the playbook without --limit, or with {host} in it"
                )
                break
            key = variables[variable]
            if before_first_run and not key:
                continue
            if not is_public_user_key(key):
                sentences.append(f"{host}: its {part}'s public key {_shown(key)} is no public key of a NATS user")
            elif keys.setdefault(key, (host, part)) != (host, part):
                other, its = keys[key]
                sentences.append(f"{host}'s {part} has the public key of {other}'s {its}: each has a key of its own")
    return sentences


def _shown(text: object) -> str:
    """The beginning of somebody else's text, printable."""
    return repr(str(text)[:60])


class FilterModule:
    """The filters, by name."""

    def filters(self) -> dict:
        return {"wrong_facts": wrong_facts, "wrong_nodes": wrong_nodes}
