"""The children of `serve` load only the libraries that they use while they run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.served_site import CHILDREN, Site

SELDOM = ("sklearn", "scipy", "pyarrow", "matplotlib", "pandas", "joblib", "skops")
"""Libraries of training, of reports and of one law."""


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    yield site
    site.clean()


def mapped(pid: int) -> set[str]:
    """Packages of which a running process has mapped a compiled module."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"/site-packages/([a-z]+)(?:\.libs)?/", maps))


@needs_haproxy
def test_no_running_child_has_mapped_a_library_of_training(site: Site) -> None:
    site.serve()
    site.wait_for_cycles()
    children = site.children()
    assert children.keys() >= CHILDREN
    mapped_by = {name: mapped(pid) for name, pid in children.items()}
    assert "numpy" in mapped_by["detector"], "the detector's arrays: this test would see nothing otherwise"
    assert {name: seldom for name, libraries in mapped_by.items() if (seldom := libraries & set(SELDOM))} == {}
    assert "numpy" not in mapped_by["lbengine"]


def loaded(source: str) -> set[str]:
    """The seldom libraries that are in sys.modules after this program."""
    shown = f"{source}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split()) & set(SELDOM)


@pytest.mark.parametrize(
    "source",
    [
        "from slackwater.detector.service import *; choose_model(DetectorSettings())",
        "import slackwater.lbengine.service",
        "import slackwater.retune.service",
        "import slackwater.web.service",
    ],
)
def test_what_a_child_imports_has_none_of_them_either(source: str) -> None:
    assert loaded(source) == set()
