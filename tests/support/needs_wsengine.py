"""Skips where slackwater-wsengine or nats-server is missing."""

from __future__ import annotations

import shutil

import pytest

from tests.support.real_wsengine import PROGRAM

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not on the PATH"),
]
