"""Production runs without the lab and the packages that only the lab and training need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slackwater.controller.cli.main import NEEDS
from tests.support.paths import ROOT

PRODUCTION = ("slackwater", "detector", "lbengine", "web")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({NEEDS['lab']!r}))\n"
"""Code after which these packages seem not to be installed."""


def modules() -> list[str]:
    paths = [path.relative_to(ROOT) for part in PRODUCTION for path in sorted((ROOT / part).rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name if name.partition(".")[0] == "slackwater" else f"slackwater.{name}" for name in names]


def python(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + source], capture_output=True, text=True, cwd=ROOT)


def test_every_production_module_can_be_imported_without_them() -> None:
    names = modules()
    assert {"slackwater.controller.cli.main", "slackwater.detector.service", "slackwater.web.service"} <= set(names)
    done = python(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("lab",), ("lab", "run", "--rounds", "1"), ("record", "--out", "x"), ("calibrate",)])
def test_a_command_that_needs_them_says_in_one_line_how_to_install_them(words: tuple[str, ...]) -> None:
    done = python(f"from slackwater.controller.cli.main import cli; cli({list(words)!r})")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: `slackwater {words[0]}` needs ")
    assert "pip install . ./lab in a checkout of Slackwater" in done.stderr


@pytest.mark.parametrize("command", ["compare", "plan"])
def test_the_governor_works_without_its_simulated_machines(command: str) -> None:
    assert python("from slackwater.controller.cli.main import cli; cli(['governor', 'run', '--help'])").returncode == 0
    listed = python("from slackwater.controller.cli.main import cli; cli(['governor', '--help'])")
    assert listed.returncode == 0
    assert "run" in listed.stdout
    assert command not in listed.stdout
    done = python(f"from slackwater.controller.cli.main import cli; cli(['governor', {command!r}])")
    assert done.returncode == 1
    needs = "pip install . ./lab in a checkout of Slackwater\n"
    assert done.stderr == f"error: `slackwater governor {command}` needs slackwater-lab: {needs}"


def test_the_overview_lists_the_lab_only_where_it_is_installed() -> None:
    listed = python("from slackwater.controller.cli.main import cli; cli(['--help'])").stdout
    assert "\n  status " in listed
    assert "\n  lab " not in listed
    assert "For developers" not in listed


def test_reading_a_recording_without_them_is_one_line_too() -> None:
    recording = ROOT / "requirements.txt"
    done = python(f"from slackwater.controller.cli.main import cli; cli(['detector', 'evaluate', {str(recording)!r}])")
    assert done.returncode == 1
    assert done.stderr == "error: this needs pyarrow: pip install . ./lab in a checkout of Slackwater\n"
