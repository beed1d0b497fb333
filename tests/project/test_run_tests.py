"""The one line that `make test` ends with: cargo's tests and pytest's together, and why some were skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.run_tests import Tally

CARGO = """\
#!/bin/sh
[ "$*" = "test --workspace --locked -- --show-output" ] || exit 9
cat <<END
running 4 tests
test a ... ok
test b ... ok
test c ... ignored, needs root
test d ... ok

successes:

---- d stdout ----
what a test said that passed
skipped: no cgroup of version 2 can be made here
skipped: this test was counted already

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 1 test
test e ... {fifth}
test result: {fifth}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
END
exit {status}
"""
PYTESTS = """\
import pytest

@pytest.mark.parametrize("number", range(3))
def test_many(number): pass

@pytest.mark.parametrize("number", range(2))
def test_skipped(number): pytest.skip("no network\\nnamespaces")

@pytest.mark.skipif(True, reason="haproxy-3 is not in PATH")
def test_marked(): pass

@pytest.mark.xfail
def test_expected(): assert False

@pytest.fixture
def broken(): yield; assert BROKEN != "teardown"

def test_with_fixture(broken): assert BROKEN != "call"

@pytest.mark.slow
def test_slow(): assert False
"""


def run(folder: Path, *arguments: str, cargo_fails: bool = False, broken: str = "") -> tuple[int, list[str]]:
    """The whole program in a folder, on a cargo of the test's and the real pytest: exit status and printed lines."""
    fifth = {"fifth": "FAILED", "passed": 0, "failed": 1, "status": 101}
    if not cargo_fails:
        fifth = {"fifth": "ok", "passed": 1, "failed": 0, "status": 0}
    (folder / "bin").mkdir()
    (folder / "bin/cargo").write_text(CARGO.format(**fifth))
    (folder / "bin/cargo").chmod(0o755)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow: later\n")
    (folder / "conftest.py").write_text("from tests.support.count_tests import register as pytest_configure\n")
    (folder / "test_it.py").write_text(f"BROKEN = {broken!r}\n{PYTESTS}")
    (folder / "test_file.py").write_text("import pytest\npytest.skip('not here', allow_module_level=True)\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/run_tests.py"), "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()


def test_the_last_line_has_all_tests_and_the_reasons_of_those_that_did_not_run(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "-m", "not slow")
    assert (status, lines[-1]) == (
        0,
        "14 ran: 8 passed, 6 skipped (2: no network namespaces; 1: needs root; 1: no cgroup of version 2 can be"
        " made here; 1: not here; 1: haproxy-3 is not in PATH); slow ones left to `make test-full`: 1",
    )
    assert "what a test said that passed" not in lines
    assert any(line.startswith("test result: ok. 3 passed; 0 failed; 1 ignored") for line in lines), "cargo's own stay"
    assert any("4 passed, 4 skipped, 1 xfailed" in line for line in lines), "and pytest's"


@pytest.mark.parametrize("broken", ["call", "teardown"])
def test_a_failure_of_pytest_fails_the_run_and_is_counted_once(tmp_path: Path, broken: str) -> None:
    status, lines = run(tmp_path, "-m", "not slow", broken=broken)
    assert status == 1
    assert lines[-1].startswith("14 ran: 7 passed, 1 failed, 6 skipped (")


def test_a_failure_of_cargo_fails_the_run_before_pytest(tmp_path: Path) -> None:
    status, lines = run(tmp_path, cargo_fails=True)
    assert status == 101
    assert lines[-1].startswith("5 ran: 2 passed, 1 failed, 2 skipped (")


def test_thousands_are_parted() -> None:
    tally = Tally()
    counts = {"outcomes": {"passed": 1204, "skipped": 1007}, "reasons": {"no": 1007}, "slow_left_out": 1000}
    tally.add_counts_of_pytest(json.dumps(counts))
    assert tally.line() == (
        "2,211 ran: 1,204 passed, 1,007 skipped (1,007: no); slow ones left to `make test-full`: 1,000"
    )


def test_a_wrong_option_of_pytest_is_a_failure(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "--no-such-option")
    assert status != 0
    assert lines[-1].startswith("5 ran: 3 passed, 2 skipped (")
