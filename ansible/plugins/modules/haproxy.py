#!/usr/bin/python
"""What lbengine needs in a site's own haproxy.cfg: an admin socket, and room below each server's weight.

The file stays the site's. Whole lines are added, each marked, and taken away again by their mark. The servers' shares
are worked out before and after; an edit that would change them is not made.
"""

from __future__ import annotations

DOCUMENTATION = """
module: haproxy
short_description: Add to haproxy.cfg what Slackwater needs, or take it away
description:
  - A line is added only where the file does not already say the same, and HAProxy checks the result before it counts,
    together with the other files that it runs with.
  - No edit changes a server's share of its backend. A backend where one would is left as it is, with a warning.
options:
  path: {description: HAProxy's file., default: /etc/haproxy/haproxy.cfg, type: path}
  socket: {description: Path of the admin socket., default: /run/haproxy/admin.sock, type: path}
  user: {description: User that HAProxy runs as., default: haproxy, type: str}
  group: {description: Group that may use an admin socket that is added., default: haproxy, type: str}
  listen: {description: HOST:PORT of the controllers' way to the admin level., default: '', type: str}
  allow: {description: Their addresses; no others are let in., default: [], type: list, elements: str}
  backends:
    description: Backends whose servers get a base weight, where none of them has one.
    default: []
    type: list
    elements: str
  weight: {description: The base weight., default: 100, type: int}
  state: {description: C(absent) takes away what was added., choices: [present, absent], default: present, type: str}
  edit: {description: C(false) fails in words where something is missing., default: true, type: bool}
  command: {description: HAProxy's program., default: /usr/sbin/haproxy, type: path}
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping

from ansible.module_utils.basic import AnsibleModule

try:
    from ansible_collections.slackwater.slackwater.plugins.module_utils.haproxy_configuration import (
        PROXIES,
        UNKNOWN,
        Section,
        Started,
        lines_of,
        sections,
        started_with,
        stats_sockets,
        text_of,
        unix_path,
    )
    from ansible_collections.slackwater.slackwater.plugins.module_utils.haproxy_running import (
        lost_by_a_reload,
        running_servers,
    )
    from ansible_collections.slackwater.slackwater.plugins.module_utils.haproxy_shares import (
        MOST_WEIGHT,
        Site,
        advice,
        each_server,
        in_words,
        same_shares,
    )
except ImportError:  # started from the source tree
    sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../module_utils"))
    from haproxy_configuration import (
        PROXIES,
        UNKNOWN,
        Section,
        Started,
        lines_of,
        sections,
        started_with,
        stats_sockets,
        text_of,
        unix_path,
    )
    from haproxy_running import lost_by_a_reload, running_servers
    from haproxy_shares import MOST_WEIGHT, Site, advice, each_server, in_words, same_shares

MARK = "# added by Slackwater"
OURS = "slackwater-admin"
"""The section that is added for other controllers."""
ADDRESS = re.compile(r"[0-9A-Za-z:][0-9A-Za-z.:-]*")
"""A host name or an IP address, with a port or without: so what another host reports of itself adds no line to the
file."""
BYTES = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
"""How the file is written: every byte that is not ours stays as it is, in whatever encoding."""


class Wrong(Exception):
    """What the file lacks, in words."""


def is_ours(line: str) -> bool:
    return line.rstrip().endswith(MARK)


def socket_level(rows: list[list[str]], path: str, folder: str) -> str | None:
    """The level of the `stats socket` at this path; None when there is none. `folder`: HAProxy's working directory."""
    for kind, _, start, end in sections(rows):
        for row in rows[start:end] if kind == "global" else []:
            for address, level in stats_sockets(row):
                if unix_path(address, folder) == unix_path(path, folder):
                    return level
    return None


def shared_socket(rows: list[list[str]]) -> tuple[str, str]:
    """Where a socket that HAProxy itself connects to stands, and its path as seen from inside HAProxy's chroot."""
    for kind, _, start, end in sections(rows):
        for row in rows[start:end] if kind == "global" else []:
            if row[:1] == ["chroot"] and len(row) > 1:
                return row[1].rstrip("/"), "/slackwater.sock"
    return "", "/run/haproxy/slackwater.sock"


