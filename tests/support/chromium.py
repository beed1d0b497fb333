"""Tests in a real browser: what they need, and how the scripts of `tests/browser/` are run."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.paths import ROOT

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
MODULES = ROOT / ".build/browser"
needs_chromium = (
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: `make setup` brings it"),
    pytest.mark.skipif(not (MODULES / "node_modules/playwright-core").exists(), reason="no playwright-core here"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here"),
)


def browse(script: str, url: str, password: str, within_s: float, *options: str, **environment: str) -> str:
    """Runs a script's tests against the dashboard at `url`; returns what the runner printed.

    `options` are Node.js', `environment` is added to what every script is told. Fails the test when one of them does.
    """
    variables = {"CHROMIUM": str(CHROMIUM), "BROWSER_MODULES": str(MODULES), "URL": url, "PASSWORD": password}
    command = ["node", "--test", "--test-reporter=spec", *options, str(ROOT / "tests/browser" / script)]
    done = subprocess.run(
        command, env={**os.environ, **variables, **environment}, capture_output=True, text=True, timeout=within_s
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout
