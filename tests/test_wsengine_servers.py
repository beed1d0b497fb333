"""slackwater-wsengine turns a real Apache (event, worker, prefork), php-fpm and nginx, and puts them back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_processes import free_address
from real_wsengine import PROGRAM, Controller, Engine, Nats, end_group, make_keys, wait_for

from lab.paths import DEBIAN
from lab.webserver import unprivileged_user

APACHE, FPM, NGINX = (shutil.which(name) for name in ("apache2", "php-fpm8.2", "nginx"))
MODULES = DEBIAN / "usr/lib/apache2/modules"
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(None in (APACHE, FPM, NGINX), reason="apache2, php-fpm8.2 or nginx is not here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="php-fpm and Apache change their user: needs root"),
]
WORKERS, TIMEOUT, KEEPALIVE = "apache.max_request_workers", "apache.keepalive_timeout", "apache.keepalive"
CHILDREN = "php_fpm.max_children"


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


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    control = Control(tmp_path)
    yield control
    control.close()


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
            with urllib.request.urlopen(f"http://{self.address}/server-status?auto", timeout=2) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def number(self, name: str) -> int:
        return int((self.status() or {})[name])

    def keepalive_header(self) -> str:
        """What a response says of its connection."""
        import http.client

        connection = http.client.HTTPConnection(self.address, timeout=5)
        try:
            connection.request("GET", "/server-status?auto", headers={"Connection": "keep-alive"})
            answer = connection.getresponse()
            answer.read()
            return answer.getheader("Keep-Alive") or f"Connection: {answer.getheader('Connection')}"
        finally:
            connection.close()

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


@pytest.fixture
def apache(tmp_path: Path) -> Iterator[Callable[[str, str], Apache]]:
    started: list[Apache] = []

    def start(mpm: str, own: str) -> Apache:
        started.append(Apache(tmp_path, mpm, own))
        return started[-1]

    yield start
    for server in started:
        end_group(server.process)


EVENT = "ThreadsPerChild 5\nServerLimit 6\nMaxRequestWorkers 20\nMinSpareThreads 5\nMaxSpareThreads 10\n"


@pytest.mark.parametrize(
    ("mpm", "own", "asked", "effective", "why"),
    [
        ("event", EVENT, 12, 10, "12 is no multiple of ThreadsPerChild 5, so Apache takes 10"),
        ("worker", EVENT, 100, 30, "ServerLimit 6 times ThreadsPerChild 5 allows 30; raising it takes a full restart"),
        ("prefork", "MaxRequestWorkers 20\nServerLimit 40\n", 50, 40, "ServerLimit 40 allows 40; raising"),
    ],
)
def test_workers_become_what_apache_really_takes_and_go_back(
    control: Control, apache: Callable[[str, str], Apache], mpm: str, own: str, asked: int, effective: int, why: str
) -> None:
    server = apache(mpm, own)
    engine = control.engine(server.sections())
    change = control.controller.order(WORKERS, asked)
    assert (change.before, change.after, change.applied) == (20, effective, True), change.why
    assert why in change.why
    assert f"(asked for {asked})" in change.why
    assert "in effect since generation 1" in change.why
    assert server.number("ParentServerMPMGeneration") == 1
    assert f"MaxRequestWorkers {effective}" in server.drop_in.read_text()
    # Apache itself warns of what it would make of the number that was asked for, and of ours it does not.
    assert APACHE is not None
    asked_line = [APACHE, "-f", str(server.conf), "-t", "-c", f"MaxRequestWorkers {asked}"]
    assert "WARNING" in subprocess.run(asked_line, capture_output=True, text=True).stderr
    plain = subprocess.run([APACHE, "-f", str(server.conf), "-t"], capture_output=True, text=True)
    assert "MaxRequestWorkers" not in plain.stderr
    assert engine.end() == 0
    assert not server.drop_in.exists()
    wait_for(lambda: server.number("ParentServerMPMGeneration") == 2, "Apache has restarted")


def test_keepalive_of_a_running_apache_changes_and_goes_back(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT + "KeepAliveTimeout 3\n")
    engine = control.engine(server.sections())
    assert server.keepalive_header() == "timeout=3, max=100"
    change = control.controller.order(TIMEOUT, 15)
    assert (change.before, change.after) == (3, 15)
    wait_for(lambda: server.keepalive_header() == "timeout=15, max=100", "the timeout is in effect")
    change = control.controller.order(KEEPALIVE, "off")
    assert (change.before, change.after) == ("on", "off")
    wait_for(lambda: server.keepalive_header() == "Connection: close", "keep-alive is off")
    engine.end()
    wait_for(lambda: server.keepalive_header() == "timeout=3, max=100", "all is back")


def test_orders_that_come_together_are_one_graceful_restart(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    control.engine(server.sections(reload_min_interval_s=3.0))
    for knob, value in ((WORKERS, 10), (TIMEOUT, 20), (KEEPALIVE, "off")):
        control.controller.send(control.controller.make(knob, value))
    wait_for(lambda: len(control.controller.changes) == 3, "three Changes")
    assert all(change.applied for change in control.controller.changes)
    assert server.number("ParentServerMPMGeneration") == 1


def test_a_broken_site_configuration_is_never_reloaded_and_the_files_stay_as_they_were(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    engine = control.engine(server.sections())
    server.own.write_text(EVENT + "Nonsense on\n")
    change = control.controller.order(WORKERS, 10)
    assert change.why.startswith("refused: Apache's configuration does not pass its test")
    assert "Invalid command 'Nonsense'" in change.why
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 0
    # Broken while a lease is in force: on disk the baseline comes back at once, the restart when the site is mended.
    server.own.write_text(EVENT)
    control.controller.order(WORKERS, 10, lease_s=2.0)
    server.own.write_text(EVENT + "Nonsense on\n")
    said = control.controller.next(lambda change: change.why.startswith("not put back yet"), 0)
    assert "put back on disk, but Apache is not restarted" in said.why
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 1
    assert WORKERS in engine.leases()
    server.own.write_text(EVENT)
    control.back(WORKERS)
    assert server.number("ParentServerMPMGeneration") == 2
    assert server.process.poll() is None


def test_the_sites_own_new_value_wins(control: Control, apache: Callable[[str, str], Apache]) -> None:
    server = apache("event", EVENT)
    control.engine(server.sections())
    control.controller.order(WORKERS, 10)
    server.own.write_text(EVENT.replace("MaxRequestWorkers 20", "MaxRequestWorkers 25"))
    assert "the site's own MaxRequestWorkers is 25 now, it was 20: theirs holds" in control.back(WORKERS)
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 2  # so theirs is in effect
    change = control.controller.order(WORKERS, 10)
    assert "theirs holds" in change.why
    assert not change.applied


def test_a_drop_in_that_apache_does_not_include_or_that_is_overruled_is_refused(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    engine = control.engine(server.sections())
    main = server.conf.read_text()
    server.conf.write_text(main.replace("IncludeOptional", "# IncludeOptional"))
    assert "does not include" in control.controller.order(WORKERS, 10).why
    server.conf.write_text(main + "MaxRequestWorkers 15\n")
    overruled = control.controller.order(WORKERS, 10).why
    assert re.search(r"apache\.conf:\d+ sets MaxRequestWorkers after our \S+: include ours last", overruled)
    server.conf.write_text(main)
    server.drop_in.write_text("MaxRequestWorkers 15\n")
    assert "was written by somebody else; it is left alone" in control.controller.order(WORKERS, 10).why
    assert server.drop_in.read_text() == "MaxRequestWorkers 15\n"
    assert server.number("ParentServerMPMGeneration") == 0
    assert engine.leases() == {}


@pytest.mark.lab
@pytest.mark.parametrize("trouble", ["read-only", "full"])
def test_a_read_only_folder_and_a_full_disk_are_refused_in_words(
    control: Control, apache: Callable[[str, str], Apache], tmp_path: Path, trouble: str
) -> None:
    """The folder of the drop-in is a file system of its own."""
    place = tmp_path / "etc"
    place.mkdir()
    server = apache("event", EVENT)
    server.drop_in = place / "zz-slackwater.conf"
    server.conf.write_text(server.conf.read_text() + f'IncludeOptional "{server.drop_in}"\n')
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=10", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        if trouble == "full":
            with pytest.raises(OSError, match="No space left"):
                (place / "ballast").write_bytes(b"x" * 65536)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        control.engine(server.sections())
        change = control.controller.order(WORKERS, 10)
        words = {"full": "the disk is full", "read-only": "its file system is read-only"}
        assert change.why == f"refused: {server.drop_in} cannot be written: {words[trouble]}"
        assert [path.name for path in place.iterdir()] == (["ballast"] if trouble == "full" else [])
        assert server.number("ParentServerMPMGeneration") == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


class Fpm:
    """A php-fpm with a pool `www` in pool.d/www.conf."""

    def __init__(self, folder: Path, pool: str, patience: str = "10s") -> None:
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
        assert FPM is not None
        self.command = [FPM, "-c", str(folder / "php.ini")]
        self.process = subprocess.Popen(
            [*self.command, "-y", str(self.conf), "--nodaemonize"], start_new_session=True, stderr=subprocess.DEVNULL
        )
        wait_for((folder / "php.sock").exists, "php-fpm listens")
        wait_for(lambda: (folder / "php-fpm.pid").exists(), "php-fpm says its process")

    def children(self) -> int:
        """Processes of the pool."""
        done = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "args="], capture_output=True, text=True)
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


@pytest.fixture
def fpm(tmp_path: Path) -> Iterator[Callable[..., Fpm]]:
    started: list[Fpm] = []

    def start(pool: str, patience: str = "10s") -> Fpm:
        started.append(Fpm(tmp_path, pool, patience))
        return started[-1]

    yield start
    for server in started:
        end_group(server.process)


def test_children_of_a_static_pool_are_more_and_then_as_many_as_before(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    server = fpm("pm = static\npm.max_children = 2\n")
    wait_for(lambda: server.children() == 2, "two children")
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 6)
    assert (change.before, change.after, change.applied) == (2, 6, True), change.why
    assert "pm = static; 6 processes now by the status page /fpm-status" in change.why
    assert server.children() == 6
    engine.end(signal.SIGKILL)
    assert server.drop_in.exists()
    engine.start()
    assert "the last run did not end well" in control.back(CHILDREN)
    assert not server.drop_in.exists()
    wait_for(lambda: server.children() == 2, "two children")


def test_a_dynamic_pool_keeps_start_and_spare_servers_that_php_fpm_accepts(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    own = (
        "pm = dynamic\npm.max_children = 8\npm.start_servers = 4\npm.min_spare_servers = 3\npm.max_spare_servers = 5\n"
    )
    server = fpm(own)
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 2)
    assert (change.before, change.after) == (8, 2), change.why
    assert "with pm.start_servers = 2, pm.min_spare_servers = 2, pm.max_spare_servers = 2" in change.why
    tested = server.tested()
    names = ("pm.max_children", "pm.start_servers", "pm.min_spare_servers", "pm.max_spare_servers")
    assert [tested[name] for name in names] == ["2"] * 4
    assert control.controller.order(CHILDREN, 20).before == 2
    assert [server.tested()[name] for name in names] == ["20", "4", "3", "5"]
    engine.end()
    assert [server.tested()[name] for name in names] == ["8", "4", "3", "5"]


def test_an_ondemand_pool_is_turned_too(control: Control, fpm: Callable[..., Fpm]) -> None:
    server = fpm("pm = ondemand\npm.max_children = 2\npm.process_idle_timeout = 60s\n")
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 5)
    assert (change.before, change.after) == (2, 5), change.why
    assert "pm = ondemand" in change.why
    assert server.tested()["pm.max_children"] == "5"
    engine.end()
    assert server.tested()["pm.max_children"] == "2"


def test_php_fpm_that_would_cut_requests_or_is_broken_is_not_reloaded(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    server = fpm("pm = static\npm.max_children = 2\n", patience="0")
    wait_for(lambda: server.children() == 2, "two children")
    control.engine(server.sections())
    assert "process_control_timeout is 0: a reload would cut" in control.controller.order(CHILDREN, 6).why
    server.conf.write_text(server.conf.read_text().replace("timeout = 0", "timeout = 10s"))
    server.own.write_text(server.pool + "nonsense = 1\n")
    change = control.controller.order(CHILDREN, 6)
    assert "php-fpm's configuration does not pass its test" in change.why
    assert "unknown entry 'nonsense'" in change.why
    assert sorted(path.name for path in server.own.parent.iterdir()) == ["www.conf"]
    assert server.children() == 2


def test_the_sites_own_new_number_of_children_wins(control: Control, fpm: Callable[..., Fpm]) -> None:
    server = fpm("pm = static\npm.max_children = 2\n")
    control.engine(server.sections())
    control.controller.order(CHILDREN, 6)
    server.own.write_text(server.pool.replace("= 2", "= 3"))
    assert "the site's own pm.max_children is 3 now, it was 2: theirs holds" in control.back(CHILDREN)
    wait_for(lambda: server.children() == 3, "their three children")


def test_nginx_gets_more_workers_by_a_template_and_commands(control: Control, tmp_path: Path) -> None:
    """What any streaming server with such a setting needs: a template, a test, a reload, a way to see it."""
    assert NGINX is not None
    workers, conf, pid = tmp_path / "workers.conf", tmp_path / "nginx.conf", tmp_path / "nginx.pid"
    template = "worker_processes {value};"
    workers.write_text("worker_processes 1;\n")
    conf.write_text(
        f"include {workers};\npid {pid};\nerror_log {tmp_path}/nginx.log;\nevents {{ worker_connections 64; }}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
        f"fastcgi_temp_path {tmp_path}/fcgi; uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;\n"
        f"server {{ listen {free_address()}; }} }}\n"
    )
    command = [NGINX, "-p", str(tmp_path), "-e", str(tmp_path / "nginx.log"), "-c", str(conf)]
    count = (
        "import subprocess, sys; pid = open(sys.argv[1]).read().strip();"
        " out = subprocess.run(['ps', '--ppid', pid, '-o', 'args='], capture_output=True, text=True).stdout;"
        " print(out.count('worker process') - out.count('shutting down'))"
    )

    def argv(parts: list[str]) -> str:
        return "[" + ", ".join(f'"{part}"' for part in parts) + "]"

    sections = (
        f'[streaming]\nnum_threads = [1, 8]\nfile = "{workers}"\ntemplate = "{template}"\n'
        f"test = {argv([*command, '-t'])}\nreload = {argv([*command, '-s', 'reload'])}\n"
        f"read = {argv([sys.executable, '-c', count, str(pid)])}\nreload_min_interval_s = 0.5\n"
    )
    server = subprocess.Popen([*command, "-g", "daemon off;"], start_new_session=True)
    try:
        wait_for(lambda: pid.exists() and pid.read_text().strip(), "nginx runs")
        engine = control.engine(sections)
        change = control.controller.order("streaming.num_threads", 3)
        assert (change.before, change.after, change.applied) == (1, 3, True), change.why
        assert workers.read_text() == "worker_processes 3;\n"
        engine.end()
        assert workers.read_text() == "worker_processes 1;\n"
        read = [sys.executable, "-c", count, str(pid)]
        wait_for(
            lambda: subprocess.run(read, capture_output=True, text=True).stdout.strip() == "1", "one worker is left"
        )
    finally:
        end_group(server)
