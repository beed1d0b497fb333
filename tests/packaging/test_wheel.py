"""Wheel and source distribution: the second gives the first, and pip alone installs it where nothing else is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from slackwater import __version__
from tests.support.built_packages import packaging_module
from tests.support.paths import ROOT, copy_of_checkout
from tools.systems import DEBIAN_12

DATA = ("web/templates/base.html", "detector/models/start.skops", "retune/knowledge.toml")
SDIST = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout that git knows, in a folder of their own."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    return copy_of_checkout(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", SDIST], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / "dist" / done.stdout.splitlines()[-1]


def wheel_of(source: Path, out: Path) -> Path:
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(sdist, tmp_path_factory.mktemp("wheel"))


def inside(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_the_source_distribution_gives_the_same_wheel_as_the_checkout(
    source: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    assert sdist.name == f"slackwater-{__version__}.tar.gz"
    with tarfile.open(sdist) as opened:
        assert f"slackwater-{__version__}/LICENSE" in opened.getnames()
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("dist", "build", "*.egg-info"))
    assert inside(wheel) == inside(wheel_of(copy, tmp_path / "out"))
    assert {f"slackwater/{name}" for name in DATA} <= inside(wheel)
    assert {name.partition("/")[0] for name in inside(wheel)} == {"slackwater", f"slackwater-{__version__}.dist-info"}


def test_both_wheels_have_the_same_bytes_whoever_builds_where_and_when(tmp_path: Path) -> None:
    """In other folders, with another umask and time zone, and with a file beside the sources that git does not know."""
    wheels = packaging_module("wheels")
    built = []
    for number, (umask, zone) in enumerate(((0o022, "UTC"), (0o077, "Asia/Tokyo"))):
        checkout = tmp_path / f"{number}" / "checkout"
        before = os.umask(umask)
        try:
            subprocess.run(["git", "clone", "--quiet", "--shared", "--no-hardlinks", ROOT, checkout], check=True)
            if number:
                (checkout / "slackwater/left_behind.py").write_text("")
            program = shutil.copy(ROOT / "packaging/wheels.py", checkout / "packaging/wheels.py")
            command = [sys.executable, str(program), "--out", str(tmp_path / f"{number}")]
            environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TZ": zone}
            subprocess.run(command, cwd=checkout, env=environment, check=True)
        finally:
            os.umask(before)
        built.append({file.name: file.read_bytes() for file in (tmp_path / f"{number}").glob("*.whl")})
    assert len(built[0]) == len(wheels.PROJECTS)
    assert built[0] == built[1]
    assert all("left_behind" not in name for name in inside(next((tmp_path / "1").glob("slackwater-*.whl"))))


def test_the_lab_is_a_distribution_of_its_own_with_the_same_version(source: Path, tmp_path: Path) -> None:
    wheel = wheel_of(source / "lab", tmp_path / "out")
    assert wheel.name == f"slackwater_lab-{__version__}-py3-none-any.whl"
    assert "slackwater_lab/native/noise.c" in inside(wheel)
    assert {name.partition("/")[0] for name in inside(wheel)} == {
        "slackwater_lab",
        f"slackwater_lab-{__version__}.dist-info",
    }


def test_the_extras_are_those_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(f"slackwater-{__version__}.dist-info/METADATA").decode()
    assert set(re.findall(r"(?m)^Provides-Extra: (.*)$", metadata)) == {"otlp", "dev"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = re.findall(r"(?m)^Requires-Dist: ([^\s;]+)", metadata)
    wanted = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
    ]
    assert sorted(required) == sorted(re.split(r"[ ;]", requirement)[0] for requirement in wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pip_alone_installs_it_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """From the locked wheels where `make deb` has fetched them, else from the registry."""
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv/bin"
    environment = packaging_module("environment")
    locked = environment.wheels(DEBIAN_12, "amd64")
    here = sys.version_info[:2] == (3, 11) and any(locked.glob("*.whl"))
    origin = ("--no-index", "--find-links", str(locked)) if here else ()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet", *origin, str(wheel)]
    subprocess.run(install, check=True, env=clean, cwd=tmp_path)

    def slackwater(*words: str) -> str:
        command = [str(bin_folder / "slackwater"), *words]
        return subprocess.run(command, check=True, env=clean, cwd=tmp_path, capture_output=True, text=True).stdout

    assert slackwater("--version").strip().endswith(__version__)
    assert "recorded cluster" in slackwater("try", "--help")
    assert '"would_change"' in slackwater("try", "--no-page", "--json", "--speed", "1000")
