"""One writer for each backend."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.config import PoolSettings
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.backends.table import targets_of
from slackwater.lbengine.leadership import lock
from slackwater.lbengine.leadership.lock import LockError, PoolLocks, lock_folder
from tests.support.pool_lock import pool_lock

HOLD = """
import sys
from pathlib import Path
from slackwater.lbengine.leadership.lock import PoolLocks
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
locks = PoolLocks(Path(sys.argv[2]))
locks.take([HAProxyPool(name="web", backend="web", socket=sys.argv[1])])
print("held", flush=True)
sys.stdin.read()
"""


def pool(path: Path, backend: str = "web") -> PoolSettings:
    return HAProxyPool(name="web", backend=backend, socket=str(path))


def test_a_second_lock_says_which_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(tmp_path / "locks")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockError, match=f"process {holder.pid} already drives backend `web` behind {path}"):
            pool_lock(pool(path), tmp_path / "locks").__enter__()
        holder.kill()
        holder.wait()
    with pool_lock(pool(path), tmp_path / "locks"):  # gone with its process
        pass


def test_the_lock_can_be_given_back_and_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks"),
            pytest.raises(LockError, match=f"process {os.getpid()} already"),
        ):
            pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks").__enter__()


def test_another_backend_is_another_lock(tmp_path: Path) -> None:
    with (
        pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks"),
        pool_lock(pool(tmp_path / "admin.sock", "api"), tmp_path / "locks"),
    ):
        pass


def test_a_link_to_the_socket_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "admin.sock")
    with pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks"), pytest.raises(LockError):
        pool_lock(pool(tmp_path / "link"), tmp_path / "locks").__enter__()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="slackwater-lock-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_user_can_neither_hold_the_lock_nor_have_a_folder_of_his_own_used(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has other users")
    monkeypatch.setattr(lock, "SYSTEM_FOLDER", reachable / "system")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(reachable))
    (reachable / "system").mkdir(mode=0o700)
    (reachable / "slackwater").mkdir(mode=0o700)
    assert lock_folder(reachable) == reachable / "system"
    (reachable / "system").chmod(0o777)
    assert lock_folder(reachable) == reachable / "slackwater"
    os.chown(reachable / "slackwater", 65534, 65534)
    assert lock_folder(reachable) == reachable / "locks"
    with pytest.raises(LockError, match="must belong to this user"):
        pool_lock(pool(reachable / "admin.sock"), reachable / "slackwater").__enter__()
    os.chown(reachable / "system", 65534, 65534)  # the service's: below /run only root makes folders
    (reachable / "system").chmod(0o700)
    assert lock_folder(reachable) == reachable / "system"
    with pool_lock(pool(reachable / "admin.sock"), reachable / "system"):
        (held,) = (reachable / "system").iterdir()
        assert (held.stat().st_uid, held.stat().st_mode & 0o777) == (65534, 0o600)
    assert not list((reachable / "system").iterdir())


def test_names_that_any_user_can_take_lock_nothing(tmp_path: Path) -> None:
    (target,) = targets_of(pool(tmp_path / "admin.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(b"\0" + target.lock.encode())
        with pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks"):
            pass


def test_files_that_a_dead_holder_left_are_used_again(tmp_path: Path) -> None:
    (target,) = targets_of(pool(tmp_path / "admin.sock"))
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / lock.lock_name(target.lock)).write_text("1\n")
    with pool_lock(pool(tmp_path / "admin.sock"), tmp_path / "locks"):
        pass


def test_a_service_of_ipvs_has_one_lock_for_both_backends(tmp_path: Path) -> None:
    lvs = IpvsPool(name="web", service="-t 127.9.9.9:80")
    keepalived = KeepalivedPool(name="web", service="-t 127.9.9.9:80")
    other = IpvsPool(name="web", service="-u 127.9.9.9:80")
    problem = r"already drives keepalived's service `-t 127\.9\.9\.9:80`; stop"
    with pool_lock(lvs, tmp_path), pool_lock(other, tmp_path), pytest.raises(LockError, match=problem):
        pool_lock(keepalived, tmp_path).__enter__()


def is_free(locked_pool: PoolSettings, folder: Path) -> bool:
    try:
        with pool_lock(locked_pool, folder):
            return True
    except LockError:
        return False


def test_locks_of_several_pools_are_taken_all_or_none_and_given_back_singly(tmp_path: Path) -> None:
    folder, path = tmp_path / "locks", tmp_path / "admin.sock"
    a, b, c = (pool(path, name) for name in "abc")
    locks, others = PoolLocks(folder), PoolLocks(folder)
    locks.take([a, b])
    with pytest.raises(LockError, match=f"process {os.getpid()} already drives backend `b`"):
        others.take([c, b])
    assert is_free(c, folder)
    locks.take([a, c])  # what is held stays held
    locks.keep_only([a, c])
    assert [is_free(locked_pool, folder) for locked_pool in (a, b, c)] == [False, True, False]
    locks.release()
    assert is_free(a, folder)
    assert is_free(c, folder)
