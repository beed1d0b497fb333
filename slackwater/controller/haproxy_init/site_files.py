"""The files that `slackwater init` and `slackwater monitors` read and write."""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from pathlib import Path

from slackwater.controller.haproxy_init.written_files import noted
from slackwater.core.files import PRIVATE, SERVICE_USER, in_hands_of, replacing
from slackwater.core.options import DEFAULT_CONFIG
from slackwater.lbengine.backends.haproxy.configuration import started
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration, read_configuration

ASK_WITHIN_S = 3.0
USUAL_CONFIGURATION = Path("/etc/haproxy/haproxy.cfg")
FOR_THE_SERVICE = 0o640
SERVICE = "slackwater-controller"
"""The unit of the controller's package."""


def haproxy_configuration(named: Path | None) -> SiteConfiguration:
    """The files of HAProxy: those that are named, at the usual place, or of the only HAProxy that runs.

    Raises SurveyError.
    """
    if named is None and not USUAL_CONFIGURATION.exists():
        running = started()
        return read_configuration(Path(running[0].files[0])) if len(running) == 1 else SiteConfiguration()
    return read_configuration(named or USUAL_CONFIGURATION)


def other_haproxies(configuration: SiteConfiguration) -> list[str]:
    """The first files of HAProxies that run on this host with other files than these: their servers are not in it."""
    own = os.path.realpath(configuration.place.partition(":")[0]) if configuration.place else ""
    return sorted({way.files[0] for way in started() if own not in way.files})


def unless_usual(config_path: Path) -> str:
    """The path to name in a command that the person is told; empty where the configuration is at its usual place."""
    return "" if config_path == Path(DEFAULT_CONFIG) else str(config_path.absolute())


def write_settings(path: Path, text: str) -> None:
    """Writes the controller's settings whole or not at all. A file that is there keeps its owner, its group and its
    mode, and its place behind a link, as far as no other user than root could have put that there."""
    if os.geteuid() != 0 or in_hands_of(path) is not None or not path.exists():
        write(path, text, FOR_THE_SERVICE)
        return
    place = path.resolve()
    before = place.stat()
    with noted(path), replacing(place, PRIVATE) as draft:
        draft.write_text(text, encoding="utf-8")
        os.chown(draft, before.st_uid, before.st_gid)
        draft.chmod(stat.S_IMODE(before.st_mode))


def write(path: Path, text: str, mode: int) -> None:
    """Writes a file whole or not at all. Where `mode` lets a group read it, that is the service's group; without one
    only the owner may read it."""
    with noted(path), replacing(path, PRIVATE) as draft:
        if mode & 0o077 == 0o040 and os.geteuid() == 0 and in_hands_of(path) is None:
            with contextlib.suppress(KeyError):  # without the package
                os.chown(draft, 0, grp.getgrnam(SERVICE_USER).gr_gid)
                draft.chmod(mode)
        draft.write_text(text, encoding="utf-8")
        if mode & 0o004:
            draft.chmod(mode)
