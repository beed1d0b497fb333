"""What a run of pytest came to, for the one line that `make test` ends with (tools/run_tests.py asks for it)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FILE = "SLACKWATER_TEST_COUNTS"
"""The environment's name for the file that the counts go to."""
LEFT_OUT = "slow_left_out"
WORST_LAST = ("passed", "skipped", "failed")


class Counts:
    """A plugin. A test counts once, as the worst that setup, call and teardown came to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.slow_left_out = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":  # a whole file
            self._add(report)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.slow_left_out += slow_ones(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Each of several processes leaves out the same tests, and only they know which."""
        self.slow_left_out = node.workeroutput.get(LEFT_OUT, self.slow_left_out)

    def pytest_sessionfinish(self) -> None:
        counts = {
            "outcomes": Counter(self.outcomes.values()),
            "reasons": Counter(self.reasons.values()),
            "slow_left_out": self.slow_left_out,
        }
        self.file.write_text(json.dumps(counts))

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        outcome = "passed" if hasattr(report, "wasxfail") else report.outcome
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, outcome, key=WORST_LAST.index)
        if outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.reasons[report.nodeid] = reason.removeprefix("Skipped: ")


class OneOfSeveral:
    """Counts in one of several processes. The process that started it hears of outcomes, but not of tests left out."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.output = output

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.output[LEFT_OUT] = self.output.get(LEFT_OUT, 0) + slow_ones(items)


def slow_ones(items: Sequence[pytest.Item]) -> int:
    return sum(item.get_closest_marker("slow") is not None for item in items)


def register(config: pytest.Config) -> None:
    """Counts where somebody asked for it; not in runs of pytest that tests start."""
    if hasattr(config, "workeroutput"):
        config.pluginmanager.register(OneOfSeveral(config.workeroutput))
    elif file := os.environ.pop(FILE, ""):
        config.pluginmanager.register(Counts(Path(file)))
