"""The manual pages say what docs/reference/command-line.md says: both are what `--help` prints."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.built_packages import packaging_module
from tests.support.paths import ROOT

REFERENCE = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")


def plain(text: str) -> str:
    """Without the spaces at the ends of lines, and without roff's escapes."""
    return "\n".join(line.rstrip() for line in text.replace("\\&", "").replace("\\-", "-").splitlines())


@pytest.mark.parametrize("words", [["slackwater-monitor"], ["slackwater-sniffer"], ["slackwater-wsengine"]])
def test_a_manual_page_has_the_text_of_the_reference_for_each_command(words: list[str]) -> None:
    path = shutil.which(words[0], path=f"{ROOT / '.build/bin'}:{ROOT / 'target/release'}")
    if path is None:
        pytest.skip(f"{words[0]} is not built")
    manual = packaging_module("manual")
    program = manual.read(path, words)
    page = plain(manual.man_page(program, "1.0", 0).replace("\\e", "\\"))
    sections = re.findall(r"(?ms)^##+ ([a-z -]+)\n\n```text\n(.*?)\n```$", REFERENCE)
    ours = {name: text for name, text in sections if name.split()[: len(words)] == words}
    assert len(ours) > 1
    assert not [name for name, text in ours.items() if text not in page]


def test_the_manual_of_slackwater_has_all_commands_of_a_site_and_none_of_the_lab() -> None:
    manual = packaging_module("manual")
    page = plain(manual.man_page(manual.in_reference(REFERENCE, "slackwater"), "1.0", 0))
    assert page.count("\n.SS slackwater status\n") == 1
    assert page.count("\n.SS slackwater governor run\n") == 1
    assert "For developers" not in page
    assert "slackwater lab" not in page
    assert "slackwater-monitor" not in re.findall(r"(?m)^.SS (\S+)", page)