def head_of(own_sections: list[Section], backend: str, elsewhere: Collection[str]) -> int:
    """The first line of a backend. Raises Wrong where the file has no such backend.

    `elsewhere`: the backends of all files that HAProxy reads.
    """
    proxies = [section for section in own_sections if section.kind in PROXIES]
    for section in proxies:
        if section.name == backend:
            return section.start
    known = ", ".join(section.name for section in proxies) or "none"
    there = " here; another file that HAProxy reads has it: name that one" if backend in elsewhere else ""
    raise Wrong(f"there is no backend `{backend}`{there}; the file has: {known}")


def added(lines: list[str], heads: Collection[int], texts: list[str]) -> list[str]:
    """With our lines below the first lines of sections."""
    ours = [f"\t{text}  {MARK}\n" for text in texts]
    edited = []
    for number, line in enumerate(lines):
        edited += [line if line.endswith("\n") else f"{line}\n", *ours] if number in heads else [line]
    return edited


def without_ours(lines: list[str], site: Site | None = None) -> list[str]:
    """The file without our lines, but for a base weight that the site's own lines count on by now: without it the
    shares would be others."""
    site = site or Site()
    kept = [line for line in lines if not is_ours(line) or "default-server" in line]
    needed = changed_shares(site, lines, [line for line in kept if not is_ours(line)])
    for kind, name, start, end in reversed(sections(site.own_rows(kept))):
        if kind in PROXIES and name not in needed:
            kept[start:end] = [line for line in kept[start:end] if not is_ours(line)]
    number = 0
    while number < len(kept):
        fewer = [*kept[:number], *kept[number + 1 :]]
        if is_ours(kept[number]) and not changed_shares(site, lines, fewer):
            kept = fewer
        else:
            number += 1
    return kept


def base_weights(
    lines: list[str], site: Site, given: dict, running: Mapping[str, Mapping[str, tuple[str, str]]]
) -> tuple[list[str], list[str], list[str]]:
    """The file with none of our lines but base weights, where no share changes by them: also reasons, and why backends
    are left as they are.

    `running`: the servers that the running HAProxy has, by backend, with their weights now and as configured.
    """
    reasons, left, edited = [], [], []
    kept = without_ours(lines, site)
    now, bare, own_sections = site.weights(lines), site.weights(kept), sections(site.own_rows(kept))
    heads = {name: head_of(own_sections, name, bare) for name in given["backends"]}
    texts = [f"default-server weight {given['weight']}"]
    # A line in one backend changes no other, so all are tried at once.
    fresh = site.weights(added(kept, set(heads.values()), texts))
    for name, head in heads.items():
        own, after = bare[name], fresh[name]
        at_runtime = set(running.get(name, {})) - each_server(own)
        is_configured = all(weight.is_configured for weight in own.values())
        if not own:
            left.append(f"backend `{name}` is left as it is: the file has no servers in it")
        elif unknown := [printable_name(server) for server, weight in own.items() if weight.value is None]:
            shown = [configured for _, configured in running.get(name, {}).values()]
            if not (is_configured and shown and all(weight not in ("0", "1") for weight in shown)):
                left.append(
                    f"backend `{name}` is left as it is: only HAProxy knows the weights of {', '.join(unknown)}, which"
                    " stand in a condition (`.if`), hold a variable, or come from DNS; give each of its servers a"
                    " weight there, in each branch, the largest 100 or so"
                )
        elif is_configured:
            continue
        elif not same_shares(now[name], after):
            left.append(
                f"backend `{name}` is left as it is: with `default-server weight {given['weight']}` the shares of its"
                f" servers would become {in_words(after)}, they are {in_words(now[name])}; {advice(now[name])}"
            )
        elif at_runtime and own == now[name]:
            left.append(
                f"backend `{name}` is left as it is: HAProxy has {', '.join(sorted(at_runtime))}, which the file has"
                f" not; a server that is added at runtime has weight 1 beside the {given['weight']} of the"
                " others, unless `add server` says its weight"
            )
        else:
            edited.append(head)
            reasons.append(f"servers of backend `{name}` have no weight, so HAProxy's 1: nothing is below it")
    return added(kept, edited, texts), reasons, left


