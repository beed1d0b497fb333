"""Where the tests find the checkout and their own files."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
EXAMPLES = ROOT / "schema" / "examples"
RECORDINGS = TESTS / "recordings"
TRACES = TESTS / "traces"
PROGRAMS = ROOT / ".build" / "bin"
