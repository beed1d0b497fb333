"""A real Apache and php-fpm that a slackwater-wsengine turns, and who gives it Orders (fixtures in conftest.py)."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_lab.cluster.paths import DEBIAN
from slackwater_lab.cluster.webserver import unprivileged_user
from tests.support.real_processes import free_address
from tests.support.real_wsengine import PROGRAM, Controller, Engine, Nats, make_keys, wait_for

FPMS = ("php-fpm8.2", "php-fpm8.1", "php-fpm8.3", "php-fpm8.4")
"""Debian 12's, and those of other releases (`tools/setup_releases.py`)."""
APACHE, FPM, NGINX = (shutil.which(name) for name in ("apache2", FPMS[0], "nginx"))
MODULES = DEBIAN / "usr/lib/apache2/modules"
each_php_fpm = pytest.mark.parametrize(
    "fpm", [pytest.param(name, marks=[] if name == FPMS[0] else [pytest.mark.slow]) for name in FPMS], indirect=True
)
"""Has a test run with each php-fpm; in `make test` with Debian 12's alone."""
needs_servers = [
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(None in (APACHE, FPM, NGINX), reason="apache2, php-fpm8.2 or nginx is not here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="php-fpm and Apache change their user: needs root"),
]
WORKERS, TIMEOUT, KEEPALIVE = "apache.max_request_workers", "apache.keepalive_timeout", "apache.keepalive"
CHILDREN = "php_fpm.max_children"
ANSWERS_WITHIN_S = 30.0
TROUBLES = {"full": "the disk is full", "read-only": "its file system is read-only"}
"""What may become of a folder, and what it is called."""


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """The folder is a file system of its own; skips where none can be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=10", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield
    finally:
        # Lazily: whoever still has a file of it open keeps only that.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def spoil(place: Path, trouble: str) -> None:
    """Makes a small disk `full` or `read-only`."""
    if trouble == "full":
        with pytest.raises(OSError, match="No space left"):
            (place / "ballast").write_bytes(b"x" * 65536)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


class Control:
    """Keys, bus and controller; `engine` starts an engine with the given sections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        private, self.public = make_keys(folder)
        self.nats = Nats(folder / "nats")
        self.controller = Controller(self.nats.url, private)
        self.engines: list[Engine] = []

    def engine(self, sections: str) -> Engine:
        engine = Engine(self.folder, self.nats.url, self.public, sections)
        self.engines.append(engine)
        engine.start()
        return engine

    def back(self, knob: str, since: int = 0) -> str:
        """The reason of the Change that put a knob back."""
        changes = self.controller.next(lambda c: c.what == knob and c.why.startswith("put back"), since, f"{knob} back")
        return changes.why

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.controller.close()
        self.nats.stop()


class Apache:
    """An Apache whose site sets what `own` says, in a file of its own, and includes our drop-in last."""

    def __init__(self, folder: Path, mpm: str, own: str) -> None:
        self.folder = folder
        self.own = folder / "site.conf"
        self.drop_in = folder / "zz-slackwater.conf"
        self.conf = folder / "apache.conf"
        self.address = free_address()
        user, group = unprivileged_user()
        modules = (f"mpm_{mpm}", "authz_core", "status")
        loads = "\n".join(f'LoadModule {name}_module "{MODULES}/mod_{name}.so"' for name in modules)
        self.own.write_text(own)
        self.conf.write_text(
            f'ServerRoot "{folder}"\n{loads}\nServerName site.test\nListen {self.address}\nUser {user}\nGroup {group}\n'
            f'PidFile "{folder}/apache.pid"\nErrorLog "{folder}/apache.log"\nDefaultRuntimeDir "{folder}"\n'
            f"Mutex pthread\nStartServers 1\n<Location /server-status>\nSetHandler server-status\n</Location>\n"
            f'Include "{self.own}"\nIncludeOptional "{self.drop_in}"\n'
        )
        assert APACHE is not None
        self.process = subprocess.Popen([APACHE, "-f", str(self.conf), "-DFOREGROUND"], start_new_session=True)
        wait_for(lambda: self.status() is not None, "Apache answers")

    def status(self) -> dict[str, str] | None:
        """server-status?auto, while Apache answers."""
        try:
            page = f"http://{self.address}/server-status?auto"
            with urllib.request.urlopen(page, timeout=ANSWERS_WITHIN_S) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, http.client.HTTPException):
            return None
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def number(self, name: str) -> int:
        return int((wait_for(self.status, "Apache answers") or {})[name])

    def keepalive_header(self) -> str:
        """What a response says of its connection; a connection of before a restart may be closed at any point."""

        def header() -> str:
            connection = http.client.HTTPConnection(self.address, timeout=ANSWERS_WITHIN_S)
            try:
                connection.request("GET", "/server-status?auto", headers={"Connection": "keep-alive"})
                answer = connection.getresponse()
                answer.read()
                return answer.getheader("Keep-Alive") or f"Connection: {answer.getheader('Connection')}"
            except (OSError, http.client.HTTPException):
                return ""
            finally:
                connection.close()

        return wait_for(header, "Apache answers")

    def sections(self, **others: object) -> str:
        settings = {
            "max_request_workers": "[1, 1000]",
            "keepalive_timeout": "[0, 60]",
            "keepalive": '["on", "off"]',
            "command": f'["{APACHE}", "-f", "{self.conf}"]',
            "drop_in": f'"{self.drop_in}"',
            "info_module": f'"{MODULES}/mod_info.so"',
            "status_url": f'"http://{self.address}/server-status?auto"',
            "reload_min_interval_s": 0.5,
        } | others
        return "[apache]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