def wanted(
    lines: list[str],
    given: dict,
    site: Site | None = None,
    running: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
) -> tuple[list[str], list[str], list[str]]:
    """The file with our lines, what they are for, and what is left as it is, and why. Raises Wrong if it cannot be."""
    site = site or Site()
    kept, reasons, left = base_weights(lines, site, given, running or {})
    level = socket_level(site.rows(kept), given["socket"], site.folder)
    texts: list[str] = []
    section: list[str] = []
    if level is None:
        texts.append(f"stats socket {given['socket']} mode 660 group {given['group']} level admin")
        reasons.append(f"there is no `stats socket {given['socket']}`")
    elif level != "admin":
        raise Wrong(
            f"`stats socket {given['socket']}` has level {level}, and only `level admin` lets weights be set; say"
            " `level admin` there, or give another path for a socket of Slackwater's own"
        )
    if odd := [text for text in [*given["allow"], given["listen"] or "none"] if not ADDRESS.fullmatch(text)]:
        raise Wrong(f"{odd[0]!r} is no host name or IP address")
    if given["listen"]:
        folder, inside = shared_socket(site.rows(kept))
        texts.append(f"stats socket {folder}{inside} mode 600 user {given['user']} level admin")
        section = [
            f"listen {OURS}",
            "\tmode tcp",
            f"\tbind {given['listen']}",
            "\tmaxconn 32",
            "\ttimeout connect 2s",
            "\ttimeout client 1h",
            "\ttimeout server 1h",
            f"\ttcp-request connection reject unless {{ src {' '.join(given['allow'])} }}",
            f"\tserver admin unix@{inside}",
        ]
        reasons.append(f"the controllers of other hosts need a way to the admin level on {given['listen']}")
    if texts:
        heads = [start for kind, _, start, _ in sections(site.own_rows(kept)) if kind == "global"]
        if not heads:
            raise Wrong("the file has no `global` section, where the `stats socket` belongs")
        kept = added(kept, heads[:1], texts)
    if section and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    return kept + [f"{text}  {MARK}\n" for text in section], reasons, left


def taken_away(lines: list[str], site: Site) -> tuple[list[str], list[str]]:
    """The file without our lines, and what is left in it as the site's own, and why."""
    kept = without_ours(lines, site)
    notes = [
        f"`{line.replace(MARK, '').strip()}` stays, as a line of the site's own: weights that were added since count on"
        " it, and without it the shares would change"
        for line in kept
        if is_ours(line)
    ]
    return [line.replace(MARK, "").rstrip() + "\n" if is_ours(line) else line for line in kept], notes


def changed_shares(site: Site, before: list[str], after: list[str]) -> dict[str, str]:
    """The site's backends whose shares an edit would change, with the change in words."""
    new = site.weights(after)
    return {
        name: f"`{name}` from {in_words(was)} to {in_words(new.get(name, {})) or 'nothing'}"
        for name, was in site.weights(before).items()
        if name != OURS and not same_shares(was, new.get(name, {}))
    }


def check(command: str, draft: str, path: str, process: Started | None) -> str:
    """What HAProxy says against the draft in the place of the file; empty: nothing."""
    files = [draft if file == path else file for file in (process.files if process else [path])]
    given = [word for file in files for word in ("-f", file)]
    environ = {**os.environ, **process.environ} if process else None
    folder = process.folder if process else None
    done = subprocess.run(
        [command, "-c", *given], capture_output=True, text=True, errors="replace", env=environ, cwd=folder
    )
    if not done.returncode:
        return ""
    printed = f"{done.stderr}\n{done.stdout}".replace(draft, path).strip().splitlines()
    alerts = [line for line in printed if "ALERT" in line] or printed
    return "\n".join(alerts)[-1500:] or f"nothing, with exit status {done.returncode}"


