"""No text has people install a name of a public index: nobody of us has one there, and anyone could register it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

INSTALLERS = r"\b(?:pip3?|pipx|uv(?: pip| tool)?|npm|gem|cargo|ansible-galaxy(?: collection| role)?)"
COMMAND = re.compile(rf"{INSTALLERS}(?: --?[\w-]+(?: /\S+)?)* (?:install|add) ([^`\n#;&|]*)")
"""An installer's name, its own options, and what stands after `install`."""
PATH = re.compile(r"['\"]?(?:\.\.?(?:/.*)?(?:\[[a-z,{}]+\]'?)?|/.*|[\w./-]+\.(?:whl|txt|tar\.gz)|\{.*)['\".,:)]*")
"""A folder or file, or what a program fills in."""
THIS_FILE = "tests/project/test_installs.py"


def names(text: str) -> Iterator[str]:
    """Commands of the text whose first word after the options is no folder or file."""
    for match in COMMAND.finditer(text):
        word = next((word for word in match[1].split() if not word.startswith("-")), ".")
        if not PATH.fullmatch(word):
            yield match[0].strip()


def test_texts_install_from_a_checkout_or_a_file_and_from_no_public_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_file = {}
    for file in filter(None, listed.split("\0")):
        path = ROOT / file
        if file == THIS_FILE or not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" in content[:8000]:
            continue
        text = content.decode("utf-8", "replace")
        if by_name := [*names(text), *re.findall(r"slackwater\[[a-z]+\]", text)]:
            by_file[file] = by_name
    assert not by_file


@pytest.mark.parametrize(
    ("text", "by_name"),
    [
        ("pip install .", False),
        ("`pip install . ./lab` in a checkout", False),
        ("pip install '.[otlp]' in a checkout of Slackwater", False),
        ("python3 -m pip --python /opt/slackwater/bin/python install --require-hashes -r requirements-otlp.txt", False),
        ("ansible-galaxy collection install --force ./ansible", False),
        ("pip install -q target/slackwater-0.1-py3-none-any.whl", False),
        ("pip install 'slackwater[otlp]'", True),
        ("pip3 install slackwater", True),
        ("pipx install slackwater-lab", True),
        ("ansible-galaxy collection install slackwater.slackwater", True),
        ("cargo install slackwater-monitor", True),
    ],
)
def test_what_is_a_name_and_what_is_a_path(text: str, by_name: bool) -> None:
    assert bool(list(names(text))) == by_name
