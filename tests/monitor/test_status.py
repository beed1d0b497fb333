"""`slackwater-monitor` beside a real Apache and a real php-fpm: what their status pages say gets into the Sample."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_processes import free_port
from tests.support.sniffer_traffic import MODULES, program, running, wait_for

THREADS = 8
CHILDREN = 2


@dataclass(frozen=True)
class Site:
    """The folder with sockets and pages, and where Apache listens."""

    folder: Path
    port: int

    @property
    def apache_status(self) -> str:
        return f"http://127.0.0.1:{self.port}/server-status?auto"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=120) as answer:
            text: str = answer.read().decode()
            return text

    def measured(self, server: str, wanted: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The Sample of one period with these lines in the section `[server]`, the first that is as wanted.

        On a busy machine a page may not have answered within the period, and servers count themselves later.
        """
        (self.folder / "node.toml").write_text(
            f'node = "n1"\nperiod_s = 1.0\n[sniffer]\ninterface = ""\n[canary]\nenabled = false\n[server]\n{server}\n'
        )
        command = [program("slackwater-monitor"), "once", "--json", "--config", str(self.folder / "node.toml")]
        samples: list[dict[str, Any]] = []

        def is_wanted() -> bool:
            samples.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            print(samples[-1])  # where none is wanted, the last ones tell why
            return wanted(samples[-1])

        wait_for(is_wanted, "a Sample as it should be")
        return samples[-1]


def adds_up(sample: dict[str, Any]) -> bool:
    """Every worker and every process is counted."""
    server = sample.get("server", {})
    workers = server.get("apache_busy_workers", 0) + server.get("apache_idle_workers", 0)
    processes = server.get("php_active_processes", 0) + server.get("php_idle_processes", 0)
    return (workers, processes) == (THREADS, CHILDREN)


def is_full(sample: dict[str, Any]) -> bool:
    """All processes are at work, two requests wait for one; Apache has these requests, and the question itself."""
    server = sample.get("server", {})
    figures = [server.get(f"php_{name}") for name in ("active_processes", "idle_processes", "listen_queue")]
    return figures == [CHILDREN, 0, 2] and bool(server.get("apache_busy_workers", 0) >= CHILDREN + 2)


def asked_one_of_all(sample: dict[str, Any]) -> bool:
    """The process that answers is at work, the others are not."""
    server = sample.get("server", {})
    processes = (server.get("php_active_processes"), server.get("php_idle_processes"))
    return processes == (1, CHILDREN - 1)


def says(reason: str) -> Callable[[dict[str, Any]], bool]:
    """There is no server to be seen, for this reason."""
    return lambda sample: "server" not in sample and reason in sample["absent"]["server"]


def user_lines(form: str) -> str:
    """Who serves the pages: as root neither of the two would serve as root."""
    return form if os.geteuid() == 0 else ""


def apache(folder: Path, port: int, fpm_port: int) -> list[str]:
    modules = "mpm_event", "authz_core", "status", "proxy", "proxy_fcgi"
    (folder / "apache.conf").write_text(
        "".join(f'LoadModule {name}_module "{MODULES}/mod_{name}.so"\n' for name in modules)
        + f'ServerRoot "{folder}"\nServerName test\nListen 127.0.0.1:{port}\nPidFile "{folder}/pid"\n'
        f'ErrorLog "{folder}/log"\nDefaultRuntimeDir "{folder}"\nMutex pthread\nDocumentRoot "{folder}"\n'
        f"StartServers 1\nServerLimit 1\nThreadsPerChild {THREADS}\nMaxRequestWorkers {THREADS}\n"
        f'<Location "/server-status">\nSetHandler server-status\n</Location>\n'
        f'ProxyPass "/fpm" "fcgi://127.0.0.1:{fpm_port}/fpm"\n'
        f'ProxyPass "/wait.php" "fcgi://127.0.0.1:{fpm_port}{folder}/wait.php"\n'
        + user_lines("User nobody\nGroup nogroup\n")
    )
    return [program("apache2"), "-f", str(folder / "apache.conf"), "-DFOREGROUND"]


