"""What `tools/lines.py` counts where."""

from __future__ import annotations

import pytest

from tools.lines import GOALS, count, groups_of

RUST = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("web/app.py", "a\nb\n", {"code": 2}),
        ("lbengine/decision/decide.py", "a\n", {"code": 1, "decision and laws": 1}),
        ("lab/slackwater_lab/noise.c", "a\n", {"lab": 1}),
        ("tests/web/test_web.py", "a\n", {"tests": 1}),
        ("wsengine/src/engine/tests/leases.rs", "a\n", {"tests": 1}),
        ("node/src/system.rs", RUST, {"code": 2, "tests": 4}),
        ("docs/decisions/0001-packages-are-unpacked.md", "a\n", {"docs/decisions": 1}),
        ("docs/README.md", "a\n", {}),
        ("web/static/vendor/uplot/uplot.js", "a\n", {}),
    ],
)
def test_each_line_is_counted_where_it_belongs(name: str, text: str, lines: dict[str, int]) -> None:
    assert +groups_of(name, text) == lines


def test_the_checkout_has_lines_of_each_group() -> None:
    assert min(count()[group] for group in GOALS) > 0
