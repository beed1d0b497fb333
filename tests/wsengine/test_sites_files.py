"""Files of real sites: slackwater-wsengine reads them as php-fpm and Apache do, because it asks these."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_processes import free_port
from tests.support.real_servers import APACHE, CHILDREN, FPM, MODULES, WORKERS, needs_servers
from tests.support.real_wsengine import make_keys, wait_for

pytestmark = [*needs_servers, pytest.mark.lab]
GLOBAL = "[global]\npid = @D@/php-fpm.pid\nerror_log = @D@/php-fpm.log\ndaemonize = no\nprocess_control_timeout = 10s\n"
WHO = "user = nobody\ngroup = nogroup\n"
STATIC = f"{WHO}listen = @D@/fpm.sock\npm = static\npm.max_children = 4\npm.status_path = /status\n"
DYNAMIC = "pm = dynamic\npm.start_servers = 2\npm.min_spare_servers = 1\npm.max_spare_servers = 3\n"
IN_TIME_S = 60.0


class Site:
    """Files in a folder, and wsengine's settings beside them."""

    def __init__(self, folder: Path, command: list[str], pool: str = "www", main: str = "php-fpm.conf") -> None:
        self.folder, self.environment = folder, dict(os.environ)
        self.command = command
        self.main = folder / main
        self.settings = folder / "wsengine.toml"
        make_keys(folder)
        key = next(folder.glob("*.pub"))
        self.settings.write_text(
            f'node = "n1"\nstate_dir = "{folder}/state"\n[bus]\nurl = "nats://127.0.0.1:{free_port()}"\n'
            f'[orders]\npublic_key = "{key}"\n[php_fpm]\nmax_children = [1, 32]\npool = "{pool}"\n'
            f'command = {json.dumps(command)}\nconfig = "{self.main}"\n'
            f'drop_in = "{folder}/pool.d/zz-slackwater.conf"\nreload_min_interval_s = 0.1\n'
        )

    def write(self, **files: str) -> None:
        (self.folder / "pool.d").mkdir(exist_ok=True)
        for name, text in files.items():
            path = self.main if name == "main" else self.folder / f"pool.d/{name}.conf"
            path.write_bytes(text.replace("@D@", str(self.folder)).encode("latin-1"))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        process = subprocess.Popen([*self.command, "-y", str(self.main), "--nodaemonize"], env=self.environment)
        try:
            wait_for(lambda: (self.folder / "php-fpm.pid").exists(), "a running php-fpm")
            yield
        finally:
            process.terminate()
            process.wait(IN_TIME_S)

    def wsengine(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["slackwater-wsengine", arguments[0], "--config", str(self.settings), *arguments[1:]]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=IN_TIME_S, check=False
        )

    def knob(self, name: str = CHILDREN) -> dict[str, Any]:
        rows = json.loads(self.wsengine("check", "--json").stdout)["checks"]
        return next(row for row in rows if row["name"] == name)


def fpm(folder: Path, *options: str, pool: str = "www") -> Site:
    return Site(folder, [str(FPM), "-n", *options], pool)


def tries_five(site: Site) -> None:
    """Five children for a moment, and back: with the drop-in file in place the site's own value is still known."""
    own = site.knob()["value"]
    tried = site.wsengine("try", CHILDREN, "5", "--seconds", "2")
    assert tried.returncode == 0, tried
    assert site.knob()["value"] == own
    assert not (site.folder / "pool.d/zz-slackwater.conf").exists()


def test_the_pools_name_stands_for_itself(tmp_path: Path) -> None:
    site = fpm(tmp_path, pool="shop")
    pool = f"[shop]\n{WHO}listen = @D@/fpm-$pool.sock\n{DYNAMIC}pm.max_children = 8\npm.status_path = /$pool/status\n"
    site.write(main=f"{GLOBAL}include=@D@/pool.d/*.conf\n", shop=pool)
    with site.running():
        knob = site.knob()
        assert knob["value"] == 8
        assert knob["how"] == "8 (pm = dynamic; 2 processes now by the status page /shop/status)"
        tries_five(site)


def test_the_environment_is_filled_in_and_what_is_missing_of_it_is_named(tmp_path: Path) -> None:
    site = fpm(tmp_path)
    pool = STATIC.replace("= 4", "= ${FPM_CHILDREN}")
    site.write(main=f"{GLOBAL}include=@D@/pool.d/*.conf\n", www=f"[www]\n{pool}")
    site.environment["FPM_CHILDREN"] = "4"
    with site.running():
        assert site.knob()["value"] == 4
        tries_five(site)
        del site.environment["FPM_CHILDREN"]
        assert "environment variables that are not set here (FPM_CHILDREN)" in site.knob()["why"]


def test_includes_are_relative_to_the_prefix(tmp_path: Path) -> None:
    site = fpm(tmp_path, "-p", str(tmp_path))
    site.write(main=f"{GLOBAL}include=pool.d/*.conf\n", www=f"[www]\n{STATIC}")
    with site.running():
        assert site.knob()["value"] == 4
        tries_five(site)


