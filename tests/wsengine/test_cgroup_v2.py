"""The tests of cgroups once more on version 2, in a guest: this machine may have version 1 alone."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from tests.support.ipvs_guest import IpvsGuest, needs_ipvs
from tests.support.paths import ROOT

TREE = "/sys/fs/cgroup"
FILES = ("test_lab_cgroups.py", "test_monitor_cgroup.py", "test_wsengine_cgroup.py")
pytestmark = [needs_ipvs, pytest.mark.slow]


def test_quotas_shares_cores_and_the_monitor_on_version_2(guest: IpvsGuest) -> None:
    settings = f"LD_LIBRARY_PATH= PATH={shlex.quote(os.environ['PATH'])}"
    settings += f" PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1"
    guest.ok(f"mount -t cgroup2 cgroup2 {TREE}")
    try:
        status, log_text = guest.sh(
            f"cd {ROOT} && {settings} {sys.executable} -m pytest -p no:cacheprovider --basetemp=/run/pytest"
            f" {' '.join(f'tests/{name}' for name in FILES)}"
        )
    finally:
        guest.sh(f"umount {TREE}; rm -rf /run/pytest")
    assert status == 0, log_text
    assert "skipped" not in log_text, log_text
