"""What goes into the bundle: one function for each part, and one line for each in `PARTS`, the most useful first."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slackwater import __version__
from slackwater.controller.support.archive import Bundle
from slackwater.controller.support.journal_rows import rows
from slackwater.controller.support.reading import NotRead, listing, output, read_inside
from slackwater.core.config import ConfigError, ControllerSettings, describe, load
from slackwater.core.files import bytes_of

UNITS = ("slackwater-controller", "slackwater-broker", "slackwater-monitor", "slackwater-wsengine", "haproxy")
LOGS_OF = UNITS[:4]
SHOWN = (
    "Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts,ExecMainStatus,ExecMainCode,"
    "ActiveEnterTimestamp,InactiveEnterTimestamp,MemoryCurrent,CPUUsageNSec,TasksCurrent,FragmentPath,DropInPaths"
)
"""Not the command lines, and nothing of the environment."""
PROGRAMS = (
    ("haproxy", "-v"),
    ("nats-server", "--version"),
    ("slackwater-monitor", "--version"),
    ("systemctl", "--version"),
    ("dpkg-query", "-W", "slackwater-*", "haproxy", "keepalived"),
)
"""Their versions."""
MOST_LOG_LINES = 20_000
NODE_FILES = ("node.toml", "wsengine.toml")
NODE_FOLDER = Path("/etc/slackwater")
METRICS_WITHIN_S = 5.0
MOST_STATE_BYTES = 1_000_000
Text = tuple[str, str]


@dataclass(frozen=True)
class BundledSite:
    """What the bundle is of."""

    config: Path
    settings: ControllerSettings | None
    problem: str
    """Why the settings cannot be used; empty if they can."""
    since: str
    """How far back logs go, for journalctl."""
    has_check: bool
    """`slackwater check` is there."""

    @property
    def state_dir(self) -> Path:
        """Raises NotRead."""
        if self.settings is None:
            raise NotRead("the settings cannot be used, so the state folder is not known")
        return Path(self.settings.state_dir)


def site_of(config: Path, since: str, has_check: bool) -> BundledSite:
    """The site, with its settings if they can be read."""
    try:
        return BundledSite(config, load(config), "", since, has_check)
    except ConfigError as error:
        return BundledSite(config, None, str(error), since, has_check)


def gather(site: BundledSite, bundle: Bundle) -> None:
    """All parts; one that cannot be had is left out with its reason."""
    _settings(site, bundle)  # first: the scrubber learns the secrets from it
    for name, part in PARTS.items():
        try:
            for file, text in part(site):
                bundle.add(file, text)
        except NotRead as error:
            bundle.left_out(name, str(error))


def _settings(site: BundledSite, bundle: Bundle) -> None:
    """The settings that are given, and those in force."""
    scrubber = bundle.scrubber
    given: dict[str, object] = {}
    declared = {part for name, *_ in describe() for part in name.split(".")}
    for path in (site.config, *(NODE_FOLDER / name for name in NODE_FILES)):
        known = declared if path == site.config else None
        try:
            given[str(path)] = scrubber.settings(tomllib.loads(bytes_of(path).decode("utf-8-sig")), known=known)
        except (OSError, UnicodeDecodeError) as error:
            if path == site.config:
                bundle.left_out(str(path), getattr(error, "strerror", None) or "not UTF-8")
        except ValueError:
            bundle.left_out(str(path), "not TOML, so its secrets cannot be told from the rest")
    settings: dict[str, object] = {"given": given}
    if site.settings is None:
        settings["problem"] = site.problem
    else:
        settings["in_force"] = scrubber.settings(msgspec.to_builtins(site.settings))
        scrubber.known_files(Path(site.settings.state_dir))
    bundle.add("settings.json", json.dumps(settings, indent=1, default=str) + "\n")


def versions(_: BundledSite) -> Iterator[Text]:
    lines = [f"slackwater {__version__}", f"python {sys.version}", f"kernel {platform.platform()}"]
    try:
        lines += [f"{key} {value}" for key, value in platform.freedesktop_os_release().items() if key != "HOME_URL"]
    except OSError:
        lines.append("os-release: not there")
    lines += sorted({f"package {package.name} {package.version}" for package in importlib.metadata.distributions()})
    for command in PROGRAMS:
        if shutil.which(command[0]):
            lines += [f"$ {' '.join(command)}", output(*command).strip()]
    yield "versions.txt", "\n".join(lines) + "\n"


def checks(site: BundledSite) -> Iterator[Text]:
    """`slackwater check`, and on a node `slackwater-monitor check`."""
    if site.has_check:
        command = (sys.executable, "-P", "-m", "slackwater.controller.cli.main", "check", "--config", str(site.config))
        yield "check.txt", output(*command)
    else:
        raise NotRead("this version has no `slackwater check`")


def node_checks(_: BundledSite) -> Iterator[Text]:
    path = NODE_FOLDER / NODE_FILES[0]
    if not path.exists():
        raise NotRead(f"{path} is not there: no monitor is configured on this machine")
    yield "node-check.txt", output("slackwater-monitor", "check", "--config", str(path))


def units(_: BundledSite) -> Iterator[Text]:
    yield "units.txt", output("systemctl", "show", "--no-pager", "-p", SHOWN, *UNITS, ok=(0,))


def logs(site: BundledSite) -> Iterator[Text]:
    chosen = [word for unit in LOGS_OF for word in ("-u", unit)]
    options = ("-q", "--no-pager", "-o", "short-iso", "-n", str(MOST_LOG_LINES), "--since", site.since)
    text = output("journalctl", *options, *chosen, ok=(0,))
    if not text.strip():
        raise NotRead(f"journald has nothing since {site.since}, or shows it to root and group systemd-journal only")
    yield "log.txt", text


def bus_log(site: BundledSite) -> Iterator[Text]:
    text = read_inside(site.state_dir, "nats.log")
    if not text:
        raise NotRead("there is none: the bus is not the controller's own, or it has not run yet")
    yield "nats.log", text.decode("utf-8", "replace")


def state(site: BundledSite) -> Iterator[Text]:
    """What is in the state folder, and the small files of it that hold no secret."""
    folder = site.state_dir
    yield "state/listing.txt", "\n".join(listing(folder)) + "\n"
    assert site.settings is not None
    files: list[tuple[str, ...]] = [("serve.json",), ("hooks.json",)]
    for pool in site.settings.pool:
        files += [("baseline", f"{pool.name}.json"), (f"paused-{pool.name}.json",), (f"by-hand-{pool.name}.json",)]
    for names in files:
        try:
            content = read_inside(folder, *names, most_bytes=MOST_STATE_BYTES)
        except NotRead as error:
            content = f"not read: {error}\n".encode()
        if content:
            yield f"state/{'/'.join(names)}", content.decode("utf-8", "replace")


def journal(site: BundledSite) -> Iterator[Text]:
    yield from rows(site.state_dir)


def metrics(site: BundledSite) -> Iterator[Text]:
    import urllib3

    listen = site.settings.web.listen if site.settings is not None else ""
    if not listen:
        raise NotRead("there is no dashboard" if site.settings is not None else "the settings cannot be used")
    for path in ("healthz", "metrics"):
        try:
            answer = urllib3.request(
                "GET", f"http://{listen}/{path}", timeout=METRICS_WITHIN_S, retries=False, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise NotRead(f"the dashboard on {listen} does not answer: {error}") from None
        if answer.status == 401:
            raise NotRead(f"the dashboard on {listen} wants a login (web.read_without_login)")
        yield f"{path}.txt", answer.data.decode("utf-8", "replace")


PARTS: dict[str, Callable[[BundledSite], Iterator[Text]]] = {
    "versions": versions,
    "check": checks,
    "node check": node_checks,
    "units": units,
    "state": state,
    "metrics": metrics,
    "journal": journal,
    "log": logs,
    "nats-server's log": bus_log,
}
