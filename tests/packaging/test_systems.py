"""The table of the systems that there are packages for, and what is derived from it; nothing is fetched here."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.built_packages import packaging_module
from tests.support.paths import ROOT
from tools import setup_releases, systems
from tools.systems import DEBIAN_12, DEBIAN_13, MACHINES, SYSTEMS, UBUNTU_24_04, System

EVERY = pytest.mark.parametrize("system", SYSTEMS.values(), ids=list(SYSTEMS))


@EVERY
def test_setup_brings_a_system_s_python_and_nothing_else_of_another_version(system: System) -> None:
    (release,) = (candidate for candidate in setup_releases.RELEASES if candidate.system == system)
    assert release.python == f"python{system.python}"
    assert {f"{release.python}-minimal", f"lib{release.python}-stdlib"} <= set(release.all_packages)
    assert set(re.findall(r"python([\d.]+)", " ".join(release.all_packages))) == {system.python}


@EVERY
def test_the_python_that_is_here_has_the_system_s_version(system: System) -> None:
    if not system.interpreter.exists():
        pytest.skip(f"needs {system.interpreter.name}: make setup")
    command = [str(system.interpreter), "-c", "import compileall, sys; print('%d.%d' % sys.version_info[:2])"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == system.python


def test_the_keys_of_an_archive_are_there_before_it_is_asked() -> None:
    order = [release.system.title for release in setup_releases.RELEASES]
    ubuntu = [release.system.title for release in setup_releases.RELEASES if release.system.archive == systems.UBUNTU]
    (keys,) = (release.system for release in setup_releases.RELEASES if "ubuntu-keyring" in release.packages)
    assert systems.UBUNTU.keyring.is_relative_to(keys.folder)
    assert all(order.index(keys.title) < order.index(title) for title in ubuntu)


def test_apt_is_told_archive_suites_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "mirror", lambda: "http://mirror.example/debian")
    (line,) = DEBIAN_13.sources()
    assert line == f"deb [signed-by={systems.DEBIAN.keyring}] http://mirror.example/debian trixie main"
    lines = UBUNTU_24_04.sources()
    assert [source.split()[3] for source in lines] == ["noble", "noble-updates"]
    assert all(systems.UBUNTU.url in source and source.endswith("main universe") for source in lines)
    assert DEBIAN_13.sources("arm64") == [line]
    lines = UBUNTU_24_04.sources("arm64")
    assert all(f" {systems.UBUNTU.others_url} noble" in source for source in lines)


def test_an_upgrade_of_the_system_brings_its_package() -> None:
    for older, newer in ((DEBIAN_12, DEBIAN_13), (DEBIAN_12, UBUNTU_24_04)):
        versions = [f"1.0.0-1{system.suffix}" for system in (older, newer)]
        subprocess.run(["dpkg", "--compare-versions", versions[0], "lt", versions[1]], check=True)
    assert len({system.suffix for system in SYSTEMS.values()}) == len(SYSTEMS)


@EVERY
def test_the_controller_s_packages_are_below_the_system_s_python(system: System) -> None:
    environment = packaging_module("environment")
    assert f"/python{system.python}/" in str(environment.site(system))


@EVERY
def test_the_page_of_the_installation_has_a_row_for_each_system(system: System) -> None:
    rows = re.findall(r"(?m)^\| .*amd64 .*$", (ROOT / "docs/operations/install.md").read_text())
    (row,) = (row for row in rows if f"({system.release})" in row)
    assert system.title in row
    assert system.suffix in row
    assert all(name in row for name in MACHINES)
