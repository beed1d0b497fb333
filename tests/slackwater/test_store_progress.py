"""A nats-server whose store hangs is noticed: stopped altogether, and for real after a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.controller.supervise.store_progress import ANSWERS_WITHIN_S, StoreProgress
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.config import BusSettings
from tests.support.nats_process import open_server
from tests.support.real_processes import free_address

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small tmpfs")
BUCKET = "slackwater_lease"
SILENT_S = 3 * ANSWERS_WITHIN_S


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], BusSettings]]:
    """A nats-server with its store in this folder."""
    listen = free_address()
    with subprocess.Popen(open_server(folder, listen)) as process:
        try:
            nats_server.wait_until_it_answers(listen, folder / "nats.log")
            yield process, BusSettings(f"nats://{listen}")
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@contextlib.contextmanager
def observed(settings: BusSettings) -> Iterator[StoreProgress]:
    progress = StoreProgress(settings, BUCKET)
    try:
        yield progress
    finally:
        progress.close()


def is_made_within(progress: StoreProgress, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if progress.is_made():
            return True
        time.sleep(0.05)
    return False


def test_answers_are_progress_and_a_stopped_server_makes_none(tmp_path: Path) -> None:
    with server(tmp_path) as (process, settings), observed(settings) as progress:
        assert is_made_within(progress, 30.0), "there is no such bucket yet, but an answer"
        assert is_made_within(progress, 30.0)
        process.send_signal(signal.SIGSTOP)
        progress.is_made()
        time.sleep(0.5)  # an answer may have been on its way
        progress.is_made()
        assert not is_made_within(progress, SILENT_S)
        process.send_signal(signal.SIGCONT)
        assert is_made_within(progress, 30.0)


async def write(settings: BusSettings, seconds: float) -> None:
    """Writes for some time, as a lease is renewed; what fails is no matter."""
    bus = await Bus.connect(settings, "writer")
    try:
        bucket = await bus.bucket(BUCKET)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            with contextlib.suppress(BusError):
                stored = await bucket.get("lease")
                await bucket.put("lease", b"x" * 2000, stored[1] if stored else 0)
            await asyncio.sleep(0.02)
    finally:
        await bus.close()


@needs_root
def test_a_store_that_hangs_after_a_full_disk_is_noticed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    try:
        with server(disk) as (_, settings), observed(settings) as progress:
            asyncio.run(write(settings, 0.5))
            assert is_made_within(progress, 30.0)
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"\0" * 65536)
            with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
                while True:
                    rest.write(b"\0")
            asyncio.run(write(settings, 3.0))
            for file in ("ballast", "rest"):
                (disk / file).unlink(missing_ok=True)
            progress.is_made()
            if is_made_within(progress, SILENT_S):
                pytest.skip("this nats-server gets over a full disk")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
