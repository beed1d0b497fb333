"""IPVS where keepalived owns the table: weights go through files that keepalived watches.

A real server's FILE_CHECK adds the number in its track_file to the configured weight. keepalived keeps that sum over
reloads and restarts, and while the server is down. A weight that ipvsadm sets would be overwritten by keepalived's next
change. Without the file, or with 0 in it, the server has its configured weight, so that is the way back.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from slackwater.core.files import bytes_of, write_whole
from slackwater.lbengine.backends.ipvs.ipvs import (
    HIGHEST_WEIGHT,
    Lvs,
    LvsServer,
    LvsSnapshot,
    Run,
    check_bounds,
    server_name,
)
from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.command_line import ALL, CommandLineError, options
from slackwater.lbengine.backends.keepalived.conf import (
    ConfigurationError,
    RealServer,
    Texts,
    TrackFile,
    VirtualServer,
    gather,
    virtual_servers,
)
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable

PID_FILES = ("/run/keepalived.pid", "/run/keepalived/keepalived.pid")
DEFAULT_CONFIGURATION = "/etc/keepalived/keepalived.conf"
LOOK_EVERY_S = 0.01


class HostFiles(Protocol):
    """The files of the host on which keepalived runs."""

    def read(self, path: str) -> str | None:
        """The text; None when the file is not there or cannot be read."""

    def replace(self, path: str, text: str) -> None:
        """Writes the whole file at once: a reader sees the old text or the new one. Raises OSError."""

    def matching(self, pattern: str) -> list[str]:
        """The files that a shell pattern names and that keepalived would include, sorted: regular ones that nobody may
        execute. It passes over others, and over folders, with a warning."""

    def is_writable_folder(self, path: str) -> bool: ...


class LocalFiles:
    """The files of this host."""

    def read(self, path: str) -> str | None:
        try:
            return bytes_of(Path(path)).decode(errors="replace")
        except OSError:
            return None

    def replace(self, path: str, text: str) -> None:
        write_whole(Path(path), text.encode("ascii"))

    def matching(self, pattern: str) -> list[str]:
        named = sorted(glob.glob(pattern))  # noqa: PTH207 - Path.glob takes no absolute patterns
        return [path for path in named if _is_included(path)]

    def is_writable_folder(self, path: str) -> bool:
        return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


def _is_included(path: str) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and not mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


@dataclass(frozen=True)
class Owner:
    """A running keepalived."""

    pid: int
    configuration: str
    config_id: str | None = field(default=None, compare=False)
    """The name that the conditions in its configuration are compared with; None: the first part of this host's name."""


def owner(files: HostFiles) -> Owner | None:
    """The keepalived that drives IPVS on this host, by its pid file; None when none runs.

    Raises BalancerError when its command line is not understood: a guess could drive IPVS beside it.
    """
    for path in PID_FILES:
        pid = (files.read(path) or "").strip()
        if not pid.isdigit() or (files.read(f"/proc/{pid}/comm") or "").strip() != "keepalived":
            continue
        words = (files.read(f"/proc/{pid}/cmdline") or "").removesuffix("\0").split("\0")
        if words == [""]:
            raise BalancerUnreachable(f"keepalived (pid {pid}): its command line cannot be read; it may be ending")
        try:
            given = options(words[1:])
        except CommandLineError as error:
            raise BalancerError(f"keepalived (pid {pid}): {error}; its command line: {' '.join(words)}") from None
        if [letter for letter, _ in given if letter in ("P", ALL)][-1:] == ["P"]:
            continue  # without checkers it leaves IPVS alone
        values = dict(given)
        host = (files.read("/proc/sys/kernel/hostname") or "").strip().partition(".")[0]
        file = PurePosixPath(f"/proc/{pid}/cwd") / values.get("f", DEFAULT_CONFIGURATION)  # a whole path stays as it is
        return Owner(int(pid), str(file), values.get("i") or host or None)
    return None


def owned_by(service: Service, files: HostFiles) -> Owner | None:
    """The keepalived whose configuration has this service; None where there is none. Raises BalancerError."""
    running = owner(files)
    if running is None:
        return None
    return running if _find(service, _gather(running, files)) is not None else None


def _gather(running: Owner, files: HostFiles) -> Texts:
    try:
        return gather(running.configuration, files.read, files.matching, running.config_id)
    except ConfigurationError as error:
        raise BalancerError(f"keepalived's configuration {error}") from None


def _find(service: Service, texts: Texts) -> VirtualServer | None:
    try:
        servers = virtual_servers(texts)
    except ConfigurationError as error:
        raise BalancerError(f"keepalived's configuration {error}") from None
    return next((server for server in servers if service in server.services), None)


