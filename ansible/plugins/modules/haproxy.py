#!/usr/bin/python
"""What lbengine needs in a site's own haproxy.cfg: an admin socket, and room below each server's weight.

The file stays the site's. Whole lines are added, each marked, and taken away again by their mark.
"""

from __future__ import annotations

DOCUMENTATION = """
module: haproxy
short_description: Add to haproxy.cfg what Slackwater needs, or take it away
description:
  - A line is added only where the file does not already say the same, and HAProxy checks the result before it counts.
options:
  path: {description: HAProxy's file., default: /etc/haproxy/haproxy.cfg, type: path}
  socket: {description: Path of the admin socket., default: /run/haproxy/admin.sock, type: path}
  user: {description: User that HAProxy runs as., default: haproxy, type: str}
  group: {description: Group that may use an admin socket that is added., default: haproxy, type: str}
  listen: {description: HOST:PORT of the controllers' way to the admin level., default: '', type: str}
  allow: {description: Their addresses; no others are let in., default: [], type: list, elements: str}
  backends: {description: Backends whose servers get a base weight., default: [], type: list, elements: str}
  weight: {description: The base weight., default: 100, type: int}
  state: {description: C(absent) takes away what was added., choices: [present, absent], default: present, type: str}
  edit: {description: C(false) fails in words where something is missing., default: true, type: bool}
  command: {description: HAProxy's program., default: /usr/sbin/haproxy, type: path}
"""

import os
import re
import shlex
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule

MARK = "# added by Slackwater"
SECTIONS = (
    *("global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "cache", "program"),
    *("mailers", "http-errors", "ring", "log-forward", "fcgi-app", "crt-list"),
)


class Wrong(Exception):
    """What the file lacks, in words."""


def words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def sections(lines: list[str]) -> list[tuple[str, str, int, int]]:
    """Kind, name, first line and end of each section."""
    heads = [(n, words(line)) for n, line in enumerate(lines)]
    starts = [(n, found) for n, found in heads if found and found[0] in SECTIONS]
    ends = [n for n, _ in starts[1:]] + [len(lines)]
    return [(w[0], w[1] if len(w) > 1 else "", n, end) for (n, w), end in zip(starts, ends, strict=True)]


def without_ours(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.rstrip().endswith(MARK)]


def socket_level(lines: list[str], path: str) -> str | None:
    """The level of the `stats socket` at this path; None when there is none."""
    for kind, _, start, end in sections(lines):
        for line in lines[start:end] if kind == "global" else []:
            found = words(line)
            if found[:2] == ["stats", "socket"] and len(found) > 2 and found[2].removeprefix("unix@") == path:
                return found[found.index("level") + 1] if "level" in found[:-1] else "operator"
    return None


def shared_socket(lines: list[str]) -> tuple[str, str]:
    """Where a socket that HAProxy itself connects to stands, and its path as seen from inside HAProxy's chroot."""
    for kind, _, start, end in sections(lines):
        for line in lines[start:end] if kind == "global" else []:
            found = words(line)
            if found[:1] == ["chroot"] and len(found) > 1:
                return found[1].rstrip("/"), "/slackwater.sock"
    return "", "/run/haproxy/slackwater.sock"


def weight_is_said(lines: list[str], start: int, end: int) -> bool:
    """Whether each server of the section has a weight of its own or by default-server."""
    default = False
    for line in lines[start:end]:
        found = words(line)
        if found[:1] == ["default-server"] and "weight" in found:
            default = True
        if found[:1] in (["server"], ["server-template"]) and "weight" not in found and not default:
            return False
    return True


def wanted(lines: list[str], given: dict) -> tuple[list[str], list[str]]:
    """The file with our lines, and what they are for. Raises Wrong when it cannot be."""
    lines = without_ours(lines)
    found = sections(lines)
    level = socket_level(lines, given["socket"])
    added: dict[int, list[str]] = {}
    reasons = []
    if not any(kind == "global" for kind, *_ in found):
        raise Wrong("the file has no `global` section")
    at = next(start for kind, _, start, _ in found if kind == "global")
    if level is None:
        text = f"stats socket {given['socket']} mode 660 group {given['group']} level admin"
        added.setdefault(at, []).append(text)
        reasons.append(f"there is no `stats socket {given['socket']}`")
    elif level != "admin":
        raise Wrong(
            f"`stats socket {given['socket']}` has level {level}, and only `level admin` lets weights be set; say"
            " `level admin` there, or give another path for a socket of Slackwater's own"
        )
    section: list[str] = []
    if given["listen"]:
        folder, inside = shared_socket(lines)
        added.setdefault(at, []).append(f"stats socket {folder}{inside} mode 600 user {given['user']} level admin")
        section = [
            "listen slackwater-admin",
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
    for name in given["backends"]:
        places = [(start, end) for kind, it, start, end in found if kind in ("backend", "listen") and it == name]
        if not places:
            known = ", ".join(it for kind, it, *_ in found if kind == "backend")
            raise Wrong(f"there is no backend `{name}`; the file has: {known}")
        start, end = places[0]
        if not weight_is_said(lines, start, end):
            added.setdefault(start, []).append(f"default-server weight {given['weight']}")
            reasons.append(f"servers of backend `{name}` have no weight, so HAProxy's 1: nothing is below it")
    out = []
    for n, line in enumerate(lines):
        out.append(line)
        if n in added and not line.endswith("\n"):
            out[-1] += "\n"
        out += [f"\t{text}  {MARK}\n" for text in added.get(n, [])]
    return out + [f"{text}  {MARK}\n" for text in section], reasons


def check(command: str, path: str) -> None:
    done = subprocess.run([command, "-c", "-q", "-f", path], capture_output=True, text=True)
    if done.returncode:
        raise Wrong(
            f"haproxy -c refuses the result, nothing was changed: {(done.stderr or done.stdout).strip()[-800:]}"
        )


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
    path = given["path"]
    try:
        with open(path, encoding="utf-8", newline="") as file:
            before = file.read()
        lines = re.findall(r"[^\n]*\n|[^\n]+$", before)
        after_lines, reasons = (without_ours(lines), []) if given["state"] == "absent" else wanted(lines, given)
        after = "".join(after_lines)
        if given["state"] == "present" and not given["edit"] and after != before:
            raise Wrong("; ".join(reasons) + "; add it, or let the role add it (slackwater_balancer_edit: true)")
        changed = after != before
        if changed:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=os.path.dirname(path)) as fresh:
                fresh.write(after)
                fresh.flush()
                check(given["command"], fresh.name)
            if not module.check_mode:
                replace(module, path, after)
        diff = {"before": before, "after": after, "before_header": path, "after_header": path}
        module.exit_json(changed=changed, reasons=reasons, diff=diff)
    except (Wrong, OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"{path}: {error}")


def replace(module: AnsibleModule, path: str, text: str) -> None:
    """In one step, with the owner and mode that the file has."""
    descriptor, fresh = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    module.atomic_move(fresh, path, keep_dest_attrs=True)


if __name__ == "__main__":
    main()
