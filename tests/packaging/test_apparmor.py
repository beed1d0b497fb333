"""The AppArmor profiles: each is understood by apparmor_parser, named by its unit, and in complain mode.

They are not tried in force: the kernels that the tests run on have no AppArmor.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROFILES = sorted((ROOT / "packaging").glob("*/apparmor/*"))
ABSTRACTIONS = next(
    (place for place in (ROOT / ".build/debian/etc/apparmor.d", Path("/etc/apparmor.d")) if (place / "abi").is_dir()),
    None,
)
needs_parser = pytest.mark.skipif(
    shutil.which("apparmor_parser") is None or ABSTRACTIONS is None, reason="needs apparmor_parser and its abstractions"
)


def parse(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["apparmor_parser", "--base", str(ABSTRACTIONS), "--skip-cache", *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True)


@needs_parser
@pytest.mark.parametrize("profile", PROFILES, ids=lambda file: file.name)
def test_the_parser_takes_a_profile_whole(profile: Path, tmp_path: Path) -> None:
    done = parse(profile, "--skip-kernel-load")
    assert done.returncode == 0, done.stderr
    assert parse(profile, "--names").stdout.split() == [profile.name]
    wrong = tmp_path / "wrong"
    wrong.write_text(profile.read_text().replace("network inet stream,", "network inet steam,"))
    assert parse(wrong, "--skip-kernel-load").returncode != 0


@pytest.mark.parametrize("profile", PROFILES, ids=lambda file: file.name)
def test_a_profile_complains_only_and_its_unit_names_it(profile: Path) -> None:
    text = profile.read_text()
    assert re.findall(r"(?m)^profile (\S+) flags=\((\w+)\) \{$", text) == [(profile.name, "complain")]
    assert f"include if exists <local/{profile.name}>" in text
    unit = profile.parent.parent / f"{profile.name}.service"
    assert f"AppArmorProfile=-{profile.name}\n" in unit.read_text()
    assert profile.name in (profile.parent.parent / "postinst").read_text()


def test_every_unit_of_ours_has_a_profile() -> None:
    units = {file.stem for file in (ROOT / "packaging").glob("*/*.service")}
    assert {profile.name for profile in PROFILES} == units


def readable(profile: str) -> list[re.Pattern[str]]:
    """The files that the profile of this name lets its program read."""
    (file,) = (file for file in PROFILES if file.name == profile)
    rules = re.findall(r"(?m)^  (?:owner )?(/\S+) [wklmix]*r[wklmix]*,$", file.read_text())
    globs = {"**": ".*", "*": "[^/]*", "{": "(?:", ",": "|", "}": ")"}
    return [
        re.compile("".join(globs.get(part) or re.escape(part) for part in re.split(r"(\*\*|[*{,}])", rule)))
        for rule in rules
    ]


SETTINGS = {
    "slackwater-monitor": "slackwater_node/templates/node.toml.j2",
    "slackwater-wsengine": "slackwater_node/templates/wsengine.toml.j2",
    "slackwater-controller": "slackwater_controller/templates/controller.toml.j2",
}
"""The settings that Ansible gives to each program."""


@pytest.mark.parametrize("profile", PROFILES, ids=lambda file: file.name)
def test_a_profile_lets_its_program_read_what_ansibles_settings_name(profile: Path) -> None:
    settings = (ROOT / "ansible/roles" / SETTINGS[profile.name]).read_text()
    paths = set(re.findall(r"/etc/slackwater/[\w./-]+\w", settings))
    assert paths
    rules = readable(profile.name)
    assert not [path for path in paths if not any(rule.fullmatch(path) for rule in rules)]


def test_what_a_unit_may_do_its_profile_allows() -> None:
    """Capabilities of the unit that the profile denies would be refused without a word, once it is enforced."""
    for profile in PROFILES:
        unit = (profile.parent.parent / f"{profile.name}.service").read_text()
        bounds = re.findall(r"(?m)^CapabilityBoundingSet=(.*)$", unit)
        allowed = set(re.findall(r"(?m)^  capability (\w+),$", profile.read_text()))
        assert {name.removeprefix("CAP_").lower() for bound in bounds for name in bound.split()} <= allowed
