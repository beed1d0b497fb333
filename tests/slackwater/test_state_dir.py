"""The controller's folder: writable, and used by one `serve` at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.core import state_dir
from slackwater.core.state_dir import ServeLock, StateError, running_serve


def test_folder_is_made(tmp_path: Path) -> None:
    folder = state_dir.prepare(str(tmp_path / "a/b"))
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"state_dir .*/file/state: cannot be written: Not a directory"):
        state_dir.prepare(str(tmp_path / "file/state"))


def test_folder_in_which_nothing_can_be_written_is_refused() -> None:
    """Not even by root: no file can be made in /proc."""
    with pytest.raises(StateError, match=r"state_dir /proc/self: cannot be written: "):
        state_dir.prepare("/proc/self")


def test_second_serve_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    assert running_serve(str(tmp_path)) is None
    first = ServeLock(tmp_path)
    first.acquire()
    assert running_serve(str(tmp_path)) == os.getpid()
    with pytest.raises(StateError, match=rf"already runs on .* \(pid {os.getpid()}\)"):
        ServeLock(tmp_path).acquire(wait_s=60.0)
    first.release()
    assert running_serve(str(tmp_path)) is None
    again = ServeLock(tmp_path)
    again.acquire(wait_s=0.0)
    again.release()


def test_lock_is_held_until_the_children_of_a_killed_serve_are_gone(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\nfrom pathlib import Path\nfrom slackwater.core import state_dir\n"
        "folder = Path(sys.argv[1])\nlock = state_dir.ServeLock(folder)\nlock.acquire()\n"
        "child = subprocess.Popen(['sleep', '1000'], pass_fds=[lock.fd], stdout=subprocess.DEVNULL)\n"
        "state_dir.write_serve(folder, {'children': {'lbengine': child.pid, 'web': None}})\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    described = state_dir.read_serve(tmp_path)
    assert described is not None
    child = described["children"]["lbengine"]
    try:
        with pytest.raises(StateError, match=rf"children of an earlier .* still hold .*: lbengine \(pid {child}\)"):
            ServeLock(tmp_path).acquire(wait_s=0.1)
    finally:
        os.kill(child, 9)
    lock = ServeLock(tmp_path)
    lock.acquire(wait_s=60.0)  # until it is gone
    lock.release()


def test_serve_json_is_read_or_absent(tmp_path: Path) -> None:
    assert state_dir.read_serve(tmp_path) is None
    state_dir.write_serve(tmp_path, {"pid": 3})
    assert state_dir.read_serve(tmp_path) == {"pid": 3}
    (tmp_path / "serve.json").write_text("{")
    assert state_dir.read_serve(tmp_path) is None
    state_dir.remove_serve(tmp_path)
    state_dir.remove_serve(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o600), (0o000, 0o600), (0o027, 0o640), (0o077, 0o600)])
def test_no_other_user_reads_what_is_made_unless_the_group_was_chosen(
    tmp_path: Path, umask: int, expected: int
) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom slackwater.controller.cli.commands import keep_files_private\n"
        "from slackwater.core import state_dir\nos.umask(int(sys.argv[2]))\nkeep_files_private()\n"
        "state_dir.write_serve(state_dir.prepare(sys.argv[1]), {})"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state"), str(umask)], check=True)
    made = tmp_path / "state", tmp_path / "state/serve.json"
    assert [path.stat().st_mode & 0o666 for path in made] == [expected, expected]
