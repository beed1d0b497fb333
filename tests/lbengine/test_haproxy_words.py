"""Lines of haproxy.cfg split as a real HAProxy splits them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.lbengine.backends.haproxy.configuration import UNKNOWN, lines_of, rows_of, sections, words
from tests.support.real_haproxy import haproxy_program, needs_haproxy

PARTS = st.sampled_from(
    [
        "a",
        "B9",
        " ",
        "\t",
        '"',
        "'",
        "\\",
        "#",
        "$",
        "${",
        "}",
        "$HOME",
        "${HOME}",
        "${NONE-d}",
        "\\ ",
        '\\"',
        "\\x41",
        "é",
    ]
)
ENVIRON = {"HOME": "/h x"}


@needs_haproxy
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(PARTS, max_size=8).map("".join), min_size=1, max_size=12))
@example(["a#b", "'a b'", '"a $HOME"', "$HOME", "a\\#b", '"\\$HOME"', "'$HOME'", "\\q", '"\\q"', "\\'x\\'", "\u00a0a"])
def test_haproxy_splits_the_same_words(values: list[str]) -> None:
    """`setenv` takes one value, and `.notice` shows it; a line of more or fewer words, or with a quote that is never
    closed, is refused by its number."""
    program = haproxy_program("haproxy")
    assert program
    lines = ["global", *(f" setenv V{n} {value}" for n, value in enumerate(values))]
    shown = [f' .notice "<{n}:$V{n}>"' for n in range(len(values))]
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text("\n".join([*lines, *shown, ""]))
        done = subprocess.run([program, "-c", "-f", str(file)], capture_output=True, text=True, env=ENVIRON)
    refused = {int(number) - 2 for number in re.findall(r"ALERT.*? parsing \[.*?:(\d+)\]", done.stderr)}
    for number, line in enumerate(lines[1:]):
        row = words(line, ENVIRON)
        if number not in refused:
            assert row[:2] == ["setenv", f"V{number}"]
            assert f"<{number}:{row[2]}>" in done.stderr
        elif not re.search("unmatched|unrecognized|forbidden", done.stderr):
            assert len(row) != 3 or not row[2]


def test_only_a_line_feed_ends_a_line_and_only_haproxy_knows_some_values() -> None:
    assert lines_of("a\x0bb\u2028c\r\nd") == ["a\x0bb\u2028c\r\n", "d"]
    assert words('x "$A" "${A[*]}" "${B-c}"', {}) == ["x", UNKNOWN, UNKNOWN, "c"]
    rows = rows_of(["global", " setenv A 1", " presetenv A 2", ' server "$A"', " unsetenv A", ' server "$A"'], {})
    assert (rows[3][1], rows[5][1]) == ("1", UNKNOWN)
    assert [section[:2] for section in sections(rows_of(["defaults d from e", "", "backend b # c", " x"], {}))] == [
        ("defaults", "d"),
        ("backend", "b"),
    ]


def test_what_a_condition_does_to_a_variable_only_haproxy_knows() -> None:
    lines = [
        "global",
        " setenv A 1",
        " .if defined(X)",
        "  setenv A 5",
        "  presetenv B 6",
        "  unsetenv C",
        "  setenv D 4",
        " .endif",
        ' server "$A" "${B-7}" "${C-8}" "$D" "$E"',
    ]
    rows = rows_of(lines, {"C": "3", "D": "4", "E": "9"})
    assert rows[-1][1:] == [UNKNOWN, UNKNOWN, UNKNOWN, "4", "9"]


def test_haproxys_own_variables_have_no_default_here() -> None:
    """From some version on HAProxy sets them by itself: 3.0 has `HAPROXY_BRANCH`, 2.6 takes the default."""
    assert words('"${HAPROXY_BRANCH-7}" "${HAPROXY_OF_THE_SITE-7}"', {}) == [UNKNOWN, "7"]
    assert words('"${HAPROXY_BRANCH-7}"', {"HAPROXY_BRANCH": "3.2"}) == ["3.2"]