def fpm(folder: Path, port: int) -> list[str]:
    """Two pools: one on a port with a socket for its status alone, one on a socket that also gives the status."""
    user = user_lines("user = nobody\ngroup = nogroup\n")
    (folder / "fpm.conf").write_text(
        f"[global]\npid = {folder}/fpm.pid\nerror_log = {folder}/fpm.log\ndaemonize = no\n"
        f"[web]\nlisten = 127.0.0.1:{port}\npm = static\npm.max_children = {CHILDREN}\n"
        f"pm.status_path = /fpm\npm.status_listen = {folder}/status.sock\n{user}"
        f"[other]\nlisten = {folder}/php.sock\npm = static\npm.max_children = {CHILDREN}\n"
        f"pm.status_path = /fpm\n{user}"
    )
    return [program("php-fpm8.2"), "-n", "-y", str(folder / "fpm.conf"), "--nodaemonize"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory(prefix="slackwater-status-") as name:
        folder, port, fpm_port = Path(name), free_port(), free_port()
        folder.chmod(0o755)
        (folder / "wait.php").write_text(f'<?php while (!file_exists("{folder}/go")) usleep(5000); echo "done";\n')
        command = fpm(folder, fpm_port)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                sockets = [folder / name for name in ("php.sock", "status.sock")]
                wait_for(lambda: all(map(accepts, sockets)) or process.poll() is not None, "php-fpm")
                assert process.poll() is None, (folder / "fpm.log").read_text()
                with running(apache(folder, port, fpm_port), port):
                    yield Site(folder, port)
            finally:
                process.terminate()


def accepts(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(place)) == 0


def test_idle_servers_are_seen_through_their_own_pages(site: Site) -> None:
    settings = f'apache_status_url = "{site.apache_status}"\nphp_status = "unix:{site.folder}/status.sock:/fpm"'
    sample = site.measured(settings, adds_up)
    assert sample["server"]["php_listen_queue"] == 0
    assert sample["server"]["php_max_children_reached"] == 0
    assert not [name for name in sample["absent"] if name.startswith("server")]


def test_busy_workers_and_processes_are_counted_though_the_pool_is_full(site: Site) -> None:
    answers: list[str] = []
    requests = [threading.Thread(target=lambda: answers.append(site.get("/wait.php"))) for _ in range(CHILDREN + 2)]
    for request in requests:
        request.start()
    try:
        settings = f'apache_status_url = "{site.apache_status}"\nphp_status = "unix:{site.folder}/status.sock:/fpm"'
        site.measured(settings, is_full)
        # On the pool's own port nobody is left to answer.
        stuck = site.measured(f'php_status = "http://127.0.0.1:{site.port}/fpm?json"')
    finally:
        (site.folder / "go").touch()
        for request in requests:
            request.join()
    assert "server" not in stuck
    assert stuck["period_s"] < 30, "a page that never answers is not waited for"
    assert answers == ["done"] * len(requests)


def test_php_fpm_also_answers_through_apache_and_over_its_own_socket(site: Site) -> None:
    for page in (f"http://127.0.0.1:{site.port}/fpm?json", f"unix:{site.folder}/php.sock:/fpm"):
        sample = site.measured(f'php_status = "{page}"', asked_one_of_all)
        assert sample["absent"]["server.apache_busy_workers"] == "`server.apache_status_url` is not set"
        unknown = sample["absent"].get("server.php_listen_queue", "")
        assert unknown == ("php-fpm knows the queue of a TCP port only, not of a Unix socket" if "unix" in page else "")


def test_wrong_pages_have_a_reason(site: Site) -> None:
    for page, reason in (
        (f"http://127.0.0.1:{site.port}/nothing", "answered 404 Not Found"),
        (f"http://127.0.0.1:{site.port}/fpm", "the page is not php-fpm's status as JSON: it must end in ?json"),
        (f"unix:{site.folder}/php.sock:/nothing", "set `pm.status_path = /nothing` in the pool"),
        (f"unix:{site.folder}/none.sock", "none.sock: is not there"),
    ):
        site.measured(f'php_status = "{page}"', says(reason))
