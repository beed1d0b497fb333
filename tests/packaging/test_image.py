"""The controller's container image: what it is built from, unpacked, runs the controller as the image would.

No container engine runs here: the test does what the Containerfile says.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import clean_root
from tests.support.built_packages import build
from tests.support.clean_root import CleanRoot
from tests.support.paths import ROOT
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, until, web_servers
from tests.support.real_processes import free_address

CONTAINERFILE = ROOT / "packaging/controller/Containerfile"


def instructions() -> dict[str, str]:
    """The Containerfile's instructions; each stands in it once."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]
    by_word = dict(line.split(" ", 1) for line in lines)
    assert len(by_word) == len(lines)
    return by_word


def test_there_is_no_base_image_and_the_user_is_not_root() -> None:
    by_word = instructions()
    assert by_word["FROM"] == "scratch"
    assert by_word["ADD"] == "controller-root.tar /"
    assert by_word["USER"] == "slackwater"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[CleanRoot]:
    package = build(tmp_path / "package", "slackwater-controller")
    out = tmp_path / "image"
    command = [sys.executable, str(ROOT / "packaging/image.py"), "--package", str(package), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out / "Containerfile").read_bytes() == CONTAINERFILE.read_bytes()
    place = tmp_path / "root"
    place.mkdir()
    subprocess.run(["tar", "-xf", str(out / "controller-root.tar"), "-C", str(place)], check=True)
    subprocess.run(["mount", "--rbind", "/proc", str(place / "proc")], check=True)
    try:
        yield CleanRoot(place)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", str(place / "proc")], check=True)


@pytest.mark.slow
@pytest.mark.lab
@needs_haproxy
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(clean_root.why_not()), reason=clean_root.why_not())
def test_the_controller_starts_in_it_and_stops(root: CleanRoot, tmp_path: Path) -> None:
    assert not (root.place / "tmp/controller.deb").exists()
    program, words = (re.findall(r'"([^"]*)"', instructions()[name]) for name in ("ENTRYPOINT", "CMD"))
    socket = root.place / "run/admin.sock"
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        socket.touch()
        Path(balancer.socket).chmod(0o666)
        subprocess.run(["mount", "--bind", balancer.socket, str(socket)], check=True)
        try:
            (root.place / "etc/slackwater/controller.toml").write_text(
                f'[bus]\nlisten = "{free_address()}"\n[web]\nlisten = "{free_address()}"\n'
                '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/run/admin.sock"\n'
            )
            log = tmp_path / "serve.log"
            serving = root.popen(*program, *words, user=instructions()["USER"], log=log)
            try:
                status = (*program, "status", "--json")
                until(
                    lambda: serving.poll() is not None or root.run(*status, check=False).returncode == 0,
                    "the controller answers",
                    within_s=180.0,
                )
                assert serving.poll() is None, log.read_text()
                serving.terminate()
                assert serving.wait(120.0) == 0, shlex.join([*program, *words]) + log.read_text()
            finally:
                serving.kill()
                serving.wait()
        finally:
            subprocess.run(["umount", str(socket)], check=True)
