"""The service's user: its groups, and root becoming that user for good."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import subprocess
from pathlib import Path

from slackwater.core.files import SERVICE_USER, FileUser, bytes_of, in_hands_of, replacing

SYSTEMD, DROP_INS = Path("/etc/systemd/system"), "slackwater-controller.service.d"
RUNNING_SYSTEMD = Path("/run/systemd/system")


def groups_of_unit(systemd: Path = SYSTEMD) -> set[str]:
    """The groups that drop-ins of the controller's unit give it (systemd.exec(5): an empty value takes back those
    before)."""
    groups: set[str] = set()
    for file in sorted((systemd / DROP_INS).glob("*.conf")):
        with contextlib.suppress(OSError):
            for line in bytes_of(file).decode(errors="replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "SupplementaryGroups":
                    groups = groups | set(value.split()) if value.strip() else set()
    return groups


def give_group(group: str, systemd: Path = SYSTEMD) -> Path:
    """Gives the controller's unit a group by a drop-in, which is returned; systemd reads it at once. Raises OSError."""
    file = systemd / DROP_INS / "haproxy-socket.conf"
    text = f"# Written by `slackwater init`, for HAProxy's socket.\n[Service]\nSupplementaryGroups={group}\n"
    with replacing(file) as draft:
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o644)
    if RUNNING_SYSTEMD.is_dir():
        subprocess.run(["systemctl", "daemon-reload"], check=False, capture_output=True)
    return file


def become_owner_of(folder: Path) -> str:
    """Makes root, for good, the user who has the folder in hands, before it does what that user's files say. Returns
    the user's name; empty where root itself has it."""
    owner = in_hands_of(folder) if os.geteuid() == 0 else None
    return become(owner) if owner else ""


def become(user: FileUser) -> str:
    """Makes root this user, for good, with the groups of the unit if it is the service's user; returns the name.

    Raises OSError where this root may not.
    """
    groups, name = [user.gid], str(user.uid)
    with contextlib.suppress(KeyError):  # a number that has no name here
        name = pwd.getpwuid(user.uid).pw_name
        groups = os.getgrouplist(name, user.gid)
    for group in groups_of_unit() if name == SERVICE_USER else ():
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrnam(group).gr_gid)
    os.setgroups(groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    return name
