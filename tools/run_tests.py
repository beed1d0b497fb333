#!/usr/bin/env python3
"""Runs cargo's tests and pytest's, and ends with one line: how many ran, passed and were skipped, and why.

pytest is not started when cargo's tests fail. The exit status is that of the first that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

CARGO = ("cargo", "test", "--workspace", "--locked", "--", "--show-output")
CARGO_RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
CARGO_IGNORED = re.compile(r"test .* \.\.\. ignored(?:, (.*))?$")
CARGO_OUTPUT = re.compile(r"---- .* stdout ----")
"""What a test printed follows."""
CARGO_SKIPPED = re.compile(r"skipped: (.*)")
"""What a test of ours prints before it returns, when the machine lacks what it needs; cargo calls it passed."""
DISTRIBUTION = ("--dist=loadgroup", "--no-loadscope-reorder")
"""Groups of tests, and their order: tests/support/side_by_side.py."""
PYTEST = ("pytest", "--numprocesses=3", *DISTRIBUTION)
"""Three processes, whatever the machine: tests wait for programs for more than half of their time."""
COUNTS_FILE = "SLACKWATER_TEST_COUNTS"  # tests/support/count_tests.py writes it


class Tally:
    """What all tests came to, and why some did not run."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.slow_left_out = 0
        self._may_be_skipped = False

    def add_line_of_cargo(self, line: str) -> None:
        if result := CARGO_RESULT.match(line):
            passed, failed, ignored = map(int, result.groups())
            self.outcomes.update(passed=passed, failed=failed, skipped=ignored)
        elif ignored_one := CARGO_IGNORED.match(line):
            self.reasons[ignored_one[1] or "ignored, without a reason"] += 1
        elif CARGO_OUTPUT.match(line):
            self._may_be_skipped = True
        elif self._may_be_skipped and (skipped := CARGO_SKIPPED.match(line)):
            self._may_be_skipped = False
            self.outcomes.update(passed=-1, skipped=1)
            self.reasons[skipped[1]] += 1

    def add_counts_of_pytest(self, text: str) -> None:
        counts = json.loads(text)
        self.outcomes.update(counts["outcomes"])
        self.reasons.update(counts["reasons"])
        self.slow_left_out += counts["slow_left_out"]

    def line(self) -> str:
        """Such as `2,445 ran: 2,443 passed, 2 skipped (1: no such program; 1: needs root)`."""
        parts = [f"{self.outcomes['passed']:,} passed"]
        if self.outcomes["failed"]:
            parts.append(f"{self.outcomes['failed']:,} failed")
        reasons = "; ".join(f"{number:,}: {' '.join(why.split())}" for why, number in self.reasons.most_common())
        parts.append(f"{self.outcomes['skipped']:,} skipped{f' ({reasons})' if reasons else ''}")
        slow = f"; slow ones left to `make test-full`: {self.slow_left_out:,}" if self.slow_left_out else ""
        return f"{self.outcomes.total():,} ran: {', '.join(parts)}{slow}"


def cargo(tally: Tally) -> int:
    """Prints what cargo does, but for the output of tests that passed: it is asked for only to count the skipped."""
    hidden = False
    with subprocess.Popen(CARGO, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            hidden = line == "successes:\n" or (hidden and not line.startswith(("failures:", "test result:")))
            if not hidden:
                print(line, end="", flush=True)
            tally.add_line_of_cargo(line)
    return process.returncode


def pytest(tally: Tally, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        status = subprocess.run([*PYTEST, *arguments], env={**os.environ, COUNTS_FILE: str(counts)}).returncode
        if counts.exists():
            tally.add_counts_of_pytest(counts.read_text())
        elif status == 0:
            raise SystemExit("pytest told nothing of its tests: does tests/conftest.py still register count_tests?")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [what pytest is called with]",
        epilog='Example: tools/run_tests.py -m "not slow"',
        allow_abbrev=False,
    )
    _, arguments = parser.parse_known_args()
    tally = Tally()
    status = cargo(tally) or pytest(tally, arguments)
    print(tally.line(), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
