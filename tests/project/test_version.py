"""The version stands in one place; every other file that names it agrees."""

from __future__ import annotations

import re

from slackwater import __version__
from tests.support.paths import ROOT
from tools import version


def test_every_file_has_the_version_of_the_one_place() -> None:
    assert version.source() == __version__
    assert not version.differing(__version__)


def test_a_file_with_another_version_is_named_and_written_anew() -> None:
    files = version.differing("9.8.7")
    assert files.keys() == version.PLACES.keys()
    for name, (there, text) in files.items():
        assert there == [__version__], name
        before = (ROOT / name).read_text(encoding="utf-8")
        assert text.count("9.8.7") == len(re.findall(version.PLACES[name], before)) > 0
        assert text.replace("9.8.7", __version__) == before


def test_the_changelog_has_the_version() -> None:
    """The newest heading is this version's, or that of what comes after it."""
    heading = re.findall(r"(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[0]
    assert heading == "Unreleased" or heading.startswith(__version__)
