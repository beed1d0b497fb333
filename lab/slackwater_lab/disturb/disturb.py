"""Disturbances that are no neighbour, done to the lab for real: one table. Loads are the generator's, not here.

Each request first runs a small prelude (PHP's `auto_prepend_file`), which asks a shared service, as a page asks its
database, and which a deploy makes dearer.
"""

from __future__ import annotations

import mmap
import signal
import struct
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from slackwater_lab.cluster import database
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.controller import start_monitor
from slackwater_lab.cluster.hosts import BRIDGE_ADDRESS, Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import DEBIAN, LAB_DIR, ROOT, program, system_program
from slackwater_lab.cluster.spawn import Program, Running, call, placed, wait_until
from slackwater_lab.cluster.webserver import php_ini

DATABASE_PORT = 14306
DEARER = 0.3
"""Share that a deploy adds to a request's CPU time."""
SLOWER = 8.0
"""A slow database answers after this multiple of a request's CPU time."""
BETWEEN_DEPLOYS_S = 0.3
"""Least time between the deploys of two hosts of a pool."""
NATIVE = Path(__file__).resolve().parent.parent / "native"
PACK, CLOCK_SOURCE = NATIVE / "pack.py", NATIVE / "clock.c"
DRAINED_S = 0.5
READY_S = 20.0
HASHES = 200_000
TIME_HASHES = """
$begin = getrusage();
for ($i = 0; $i < %d; $i++) { hash('sha256', 'slackwater'); }
$end = getrusage();
echo ($end['ru_utime.tv_sec'] - $begin['ru_utime.tv_sec'])
    + ($end['ru_utime.tv_usec'] - $begin['ru_utime.tv_usec']) / 1e6;
"""


def prelude(pool: str, hashes: int) -> str:
    """PHP code that each request runs first: a question to the shared service, and some arithmetic."""
    return f"""<?php
(function (): void {{
    $database = @pfsockopen('{BRIDGE_ADDRESS}', {DATABASE_PORT}, $number, $why, 2.0);
    if ($database) {{
        fwrite($database, "{pool}\\n");
        fgets($database);
    }}
    for ($i = 0; $i < {hashes}; $i++) {{
        hash('sha256', 'slackwater');
    }}
}})();
"""


