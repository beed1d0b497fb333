"""The guest with a real IP_VS itself: what it takes over a line, and that one that cannot start says why, at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slackwater_lab.cluster.guest import READY_WITHIN_S, GuestSilent
from slackwater_lab.cluster.paths import LabError
from tests.support.ipvs_guest import INIT, IpvsGuest, booted, needs_ipvs
from tests.support.qemu_guest import Guest, GuestSettings

pytestmark = needs_ipvs


def test_what_is_written_is_read_again_to_the_letter(guest: IpvsGuest) -> None:
    text = 'it\'s\n\\n $HOME `date` "quoted" \u00e9\n\n\ttab\\'
    guest.replace("/run/text", text)
    assert guest.run(["cat", "/run/text"]).out == text
    assert guest.run(["cat"], text).out == text
    assert guest.read("/run/text") == text
    with pytest.raises(FileNotFoundError):
        guest.replace("/run/nowhere/text", text)
    assert guest.read("/run/nowhere/text") is None


def test_this_machines_files_are_there_and_cannot_be_changed(guest: IpvsGuest) -> None:
    assert guest.ok(f"cat {__file__}") == Path(__file__).read_text()
    status, printed = guest.sh(f"echo changed >>{__file__}")
    assert (status, "Read-only file system" in printed) == (1, True)


@pytest.mark.parametrize(
    ("init", "line", "why"),
    [
        (INIT, "rdinit=/nothing", "Kernel panic - not syncing: VFS: Unable to mount root fs"),
        (INIT.replace("host /host", "nothing /host"), "", "mounting nothing on /host failed"),
        (INIT.replace("ro,nosuid host", "ro,nosuid,nothing host"), "", "mounting host on /host failed"),
        ("#!/bin/sh\nexit 7\n", "", "Attempted to kill init! exitcode=0x00000700"),
    ],
)
def test_a_guest_that_cannot_start_fails_at_once_with_its_last_words(init: str, line: str, why: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(LabError, match="the guest ended") as caught, booted(init=init, line=line):
        pass
    assert why in str(caught.value)
    assert time.monotonic() - begun_s < READY_WITHIN_S


def test_a_guest_that_hangs_is_ended_and_told_from_one_that_ends(tmp_path: Path) -> None:
    guest = Guest(tmp_path, GuestSettings(init="#!/bin/sh\nwhile :; do /bin/busybox sleep 1; done\n"))
    with pytest.raises(GuestSilent, match="said no b'READY"):
        guest.wait_ready(2.0)
    assert not guest.running
