"""`cpu.policy` on a real cgroup: applications' events, the wait for a core, and the way back however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.real_cgroup import Guest, needs_cgroups
from tests.support.real_servers import Control
from tests.support.real_wsengine import wait_for

pytestmark = needs_cgroups
KNOB = "cpu.policy"
HURRY_UP = "hurry-up lever=cpu.quota clocks=20,40,60 cores=1 period_ms=50 after_ms=200"
PARETO = "pareto lever=cpu.quota clocks=20,40 cores=1 period_ms=100 up_delay_us=2000 fewest=1"
EXAMPLES = ROOT / "wsengine/examples"
PHP, JAVAC, JAVA = (shutil.which(name) for name in ("php8.2", "javac", "java"))
PHP_PROGRAM = """<?php
require $argv[1];
$answer = slackwater_hot('render', function () {
    echo "inside\\n";
    return trim(fgets(STDIN));
}, $argv[2]);
echo "$answer\\n";
fgets(STDIN);
"""
JAVA_PROGRAM = """
import java.nio.file.Path;
import java.util.Scanner;

public final class Program {
    public static void main(String[] words) throws Exception {
        Scanner input = new Scanner(System.in);
        Thread worker = new Thread(() -> {
            try {
                System.out.println(new HotFunction(Path.of(words[0])).call("render", () -> {
                    System.out.println("inside");
                    return input.nextLine();
                }));
            } catch (Exception error) {
                System.out.println(error);
            }
        });
        worker.start();
        worker.join();
        input.nextLine();
    }
}
"""


class Site(Control):
    """A host's cgroup without a quota, its wsengine, and its controller."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.socket = folder / "events"
        self.guest = Guest(f"slackwater-test-policy-{os.getpid()}", quota_cores=None)
        self.wsengine = self.engine(
            f'[cpu]\ncgroup = "{self.guest.name}"\nquota = [10, 100]\npolicy = ["hurry-up", "pareto"]\n'
            f'events_socket = "{self.socket}"\n'
        )

    def close(self) -> None:
        super().close()
        self.guest.close()

    def becomes(self, percent: int | None) -> None:
        wait_for(lambda: self.guest.quota_percent() == percent, f"the quota is {percent}%")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def follows(site: Site, command: list[str]) -> None:
    """An application that waits in its hot function, leaves it, and ends."""
    assert site.controller.order(KNOB, HURRY_UP).applied
    site.becomes(20)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as application:
        assert application.stdin is not None
        assert application.stdout is not None
        try:
            assert application.stdout.readline() == "inside\n"
            site.becomes(60)
            application.stdin.write("done\n")
            assert application.stdout.readline() == "done\n"
            site.becomes(20)
        finally:
            application.kill()
    assert site.wsengine.end() == 0
    assert site.guest.quota_percent() is None
    assert "2 lines were accepted, 0 ignored" in site.wsengine.log_text()


@pytest.mark.skipif(PHP is None, reason="no PHP here")
def test_a_function_in_php_gets_the_high_state_while_it_runs(site: Site) -> None:
    program = site.folder / "program.php"
    program.write_text(PHP_PROGRAM)
    follows(site, [str(PHP), str(program), str(EXAMPLES / "hot_function.php"), str(site.socket)])


@pytest.mark.skipif(JAVAC is None or JAVA is None, reason="no Java here")
def test_a_thread_in_java_gets_the_high_state_while_its_function_runs(site: Site) -> None:
    program = site.folder / "Program.java"
    program.write_text(JAVA_PROGRAM)
    subprocess.run(
        [str(JAVAC), "-d", str(site.folder), str(program), str(EXAMPLES / "HotFunction.java")], check=True, timeout=120
    )
    follows(site, [str(JAVA), "-cp", str(site.folder), "Program", str(site.socket)])


def test_an_application_that_is_killed_is_in_no_function(site: Site) -> None:
    assert site.controller.order(KNOB, HURRY_UP).applied
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as application:
        application.connect(str(site.socket))
        application.sendall(b"begin f\n")
        site.becomes(60)
    site.becomes(20)


def test_a_lease_that_is_not_renewed_ends_the_policy(site: Site) -> None:
    before = len(site.controller.changes)
    assert site.controller.order(KNOB, HURRY_UP, lease_s=2.0).applied
    change = site.controller.next(lambda change: change.cause == "lease_ended", before, "the lease ends")
    assert (change.what, change.after, change.applied) == (KNOB, "off", True)
    assert site.guest.quota_percent() is None
    assert not site.socket.exists()


def test_the_controllers_word_ends_it_and_other_knobs_of_these_files_wait(site: Site) -> None:
    assert site.controller.order(KNOB, HURRY_UP).applied
    refused = site.controller.order("cpu.quota", 50)
    assert not refused.applied
    assert "`cpu.policy` is set, which writes the same files" in refused.why
    back = site.controller.order(KNOB, "baseline")
    assert (back.cause, back.after) == ("given_back", "off")
    assert site.guest.quota_percent() is None


def test_what_a_killed_wsengine_has_set_is_put_back_by_its_next_start(site: Site) -> None:
    assert site.controller.order(KNOB, HURRY_UP).applied
    site.wsengine.end(signal.SIGKILL)
    assert site.guest.quota_percent() == 20
    site.wsengine.start()
    site.becomes(None)


def test_somebody_elses_quota_ends_it_and_stays(site: Site) -> None:
    before = len(site.controller.changes)
    assert site.controller.order(KNOB, HURRY_UP).applied
    site.guest.set_quota_percent(35)
    site.controller.next(lambda change: change.cause == "someone_else", before, "the lease ends")
    assert site.guest.quota_percent() == 35


def test_pareto_takes_from_who_is_idle_and_gives_to_who_waits(site: Site) -> None:
    assert site.controller.order(KNOB, PARETO).applied
    site.becomes(20)
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        for place in site.guest.cgroups.procs_files(site.guest.name):
            Path(place).write_text(str(busy.pid))
        site.becomes(40)
    finally:
        busy.kill()
        busy.wait()
    assert site.controller.order(KNOB, "baseline").cause == "given_back"
    assert site.guest.quota_percent() is None