class Clock:
    """The wall clock of one host's monitor: a file with its distance to the machine's."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(struct.pack("d", 0.0))
        self.file = file

    def step(self, offset_s: float) -> None:
        with self.file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as place:
            place[:] = struct.pack("d", offset_s)


class DisturbableCluster:
    """The lab with all that disturbances need: preludes, the shared service, monitors with a clock of their own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.cpu_s = 0.0
        """CPU time of a request in calm; the recorder measures it before anything is disturbed."""
        self._hash_s = float(call([program("php8.2"), "-n", "-r", TIME_HASHES % HASHES])) / HASHES
        self._shim = LAB_DIR / "clock.so"
        call([system_program("cc"), "-O2", "-shared", "-fPIC", "-o", str(self._shim), str(CLOCK_SOURCE), "-lm"])
        self._clocks = {host.name: Clock(LAB_DIR / f"{host.name}.clock") for host in lab.hosts}
        self.monitors: dict[str, Running] = {}
        argv = [sys.executable, "-m", "slackwater_lab.cluster.database", BRIDGE_ADDRESS, str(DATABASE_PORT)]
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'lab'}"}
        service = lab.add(Program.start("the shared service", lab.in_front(argv), LAB_DIR / "database.log", path))
        wait_until(self._answers, "the shared service", READY_S, watch=[service])
        for host in lab.hosts:
            prepended = f'auto_prepend_file = "{host.folder}/prelude.php"\n'
            lab.machines[host.name].write("php.ini", php_ini(host) + prepended)
        self.deploy(lab.hosts, 0.0)
        wait_until(self._all_serve, "pages after the first deploy", READY_S, watch=lab.programs)

    def _answers(self) -> bool:
        try:
            self.think(self.lab.hosts[0].pool, 0.0)
        except OSError:
            return False
        return True

    def _all_serve(self) -> bool:
        return all(self.serves(host) for host in self.lab.hosts)

    def serves(self, host: Host) -> bool:
        try:
            with urllib.request.urlopen(f"http://{host.address}{self.lab.app.paths[0]}", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def start_monitors(self) -> list[Running]:
        self.monitors = {host.name: self._start_monitor(host) for host in self.lab.hosts}
        return list(self.monitors.values())

    def _start_monitor(self, host: Host) -> Running:
        clock = self._clocks[host.name].file
        shim = {"LD_PRELOAD": str(self._shim), "SLACKWATER_LAB_CLOCK": str(clock)}
        return start_monitor(self.lab, host, shim if self.lab.settings.kind == "cgroup" else None)

    def step_clock(self, host: Host, ahead_s: float) -> None:
        """Sets the wall clock of a host's monitor so far ahead: that of the whole host where it has one of its own."""
        if self.lab.settings.kind == "cgroup":
            self._clocks[host.name].step(ahead_s)
        else:
            self.lab.machines[host.name].set_clock(ahead_s)

    def pool_of(self, host: Host | None) -> str:
        """The pool that is disturbed as a whole where one of its hosts is named; without a host it is the first one."""
        return (host or self.lab.hosts[0]).pool

    def think(self, pool: str, delay_s: float) -> None:
        """Sets the time that the shared service takes to answer a pool."""
        database.set_delay(BRIDGE_ADDRESS, DATABASE_PORT, pool, delay_s)

    def deploy(self, hosts: Sequence[Host], dearer: float) -> None:
        """Makes each request dearer by a share of its CPU time on these hosts, by a graceful reload as deploys do."""
        hashes = round(dearer * self.cpu_s / self._hash_s)
        for host in hosts:
            self.lab.machines[host.name].write("prelude.php", prelude(host.pool, hashes))
            self.php(host).signal(signal.SIGUSR2)

    def deploy_in_turn(self, host: Host | None, dearer: float) -> None:
        """The same on a host's pool, each host once the one before serves again, as deploys do. All at once would load
        this machine as no deploy loads a site whose hosts have machines of their own."""
        for member in [member for member in self.lab.hosts if member.pool == self.pool_of(host)]:
            self.deploy([member], dearer)
            threading.Event().wait(BETWEEN_DEPLOYS_S)
            wait_until(partial(self.serves, member), f"pages of {member.name} after its deploy", READY_S)

    def back_up(self, host: Host) -> Running:
        """A job of the host's own that packs what there is to pack, again and again, at the priority of a backup."""
        words = ["nice", "-n", "10", sys.executable, "-I", "-S", str(PACK), str(DEBIAN / "usr/lib/apache2")]
        if self.lab.settings.kind == "cgroup":
            words = placed(words, self.lab.cgroups.procs_files(host.jobs))
        return self.lab.add(self.lab.machines[host.name].start("backup", words, "backup.log"))

    def end_backup(self, job: Running) -> None:
        self.lab.programs.remove(job)
        job.stop()

    def php(self, host: Host) -> Running:
        return self._program(f"php-fpm8.2 of {host.name}")

    def apache(self, host: Host) -> Running:
        return self._program(f"apache2 of {host.name}")

    def _program(self, name: str) -> Running:
        return next(running for running in self.lab.programs if running.name == name)

    def restart(self, host: Host) -> None:
        """Takes a host out of the balance, starts its web server and monitor anew, and puts it back."""
        balancer = self.lab.balancer
        balancer.set_weight(host.name, 0)
        threading.Event().wait(DRAINED_S)
        # No host has one while the balancer's view is all there is.
        monitor = self.monitors.pop(host.name) if self.monitors else None
        for running in (monitor, self.apache(host), self.php(host)):
            if running is not None:
                self.lab.programs.remove(running)
                running.stop()
        self.lab.start_web_server(host)
        if monitor is not None:
            self.monitors[host.name] = self._start_monitor(host)
        wait_until(lambda: self.serves(host), f"pages of {host.name} after its restart", READY_S)
        balancer.set_weight(host.name, BASE_WEIGHT)


@contextmanager
def _deploy(site: DisturbableCluster, host: Host | None, _size: float) -> Iterator[None]:
    site.deploy_in_turn(host, DEARER)
    yield
    site.deploy_in_turn(host, 0.0)


@contextmanager
def _slow_database(site: DisturbableCluster, host: Host | None, _size: float) -> Iterator[None]:
    site.think(site.pool_of(host), SLOWER * site.cpu_s)
    yield
    site.think(site.pool_of(host), 0.0)


@contextmanager
def _reload(site: DisturbableCluster, host: Host | None, _size: float) -> Iterator[None]:
    assert host is not None
    site.php(host).signal(signal.SIGUSR2)
    site.apache(host).signal(signal.SIGUSR1)
    yield


@contextmanager
def _start(site: DisturbableCluster, host: Host | None, _size: float) -> Iterator[None]:
    assert host is not None
    site.restart(host)
    yield


@contextmanager
def _clock_step(site: DisturbableCluster, host: Host | None, size: float) -> Iterator[None]:
    assert host is not None
    site.step_clock(host, size)
    yield
    site.step_clock(host, 0.0)


@contextmanager
def _own_backup(site: DisturbableCluster, host: Host | None, _size: float) -> Iterator[None]:
    assert host is not None
    job = site.back_up(host)
    yield
    site.end_backup(job)


# Some of them take a while to begin and to end: `slackwater_lab.disturb.turn` has them done in a thread, while the load
# goes on.
DISTURBERS: Mapping[str, Callable[[DisturbableCluster, Host | None, float], AbstractContextManager[None]]] = {
    "deploy": _deploy,
    "slow_database": _slow_database,
    "reload": _reload,
    "start": _start,
    "clock_step": _clock_step,
    "own_backup": _own_backup,
}
