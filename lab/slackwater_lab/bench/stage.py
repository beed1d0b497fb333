"""Where the benchmark runs: two network namespaces of its own and a veth pair, a real server and a load generator.

Everything is made here and taken away again, also after an error; nothing of the machine's own network is touched.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackwater_lab.bench.harness import Usage
from slackwater_lab.cluster.paths import LabError, program, system_program
from slackwater_lab.cluster.spawn import call, wait_until
from slackwater_lab.cluster.webserver import apache_command, fpm_command, unprivileged_user, write_configuration

SERVER_ADDRESS = "10.231.7.1"
CLIENT_ADDRESS = "10.231.7.2"
DEADLINE_S = 900
START_WITHIN_S = 20.0
CHILDREN = 32
"""Children of php-fpm."""


@dataclass
class Running:
    """A process in the background."""

    process: subprocess.Popen[str]

    def stop(self, by: signal.Signals = signal.SIGTERM) -> Usage:
        """Ends it and says what it used; `wall_s` is zero: nobody measured when it began to work."""
        self.process.send_signal(by)
        return self.wait()

    def wait(self) -> Usage:
        text = self.process.stdout.read() if self.process.stdout else ""
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return Usage(0.0, usage.ru_utime + usage.ru_stime, text)


def ip(*words: str) -> None:
    call([system_program("ip"), *words])


@dataclass
class Stage:
    """The namespaces `server` and `client`, joined by `eth0`, and `wire0` to `wire1` for replays."""

    folder: Path
    name: str = field(default_factory=lambda: f"swbench{os.getpid()}")

    @property
    def server(self) -> str:
        return f"{self.name}s"

    @property
    def client(self) -> str:
        return f"{self.name}c"

    @property
    def errors(self) -> Path:
        """What the programs logged."""
        return self.folder / "errors.log"

    def inside(self, namespace: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", namespace, *command]

    def start(self, namespace: str, *command: str, keep_output: bool = False) -> Running:
        sink = subprocess.PIPE if keep_output else subprocess.DEVNULL
        with self.errors.open("a") as errors:
            process = subprocess.Popen(
                self.inside(namespace, *command), stdin=subprocess.DEVNULL, stdout=sink, stderr=errors, text=True
            )
        return Running(process)


def make_network(stage: Stage) -> None:
    for namespace in (stage.server, stage.client):
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
    ends = {stage.server: ("eth0", "wire1", SERVER_ADDRESS), stage.client: ("eth0", "wire0", CLIENT_ADDRESS)}
    ip("-n", stage.server, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", stage.client)
    ip("-n", stage.server, "link", "add", "wire1", "type", "veth", "peer", "name", "wire0", "netns", stage.client)
    for namespace, (pair, wire, address) in ends.items():
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", pair)
        ip("-n", namespace, "link", "set", pair, "up")
        ip("-n", namespace, "link", "set", wire, "arp", "off")
        ip("-n", namespace, "link", "set", wire, "up")
        # Many short connections in a row would otherwise run out of ports.
        for setting in ("net.ipv4.tcp_tw_reuse=1", "net.ipv4.ip_local_port_range=1024 65000"):
            subprocess.run(stage.inside(namespace, "sysctl", "-qw", setting), check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """Makes the network; takes it away at the end, with every process that is still in it."""
    if os.geteuid() != 0:
        raise LabError("network namespaces and captures need root")
    site = Stage(folder)
    try:
        make_network(site)
        yield site
    finally:
        for namespace in (site.server, site.client):
            pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            for pid in pids.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


# A page as an application makes it: it computes a little and waits for others, each time differently long.
PAGE = """\
<?php
$until = hrtime(true) + mt_rand(1, 3) * 1000000;
for ($text = ''; hrtime(true) < $until;) { $text = md5($text . 'x'); }
usleep(mt_rand(10000, 90000));
echo str_repeat($text, 100);
"""


@dataclass(frozen=True)
class Place:
    """Where the web server is, as `slackwater_lab.cluster.webserver` wants it."""

    folder: Path
    name: str = "bench"
    address: str = SERVER_ADDRESS


def write_site(place: Place) -> None:
    (place.folder / "pages").mkdir()
    (place.folder / "pages/page.html").write_text("<p>" + "A page of a kilobyte. " * 45 + "</p>\n")
    (place.folder / "pages/page.php").write_text(PAGE)
    write_configuration(place, place.folder / "pages", CHILDREN, "event")
    for path in (place.folder, *place.folder.rglob("*")):
        shutil.chown(path, *unprivileged_user())


def start_server(site: Stage) -> None:
    """Starts Apache and php-fpm, and waits until the page of each is there."""
    place = Place(site.folder)
    write_site(place)
    site.start(site.server, *apache_command(place, program("apache2")))
    site.start(site.server, *fpm_command(place, program("php-fpm8.2")))
    for page in ("page.html", "page.php"):
        answers = functools.partial(is_ok, site, page)
        wait_until(answers, f"Apache serves {page}: see {site.folder}/apache-error.log", START_WITHIN_S)


def is_ok(site: Stage, page: str) -> bool:
    return bool(oha(site, page, "-n", "1").get("statusCodeDistribution", {}).get("200"))


def pin(site: Stage, core: int) -> None:
    """Keeps the servers to one core, with all their threads."""
    pids = subprocess.run(["ip", "netns", "pids", site.server], capture_output=True, text=True)
    for pid in pids.stdout.split():
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {core})


def oha(site: Stage, page: str, *options: str, core: int | None = None) -> dict[str, Any]:
    """Runs the load generator to its end, on one core if one is given, and returns its own figures."""
    url = f"http://{SERVER_ADDRESS}/{page}"
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, program("oha"), "--no-tui", "--output-format", "json", *options, url]
    done = subprocess.run(
        site.inside(site.client, *command), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S
    )
    try:
        figures: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise LabError(f"oha failed: {done.stderr.strip()}") from None
    return figures
