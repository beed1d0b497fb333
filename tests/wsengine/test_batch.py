"""`batch.running` and `batch.cores` on a real cgroup with a job in it: what the kernel does, and the way back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_cgroup import Guest, needs_cgroups, remove
from tests.support.real_servers import Control
from tests.support.real_wsengine import wait_for

pytestmark = needs_cgroups
FREEZER = Path("/sys/fs/cgroup/freezer")
RUNNING, CORES = "batch.running", "batch.cores"


class Batch(Guest):
    """A cgroup with a job that answers each line, while it runs."""

    def __init__(self, name: str) -> None:
        super().__init__(name, quota_cores=None)
        self.freezer = self.cpu
        if self.cgroups.version == 1:
            self.freezer = FREEZER / name
            self.freezer.mkdir()
        job = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert job.stdin is not None
        assert job.stdout is not None
        os.set_blocking(job.stdout.fileno(), False)
        self.job, self._to_job, self._from_job = job, job.stdin, job.stdout
        (self.freezer / "cgroup.procs").write_text(str(job.pid))

    def stands_still(self) -> bool:
        """Whether the kernel says that it stands still."""
        if self.cgroups.version == 1:
            return (self.freezer / "freezer.state").read_text() == "FROZEN\n"
        return "frozen 1" in (self.freezer / "cgroup.events").read_text()

    def ask(self) -> None:
        self._to_job.write(b"line\n")

    def answers(self) -> bytes | None:
        """None: nothing yet."""
        return self._from_job.read(5)

    def let_run(self) -> None:
        """Lets the job run, as an operator does."""
        name, text = ("freezer.state", "THAWED") if self.cgroups.version == 1 else ("cgroup.freeze", "0")
        (self.freezer / name).write_text(text)

    def close(self) -> None:
        self.let_run()
        self.job.kill()
        self.job.communicate()
        if self.freezer != self.cpu:
            remove(self.freezer)
        super().close()


class Site(Control):
    """A web server's cgroup and that of its batch jobs, with wsengine and controller."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.web = Guest(f"slackwater-test-web-{os.getpid()}", quota_cores=None)
        self.batch = Batch(f"slackwater-test-batch-{os.getpid()}")
        self.wsengine = self.engine(
            f'[cpu]\ncgroup = "{self.web.name}"\ncores = [1, 64]\nprocesses = ["no-such-server"]\n'
            f'[batch]\ncgroup = "{self.batch.name}"\ncores = [1, 64]\nrunning = ["on", "off"]\n'
        )

    def close(self) -> None:
        super().close()
        self.batch.close()
        self.web.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if not (FREEZER.is_dir() or Path("/sys/fs/cgroup/cgroup.controllers").exists()):
        pytest.skip("no freezer here")
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_job_stands_still_for_a_lease_and_loses_nothing(site: Site) -> None:
    site.batch.ask()
    assert wait_for(site.batch.answers, "the job answers") == b"line\n"
    before = len(site.controller.changes)
    change = site.controller.order(RUNNING, "off", lease_s=3.0)
    assert (change.before, change.after, change.applied) == ("on", "off", True), change.why
    assert f"cgroup {site.batch.name} stands still" in change.why
    assert site.batch.stands_still()
    site.batch.ask()
    assert site.batch.answers() is None
    back = site.controller.next(lambda change: change.cause == "lease_ended", before, "the lease ends")
    assert (back.what, back.after, back.applied) == (RUNNING, "on", True)
    assert wait_for(site.batch.answers, "the job answers what it was asked meanwhile") == b"line\n"
    assert not site.batch.stands_still()


def test_a_killed_wsengines_jobs_run_again_at_its_next_start(site: Site) -> None:
    assert site.controller.order(RUNNING, "off").applied
    site.wsengine.end(signal.SIGKILL)
    assert site.batch.stands_still()
    site.wsengine.start()
    wait_for(lambda: not site.batch.stands_still(), "the job runs")


def test_an_operator_who_lets_them_run_has_the_last_word(site: Site) -> None:
    before = len(site.controller.changes)
    assert site.controller.order(RUNNING, "off").applied
    site.batch.let_run()
    ended = site.controller.next(lambda change: change.cause == "someone_else", before, "the lease ends")
    assert f"somebody else set cgroup {site.batch.name} to on" in ended.why
    assert not site.batch.stands_still()


def test_a_cgroup_with_a_process_of_the_web_server_in_it_is_refused(tmp_path: Path, site: Site) -> None:
    config = next(tmp_path.glob("*.toml"))
    config.write_text(config.read_text().replace("no-such-server", "cat"))
    assert site.wsengine.end() == 0
    site.wsengine.start()
    refused = site.controller.order(RUNNING, "off")
    assert not refused.applied
    assert f"process {site.batch.job.pid} of the web server is in it" in refused.why
    assert not site.batch.stands_still()


def test_web_server_and_batch_jobs_get_cores_from_either_end(site: Site) -> None:
    if site.batch.cpuset is None or site.batch.cores() < 2:
        pytest.skip("no cpuset controller, or one core only")
    everything = os.sched_getaffinity(site.batch.process.pid)
    change = site.controller.order(CORES, 1)
    assert (change.before, change.after, change.applied) == (len(everything), 1, True), change.why
    assert site.controller.order("cpu.cores", 1).applied
    assert os.sched_getaffinity(site.batch.process.pid) == {max(everything)}
    assert os.sched_getaffinity(site.web.process.pid) == {min(everything)}
    assert not site.controller.order(CORES, 0).applied, "the node's own limits hold"
    assert site.wsengine.end() == 0
    assert os.sched_getaffinity(site.batch.process.pid) == everything