def expect_valid(command: str, path: str, before: str, after: str, started: list[Started]) -> None:
    """Raises Wrong with HAProxy's words when it refuses the edited file, beside the others that it runs with."""

    def refusal(text: str, process: Started | None) -> str:
        with tempfile.NamedTemporaryFile("w", **BYTES, dir=os.path.dirname(path)) as draft:
            draft.write(text)
            draft.flush()
            return check(command, draft.name, path, process)

    for process in started or [None]:
        refused = refusal(after, process)
        if not refused:
            continue
        subject = "the file as it is already" if refusal(before, process) else "the result"
        others = [file for file in process.files if file != path] if process else []
        beside = f" beside {', '.join(others)}" if others else ""
        alone = "" if process else " (checked alone: no HAProxy runs that reads it)"
        raise Wrong(f"haproxy -c refuses {subject}{beside}{alone}, nothing was changed: {refused}")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/haproxy/haproxy.cfg"},
            "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
            "group": {"default": "haproxy"},
            "listen": {"default": ""},
            "allow": {"type": "list", "elements": "str", "default": []},
            "user": {"default": "haproxy"},
            "backends": {"type": "list", "elements": "str", "default": []},
            "weight": {"type": "int", "default": 100},
            "state": {"choices": ["present", "absent"], "default": "present"},
            "edit": {"type": "bool", "default": True},
            "command": {"type": "path", "default": "/usr/sbin/haproxy"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = os.path.realpath(given["path"])
    try:
        if not 1 <= given["weight"] <= MOST_WEIGHT:
            raise Wrong(f"weight {given['weight']}: expected 1..{MOST_WEIGHT}, as HAProxy takes them")
        before = text_of(path)
        lines = lines_of(before)
        started = started_with(path)
        sites = [site_of(path, process) for process in started] or [Site()]
        running = running_servers(given["socket"])
        if given["state"] == "absent":
            after_lines, notes = taken_away(lines, sites[0])
            reasons: list[str] = []
        else:
            after_lines, reasons, notes = wanted(lines, given, sites[0], running)
        after = "".join(after_lines)
        if given["state"] == "present" and not given["edit"] and after != before:
            raise Wrong("; ".join(reasons) + "; add it, or let the role add it (slackwater_balancer_edit: true)")
        for site in sites:
            if differing := changed_shares(site, lines, after_lines):
                raise Wrong(
                    f"the edit would change the shares of backend {'; '.join(differing.values())}; nothing was changed"
                )
        changed = after != before
        if changed:
            notes = notes + lost_by_a_reload(running)
            expect_valid(given["command"], path, before, after, started)
            if not module.check_mode:
                replace(module, path, after)
        for note in notes:
            module.warn(printable(f"{path}: {note}"))
        diff = {"before": printable(before), "after": printable(after), "before_header": path, "after_header": path}
        module.exit_json(changed=changed, reasons=reasons, left=[printable(note) for note in notes], diff=diff)
    except (Wrong, OSError) as error:
        module.fail_json(msg=printable(f"{path}: {error}"))


def printable_name(server: str) -> str:
    """A server's name for people, also where a variable stands in it."""
    return server.replace(UNKNOWN, "$...")


def printable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


def site_of(path: str, process: Started) -> Site:
    position = process.files.index(path)
    before, after = (
        [line for file in files for line in lines_of(text_of(file))]
        for files in (process.files[:position], process.files[position + 1 :])
    )
    return Site(before, after, process)


def replace(module: AnsibleModule, path: str, text: str) -> None:
    """In one step, with the owner and mode that the file has."""
    descriptor, fresh = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(descriptor, "w", **BYTES) as file:
        file.write(text)
    module.atomic_move(fresh, path, keep_dest_attrs=True)


if __name__ == "__main__":
    main()
