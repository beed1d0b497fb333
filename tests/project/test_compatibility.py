"""The table of versions in docs/operations/compatibility.md, and the versions that the tests really run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.support.ansible_files import accepted_systems
from tests.support.paths import PROGRAMS, ROOT
from tests.support.real_haproxy import HAPROXIES
from tests.support.real_servers import FPMS
from tests.support.rollout_site import SITES
from tools.setup_releases import RELEASES as OTHERS
from tools.systems import DEBIAN_12

ASKED = {
    "HAProxy": {"2.4", "2.6", "2.8", "3.0", "3.2", "3.4"},
    "Apache": {"2.4"},
    "php-fpm": {"8.1", "8.2", "8.3", "8.4"},
    "Debian": {"12", "13"},
    "Ubuntu": {"24.04"},
}
"""What users have; each has a row, tested or not."""


@dataclass(frozen=True)
class Row:
    program: str
    version: str
    source: str
    tested_by: str

    @property
    def is_run(self) -> bool:
        return not self.tested_by.startswith("not run")


def rows() -> list[Row]:
    text = (ROOT / "docs/operations/compatibility.md").read_text()
    lines = re.findall(r"(?m)^\| (HAProxy|Apache|php-fpm|Debian|Ubuntu) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \|$", text)
    return [Row(*line) for line in lines]


def run_versions(program: str) -> set[str]:
    return {row.version for row in rows() if row.program == program and row.is_run}


def version_of(command: str) -> str:
    """Its first two numbers."""
    printed = subprocess.run([command, "-v"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\b(\d+\.\d+)\.\d+", printed)
    assert match, printed
    return match[1]


def test_every_version_that_users_have_has_one_row_and_one_that_is_not_run_has_a_reason() -> None:
    listed = [(row.program, row.version) for row in rows()]
    assert len(listed) == len(set(listed))
    assert {(program, version) for program, versions in ASKED.items() for version in versions} <= set(listed)
    for row in rows():
        assert row.tested_by.startswith("`make test") if row.is_run else row.tested_by.startswith("not run: ")


TITLES = {command: release.system.title for release in OTHERS for command in release.programs}


def sources(program: str) -> dict[str, str]:
    """Version -> where the programs that are run come from."""
    return {row.version: row.source for row in rows() if row.program == program and row.is_run}


def really(commands: Sequence[str]) -> dict[str, str]:
    paths = {command: shutil.which(command, path=str(PROGRAMS)) for command in commands}
    if missing := [command for command, path in paths.items() if path is None]:
        pytest.skip(f"not in .build/bin: {', '.join(missing)}")
    here = DEBIAN_12.title
    return {version_of(path): TITLES.get(command, here) for command, path in paths.items() if path is not None}


@pytest.mark.parametrize(("program", "commands"), [("HAProxy", HAPROXIES), ("php-fpm", FPMS)])
def test_the_versions_are_those_that_the_tests_run(program: str, commands: Sequence[str]) -> None:
    assert sources(program) == really(commands)


def test_apache_is_the_one_that_the_tests_run() -> None:
    apache = shutil.which("apache2", path=str(PROGRAMS))
    if apache is None:
        pytest.skip("apache2 is not in .build/bin")
    assert run_versions("Apache") == {version_of(apache)}


def test_the_systems_that_are_run_are_those_of_the_rollout_s_sites_and_the_roles_accept_them() -> None:
    run = {f"{row.program} {row.version}" for row in rows() if row.program in ("Debian", "Ubuntu") and row.is_run}
    assert run <= set(accepted_systems())
    assert run == {system.title for site in SITES.values() for system in site.values()}


@pytest.mark.parametrize("title", accepted_systems())
def test_the_php_fpm_of_the_roles_is_the_system_s(title: str) -> None:
    assert sources("php-fpm")[accepted_systems()[title]["php"]] == title
