"""The locked packages are those that pyproject.toml leads to, each with its hashes."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT
from tools import lock

HASH = "sha256:" + "0" * 64
SOURCE = [Requirement("flask==3.1.3")]
NEEDS = {"flask": "3.1.3", "click": "8.5.1"}
GOOD = f"""\
flask==3.1.3 \\
    --hash={HASH}
click==8.5.1 ; sys_platform == 'linux' \\
    --hash={HASH}
    # via flask
"""


@pytest.mark.parametrize("part", lock.LOCKS, ids=lambda part: part.file)
def test_each_lock_is_in_step_with_its_source(part: lock.Lock) -> None:
    source = part.source()
    text = (ROOT / part.file).read_text()
    assert len(source) > (10 if part.projects else 1)
    assert {
        canonicalize_name(requirement.name)
        for requirement in source
        if not requirement.marker or requirement.marker.evaluate()
    } <= set(lock.pinned(text))
    try:
        needs = lock.needed(source) if part.projects else lock.pinned(text)
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed yet: `make setup`")
    assert list(lock.faults(text, source, needs)) == []


def test_the_smaller_locks_have_the_same_versions_and_hashes() -> None:
    whole = {
        (requirement.name, str(requirement.specifier)): hashes
        for requirement, hashes in lock.locked((ROOT / "requirements-dev.txt").read_text())
    }
    for name in ("requirements.txt", "requirements-lab.txt"):
        for requirement, hashes in lock.locked((ROOT / name).read_text()):
            assert whole[requirement.name, str(requirement.specifier)] == hashes, f"{name}: {requirement}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD, ""),
        (GOOD.replace(f" \\\n    --hash={HASH}", "", 1), "flask: expected the SHA-256 of each of its files"),
        (GOOD.replace("sha256:0", "sha256:x", 1), "flask: expected the SHA-256 of each of its files"),
        (GOOD.replace("3.1.3", "3.1.2"), "flask: locked is 3.1.2, pyproject.toml has ==3.1.3"),
        (GOOD.replace("click==8.5.1", "click==8.5.0"), "click: locked is 8.5.0, installed 8.5.1"),
        (GOOD.replace("click==", "click>="), "expected one version"),
        (GOOD.replace("flask==3.1.3", "flask"), "flask: expected one version"),
        (GOOD.partition("click")[0], "click: needed, but not locked"),
        (GOOD + f"rich==15.0.0 --hash={HASH}\n", "rich: locked, but nothing needs it"),
    ],
)
def test_a_lock_that_is_not_in_step_says_where(text: str, fault: str) -> None:
    faults = "; ".join(lock.faults(text, SOURCE, NEEDS))
    assert bool(faults) == bool(fault), faults
    assert fault in faults


def test_a_line_that_is_no_package_says_which() -> None:
    with pytest.raises(ValueError, match=r"'-e \.': expected a package with its version"):
        list(lock.locked("-e .\n"))


def test_whatever_installs_from_a_lock_demands_the_hashes() -> None:
    for name in ("tools/setup.py", "packaging/environment.py"):
        code = (ROOT / name).read_text()
        assert re.search(r'"--require-hashes",\s*"-r"', code), name
        assert code.count('"-r"') == 1, f"{name}: one place installs from a lock"
