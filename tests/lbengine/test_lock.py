"""One writer for each backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbengine.backends.haproxy.settings import HAProxyPool
from lbengine.backends.ipvs.settings import IpvsPool
from lbengine.backends.keepalived.settings import KeepalivedPool
from lbengine.leadership.lock import LONGEST_NAME, LockError, lock_name, pool_lock
from slackwater.config import PoolSettings

HOLD = """
import sys
from lbengine.backends.haproxy.settings import HAProxyPool
from lbengine.leadership.lock import pool_lock
lock = pool_lock(HAProxyPool(name="web", backend="web", socket=sys.argv[1]))
lock.__enter__()
print("held", flush=True)
sys.stdin.read()
"""


def pool(path: Path, backend: str = "web") -> PoolSettings:
    return HAProxyPool(name="web", backend=backend, socket=str(path))


def test_a_second_lock_says_which_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockError, match=f"process {holder.pid} already drives backend `web` behind {path}"):
            pool_lock(pool(path)).__enter__()
        holder.kill()
        holder.wait()
    with pool_lock(pool(path)):  # gone with its process
        pass


def test_the_lock_can_be_given_back_and_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with pool_lock(pool(tmp_path / "admin.sock")), pytest.raises(LockError, match=f"process {os.getpid()} already"):
            pool_lock(pool(tmp_path / "admin.sock")).__enter__()


def test_another_backend_is_another_lock(tmp_path: Path) -> None:
    with pool_lock(pool(tmp_path / "admin.sock")), pool_lock(pool(tmp_path / "admin.sock", "api")):
        pass


def test_a_link_to_the_socket_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "admin.sock")
    with pool_lock(pool(tmp_path / "admin.sock")), pytest.raises(LockError):
        pool_lock(pool(tmp_path / "link")).__enter__()


def test_a_long_path_still_makes_a_name_that_fits() -> None:
    names = {lock_name("slackwater/run/" + "x" * 200 + end) for end in ("a", "b")}
    assert len(names) == 2
    assert all(len(name) <= LONGEST_NAME for name in names)


def test_a_service_of_ipvs_has_one_lock_for_both_backends() -> None:
    lvs = IpvsPool(name="web", service="-t 127.9.9.9:80")
    keepalived = KeepalivedPool(name="web", service="-t 127.9.9.9:80")
    other = IpvsPool(name="web", service="-u 127.9.9.9:80")
    problem = r"already drives keepalived's service `-t 127\.9\.9\.9:80`; stop"
    with pool_lock(lvs), pool_lock(other), pytest.raises(LockError, match=problem):
        pool_lock(keepalived).__enter__()