class Fpm:
    """A php-fpm with a pool `www` in pool.d/www.conf."""

    def __init__(self, folder: Path, pool: str, patience: str = "10s", program: str | None = FPM) -> None:
        self.folder = folder
        self.own = folder / "pool.d/www.conf"
        self.drop_in = folder / "pool.d/zz-slackwater.conf"
        self.conf = folder / "php-fpm.conf"
        self.own.parent.mkdir()
        user, group = unprivileged_user()
        self.pool = (
            f"[www]\nuser = {user}\ngroup = {group}\nlisten = {folder}/php.sock\npm.status_path = /fpm-status\n{pool}"
        )
        self.own.write_text(self.pool)
        self.conf.write_text(
            f"[global]\npid = {folder}/php-fpm.pid\nerror_log = {folder}/php-fpm.log\ndaemonize = no\n"
            f"process_control_timeout = {patience}\ninclude={folder}/pool.d/*.conf\n"
        )
        (folder / "php.ini").write_text("")
        assert program is not None
        self.command = [program, "-c", str(folder / "php.ini")]
        self.process = subprocess.Popen(
            [*self.command, "-y", str(self.conf), "--nodaemonize"], start_new_session=True, stderr=subprocess.DEVNULL
        )
        wait_for((folder / "php.sock").exists, "php-fpm listens")
        pid = folder / "php-fpm.pid"
        wait_for(lambda: pid.exists() and pid.read_text(), "php-fpm says its process")

    def children(self) -> int:
        """Processes of the pool."""
        command = ["ps", "-ww", "--ppid", str(self.process.pid), "-o", "args="]
        done = subprocess.run(command, capture_output=True, text=True)
        return sum("pool www" in line for line in done.stdout.splitlines())

    def tested(self) -> dict[str, str]:
        """The pool's settings as php-fpm itself prints them."""
        done = subprocess.run([*self.command, "-tt", "-y", str(self.conf)], capture_output=True, text=True)
        return dict(re.findall(r"NOTICE:\s+(pm\.\w+) = (\S+)", done.stderr))

    def sections(self, **others: object) -> str:
        command = ", ".join(f'"{part}"' for part in self.command)
        settings = {
            "max_children": "[1, 32]",
            "command": f"[{command}]",
            "config": f'"{self.conf}"',
            "drop_in": f'"{self.drop_in}"',
            "reload_min_interval_s": 0.5,
        } | others
        return "[php_fpm]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