class Keepalived(Balancer):
    """A virtual service that keepalived owns. Reads IPVS with ipvsadm, writes keepalived's track files."""

    def __init__(
        self,
        service: str,
        run: Run,
        files: HostFiles,
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`wait_s`: how long keepalived may take to follow a file.

        Raises BalancerError when `service` is no name of a service.
        """
        self.lvs = Lvs(service, run)
        self.where = f"keepalived's {self.lvs.where}"
        self._files = files
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep
        self._texts: Texts | None = None
        self._known: VirtualServer | None = None

    def read(self) -> LvsSnapshot:
        """The configured servers as IPVS has them.

        A server that keepalived has taken out is down, with the weight that it will come back with. Raises
        BalancerUnreachable while keepalived doesn't run.
        """
        running, known = self.configuration()
        seen = self.lvs.read()
        in_table = {server.address: server for server in seen.servers}
        servers = tuple(
            sorted(
                (self._server(real, in_table.get(real.address)) for real in known.servers),
                key=lambda server: server.name,
            )
        )
        return replace(seen, servers=servers, pid=running.pid)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Writes the files and waits until IPVS shows the weights. Raises BalancerError as `Balancer` describes.

        A server that keepalived has taken out gets its weight when it comes back. Where a server's weight in IPVS is
        not the one that configuration and file ask for, its configuration was not understood, and a number that is
        added to it would give a wrong weight. Such a server gets no other weight than the configured one, which needs
        no sum.
        """
        check_bounds(weights, self.where)
        _, known = self.configuration()
        by_name = {server_name(real.address): real for real in known.servers}
        if gone := [name for name in weights if name not in by_name]:
            raise BalancerError(f"{self.where} has no server {', '.join(gone)}; nothing was changed")
        # All files are looked up before the first is written.
        paths = {name: own_file(by_name[name]).path for name in weights}
        added = [by_name[name] for name, weight in weights.items() if weight != by_name[name].weight]
        self._wait(lambda: self.misread(added), "before anything was written")
        for name, weight in weights.items():
            try:
                self._files.replace(paths[name], f"{weight - by_name[name].weight}\n")
            except OSError as error:
                raise BalancerError(
                    f"{self.where}: {paths[name]}: {error.strerror or error}; {name} keeps its weight"
                ) from None
        self._wait(lambda: self._unfollowed(weights), f"read back {self._wait_s:g} s after the files were written")

    def misread(self, servers: Iterable[RealServer]) -> list[str]:
        """The servers whose weight in IPVS is not the one that configuration and file ask for, in words.

        Raises BalancerError.
        """
        wanted = list(servers)
        seen = {server.address: server.weight for server in self.lvs.read().servers} if wanted else {}
        return [
            f"{server_name(real.address)} has weight {weight} in IPVS, where the configuration and its track_file ask"
            f" for {self._asked(real)}"
            for real in wanted
            if (weight := seen.get(real.address, 0)) > 0 and weight != self._asked(real)
        ]

    def _wait(self, wrong: Callable[[], list[str]], when: str) -> None:
        """Waits until `wrong` returns nothing. Raises BalancerError when that takes longer than `wait_s`."""
        until_s = self._clock() + self._wait_s
        while problems := wrong():
            if self._clock() >= until_s:
                raise BalancerError(f"{self.where} {when}: {', '.join(problems)}")
            self._sleep(LOOK_EVERY_S)

    def configuration(self) -> tuple[Owner, VirtualServer]:
        """The running keepalived and its configuration of the service. Raises BalancerError."""
        running = owner(self._files)
        if running is None:
            raise BalancerUnreachable(f"{self.where}: no keepalived runs here (looked for {' and '.join(PID_FILES)})")
        texts = _gather(running, self._files)
        if texts != self._texts or self._known is None:
            self._known, self._texts = _find(self.lvs.service, texts), texts
        if self._known is None:
            raise BalancerError(
                f"{self.where}: not in {running.configuration}"
                + ("; `~LST` is not followed there" if any("~LST" in text for text in texts.values()) else "")
            )
        return running, self._known

    def _unfollowed(self, weights: Mapping[str, int]) -> list[str]:
        shown = {server.name: server for server in self.read().servers}
        return [
            f"{name} shows {shown[name].weight} instead of {weight}" if name in shown else f"{name} is gone"
            for name, weight in weights.items()
            if name not in shown or (shown[name].available and shown[name].weight != weight)
        ]

    def _server(self, real: RealServer, seen: LvsServer | None) -> LvsServer:
        if seen is not None and (seen.weight > 0 or self._asked(real) == 0):
            return replace(seen, condition="up", configured=real.weight)
        # It was taken out, or left in with weight 0 (`inhibit_on_failure`) although its file asks for more.
        down = LvsServer(name=server_name(real.address), address=real.address, weight=0) if seen is None else seen
        return replace(down, condition="down", weight=self._asked(real), configured=real.weight)

    def _asked(self, real: RealServer) -> int:
        """The weight that configuration and file ask for."""
        added = 0
        for _, file in real.files:
            if file is not None:
                with contextlib.suppress(ValueError):
                    added += int((self._files.read(file.path) or "0").strip() or 0) * file.weight
        return min(max(real.weight + added, 0), HIGHEST_WEIGHT)


def own_file(real: RealServer) -> TrackFile:
    """The file that steers a real server's weight. Raises BalancerError with the configuration that it needs."""
    usable = [file for _, file in real.files if file is not None and file.weight == 1 and not file.reverse]
    if len(real.files) == 1 and usable:
        return usable[0]
    name = "slackwater_" + "".join(letter if letter.isalnum() else "_" for letter in real.address).strip("_")
    if not real.files:
        problem = "has no FILE_CHECK"
    elif len(real.files) > 1:
        problem = "has several FILE_CHECKs"
    elif real.files[0][1] is None:
        problem = f"has a FILE_CHECK of `{real.files[0][0]}`, which no track_file is named"
    else:
        problem = "has a FILE_CHECK with another weight than 1"
    raise BalancerError(
        f"keepalived's real_server {real.address} {problem}; expected `track_file {name} {{ file"
        f" /run/slackwater-weights/{name} }}` at the top, and in the real_server `FILE_CHECK {{ track_file {name} }}`"
        " (one statement a line)"
    )