@pytest.mark.parametrize(
    ("main", "pools"),
    [
        ('include = "@D@/pool.d/*.conf" ; all pools', {"www": f"[www]\n{STATIC}"}),
        ("include=@D@/pool.d/w*.conf\ninclude=@D@/pool.d/z*.conf", {"www": f"[www]\n{STATIC}"}),
        ("include=@D@/pool.d/*.conf", {"www": f"; M\xfcller's\n[www]\n{STATIC}"}),
        (
            "include=@D@/pool.d/*.conf",
            {"www": f"[www]\n{STATIC.replace('= 4', '= 9')}", "x": "[www]\npm.max_children = 4\n"},
        ),
        ("include=@D@/pool.d/*.conf", {"www": f"[www]\n{STATIC.replace('= 4', chr(61) + chr(34) + '4' + chr(34))}"}),
        ("include=@D@/pool.d/*.conf", {"www": f"[www]\nprefix = @D@\n{STATIC.replace('@D@/fpm.sock', 'fpm.sock')}"}),
        (
            "log_level = error\ninclude=@D@/pool.d/*.conf",
            {"www": f"[www]\n{STATIC}php_admin_value[memory_limit] = 9M\n"},
        ),
    ],
    ids=[
        "quoted",
        "two includes",
        "latin-1",
        "a later value",
        "a quoted number",
        "a prefix of the pool",
        "a quiet log",
    ],
)
def test_each_way_to_write_it_is_read_as_php_fpm_reads_it(tmp_path: Path, main: str, pools: dict[str, str]) -> None:
    site = fpm(tmp_path)
    site.write(main=f"{GLOBAL}{main}\n", **pools)
    with site.running():
        knob = site.knob()
        assert knob["usable"], knob
        assert (knob["value"], knob["how"]) == (4, "4 (pm = static; 4 processes now by the status page /status)")
        log = (tmp_path / "php-fpm.log").read_text()
        assert "test is successful" not in log, "the site's log is left alone"
        tries_five(site)


def begun(listen: Path) -> socket.socket:
    """A connection with the beginning of a FastCGI request: the child that takes it waits for the rest."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(listen))
    connection.sendall(b"\1\1\0\1\0\x08\0\0" + b"\0\1" + bytes(6))
    return connection


def test_a_pool_whose_children_are_all_busy_is_counted_in_the_process_table(tmp_path: Path) -> None:
    """A child would serve the status page, and a full pool is the one that needs more children."""
    site = fpm(tmp_path)
    site.write(main=f"{GLOBAL}include=@D@/pool.d/*.conf\n", www=f"[www]\n{STATIC}".replace("= 4", "= 2"))
    with site.running(), contextlib.ExitStack() as requests:
        for _ in range(2):
            requests.enter_context(begun(tmp_path / "fpm.sock"))
        table = f"process table (no status page /status: {tmp_path}/fpm.sock: no answer within 2 s)"
        wait_for(lambda: table in site.knob().get("how", ""), "two busy children")
        knob = site.knob()
        assert (knob["value"], knob["how"]) == (2, f"2 (pm = static; 2 processes now by the {table})")
        tried = site.wsengine("try", CHILDREN, "5", "--seconds", "2")
        assert tried.returncode == 0, tried


def test_without_a_pid_file_the_master_is_found_by_its_title(tmp_path: Path) -> None:
    site = fpm(tmp_path)
    site.write(
        main=f"{GLOBAL}include=@D@/pool.d/*.conf\n".replace("pid = @D@/php-fpm.pid\n", ""), www=f"[www]\n{STATIC}"
    )
    process = subprocess.Popen([*site.command, "-y", str(site.main), "--nodaemonize"])
    try:
        wait_for(lambda: (tmp_path / "fpm.sock").exists(), "a running php-fpm")
        wait_for(lambda: site.knob()["usable"], "a usable knob")
        tries_five(site)
    finally:
        process.terminate()
        process.wait(IN_TIME_S)
    assert "php-fpm does not run: " in site.knob()["why"]


def test_a_dump_of_apache_that_is_large_is_read_whole(tmp_path: Path) -> None:
    port = free_port()
    modules = "".join(
        f'LoadModule {name}_module "{MODULES}/mod_{name}.so"\n' for name in ("mpm_event", "authz_core", "status")
    )
    host = f"<VirtualHost 127.0.0.1:{port}>\nServerAdmin {'x' * 4000}@site.test\n</VirtualHost>\n"
    conf = tmp_path / "apache.conf"
    conf.write_text(
        f'ServerRoot "{tmp_path}"\nServerName site.test\nListen 127.0.0.1:{port}\nUser nobody\nGroup nogroup\n{modules}'
        f'PidFile "{tmp_path}/apache.pid"\nErrorLog "{tmp_path}/error.log"\nDefaultRuntimeDir "{tmp_path}"\n'
        "Mutex pthread\nMaxRequestWorkers 50\n<Location /server-status>\nSetHandler server-status\n</Location>\n"
        f"{host * 1500}"
    )
    make_keys(tmp_path)
    settings = tmp_path / "wsengine.toml"
    settings.write_text(
        f'node = "n1"\nstate_dir = "{tmp_path}/state"\n[orders]\npublic_key = "{next(tmp_path.glob("*.pub"))}"\n'
        f'[apache]\nmax_request_workers = [1, 1000]\ncommand = ["{APACHE}", "-f", "{conf}"]\n'
        f'drop_in = "{tmp_path}/zz-slackwater.conf"\ninfo_module = "{MODULES}/mod_info.so"\n'
        f'status_url = "http://127.0.0.1:{port}/server-status?auto"\n'
    )
    server = subprocess.Popen([str(APACHE), "-f", str(conf), "-DFOREGROUND"])
    try:
        wait_for(lambda: (tmp_path / "apache.pid").exists(), "a running Apache")
        command = ["slackwater-wsengine", "check", "--json", "--config", str(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S, check=False)
        rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
        assert rows[WORKERS]["value"] == 50, rows
    finally:
        server.terminate()
        server.wait(IN_TIME_S)
