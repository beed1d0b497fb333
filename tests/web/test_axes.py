"""The axes of the plots and the texts of their values: functions without a page, which Node.js runs alone."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.paths import ROOT


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here")
def test_axes_reach_what_is_usual_and_values_read_as_people_write_them() -> None:
    script = str(ROOT / "tests/browser/scale.test.mjs")
    done = subprocess.run(["node", "--test", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
