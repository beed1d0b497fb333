"""`slackwater-monitor run` on a real cgroup that is removed and made again."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import nats
import pytest

from slackwater.core.bus import nats_server
from slackwater.core.messages import Sample, decode
from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import LabError
from tests.support.real_processes import free_address
from tests.support.sniffer_traffic import program, wait_for

pytestmark = pytest.mark.lab

GROUP = "slackwater-test-monitor"
QUOTA_CORES = 0.2
DEADLINE_S = 60.0


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    try:
        cgroups = Cgroups.of_this_machine()
        if not cgroups.writable():
            pytest.skip("needs root, to make cgroups")
        cgroups.make(GROUP, quota_cores=QUOTA_CORES)
    except LabError as error:
        pytest.skip(str(error))
    cgroups.remove(GROUP)
    yield cgroups
    # What was killed may take a moment to leave it.
    wait_for(lambda: not cgroups.pids(GROUP), "the cgroup to be empty")
    cgroups.remove(GROUP)


@contextlib.contextmanager
def busy(cgroups: Cgroups) -> Iterator[None]:
    """A process in the cgroup that takes what CPU time it gets."""
    files = " ".join(f"{file}" for file in cgroups.procs_files(GROUP))
    script = f"for file in {files}; do echo $$ > $file; done; while :; do :; done"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def until(samples: AsyncIterator[Sample], holds: Callable[[Sample], bool], event: str) -> Sample:
    last: Sample | None = None
    end = time.monotonic() + DEADLINE_S
    async for sample in samples:
        last = sample
        if holds(sample):
            return sample
        assert time.monotonic() < end, f"{event}: not within {DEADLINE_S} s; the last Sample: {last}"
    raise AssertionError(event)


async def story(address: str, cgroups: Cgroups) -> None:
    client = await nats.connect(f"nats://{address}")
    subscription = await client.subscribe("slackwater.sample.>")

    async def received() -> AsyncIterator[Sample]:
        while True:
            sample = decode("sample", (await subscription.next_msg(timeout=DEADLINE_S)).data)
            assert isinstance(sample, Sample)
            assert sample.cpu is None or not (sample.cpu.utilisation or 0) > 10, sample
            yield sample

    samples = received()
    await until(
        samples, lambda sample: sample.absent.get("cpu", "").startswith(f"cgroup {GROUP}: neither"), "no cgroup"
    )
    for round_ in range(2):
        cgroups.make(GROUP, quota_cores=QUOTA_CORES)
        with busy(cgroups):
            sample = await until(
                samples,
                lambda sample: (
                    sample.cpu is not None and bool(sample.cpu.utilisation and sample.cpu.throttled and sample.sched)
                ),
                f"values in round {round_}",
            )
            assert sample.cpu is not None
            assert sample.cpu.scope == "cgroup"
            assert sample.cpu.cores == QUOTA_CORES
            assert sample.cpu.user is not None
            assert sample.sched is not None
            assert sample.sched.processes == 1
        wait_for(lambda: not cgroups.pids(GROUP), "the cgroup to be empty")
        cgroups.remove(GROUP)
        sample = await until(samples, lambda sample: sample.cpu is None, f"the cgroup is gone in round {round_}")
        assert GROUP in sample.absent["cpu"]
    await client.close()


def test_a_cgroup_that_is_removed_and_made_again_has_a_reason_and_then_values(cgroups: Cgroups, tmp_path: Path) -> None:
    address = free_address()
    config = tmp_path / "node.toml"
    config.write_text(
        f'node = "n1"\nperiod_s = 0.2\n[pace]\nby_event = false\n[bus]\nurl = "nats://{address}"\n'
        f'[cpu]\ncgroup = "{GROUP}"\n'
        f'[processes]\ncgroup = "{GROUP}"\n[sniffer]\ninterface = ""\n[canary]\nenabled = false\n'
    )
    host, port = address.split(":")
    with (
        subprocess.Popen([program("nats-server"), "-a", host, "-p", port], stderr=subprocess.DEVNULL) as server,
        subprocess.Popen([program("slackwater-monitor"), "run", "--config", str(config)]) as monitor,
    ):
        try:
            wait_for(lambda: nats_server.answers(address), "nats-server")
            asyncio.run(story(address, cgroups))
        finally:
            monitor.terminate()
            monitor.wait()
            server.terminate()
