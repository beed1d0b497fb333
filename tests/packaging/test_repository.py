"""The apt repository: a real apt-get takes what the site's key signed, and nothing else."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.built_packages import build, revised
from tests.support.package_repository import apt_repository, signing_key
from tests.support.paths import ROOT
from tools.systems import MACHINES

PACKAGE = "slackwater-node"
pytestmark = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("apt-get", "apt-ftparchive", "gpg")),
    reason="needs apt-get, apt-ftparchive and gpg",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("packages"), PACKAGE).parent


@pytest.fixture
def repository(packages: Path, tmp_path: Path) -> Path:
    return apt_repository(packages, tmp_path / "repository", signing_key(tmp_path / "gnupg"))


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(repository: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(repository))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def source(url: str, repository: Path) -> str:
    """The file of sources that the documents have a host write, with this address and the repository's key."""
    page = (ROOT / "docs/operations/install.md").read_text(encoding="utf-8")
    name: str
    text: str
    ((name, text),) = re.findall(r"(?s)cat > /etc/apt/sources.list.d/(\S+) <<END\n(.*?)END\n", page)
    assert name == "slackwater.sources", "apt reads no other form from a file of that name"
    keyring = repository / "slackwater-archive-keyring.pgp"
    for pattern, value in (("(?<=URIs: ).*", url), ("(?<=Signed-By: ).*", str(keyring))):
        text, changed = re.subn(pattern, value, text)
        assert changed == 1
    return text


class Apt:
    """apt-get with a state of its own, and the repository as its only source."""

    def __init__(self, folder: Path, source: str) -> None:
        for name in ("lists/partial", "cache/archives/partial", "download", "sources.list.d"):
            (folder / name).mkdir(parents=True)
        self.folder = folder
        (folder / "sources.list.d/slackwater.sources").write_text(source)
        (folder / "status").write_text("")
        self.options = [
            *(f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache", f"Dir::State::status={folder}/status"),
            *("Dir::Etc::SourceList=/dev/null", f"Dir::Etc::SourceParts={folder}/sources.list.d"),
            *("Debug::NoLocking=1", "APT::Sandbox::User=", "Acquire::http::Proxy=false", "Acquire::Languages=none"),
        ]

    def get(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = [word for option in self.options for word in ("-o", option)]
        return subprocess.run(
            ["apt-get", "-q", *options, *words],
            cwd=self.folder / "download",
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def downloaded(self) -> list[Path]:
        return sorted((self.folder / "download").glob("*.deb"))


@pytest.fixture
def apt(repository: Path, url: str, tmp_path: Path) -> Apt:
    return Apt(tmp_path / "apt", source(url, repository))


def change_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_apt_takes_the_package_that_was_built(packages: Path, apt: Apt) -> None:
    updated = apt.get("update")
    assert updated.returncode == 0, updated.stderr
    assert "W:" not in updated.stderr, updated.stderr
    fetched = apt.get("download", PACKAGE)
    assert fetched.returncode == 0, fetched.stderr
    (file,) = apt.downloaded()
    (built,) = packages.glob("*.deb")
    assert file.read_bytes() == built.read_bytes()


def test_a_host_gets_the_package_of_its_own_architecture(packages: Path, tmp_path: Path) -> None:
    """Of both architectures in one folder; the one that is not this machine's is the same but for its name."""
    (built,) = packages.glob("*.deb")
    both = tmp_path / "both"
    both.mkdir()
    files = {name: revised(built, both, "7", name) for name in MACHINES}
    repository = apt_repository(both, tmp_path / "repository", signing_key(tmp_path / "gnupg"))
    for release in ("bookworm", "trixie", "noble"):
        assert "Architectures: amd64 arm64\n" in (repository / "dists" / release / "Release").read_text()
    for name, file in files.items():
        apt = Apt(tmp_path / name, source(f"file:{repository}", repository))
        apt.options += [f"APT::Architecture={name}", f"APT::Architectures={name}"]
        updated = apt.get("update", "--error-on=any")
        assert updated.returncode == 0, updated.stderr
        printed = apt.get("download", "--print-uris", PACKAGE)
        assert f"/pool/{file.name}'" in printed.stdout, printed.stdout + printed.stderr


def test_apt_refuses_a_package_that_was_changed(repository: Path, apt: Apt) -> None:
    assert apt.get("update").returncode == 0
    change_a_byte(next((repository / "pool").glob("*.deb")))
    refused = apt.get("download", PACKAGE)
    assert refused.returncode != 0
    assert "Hash Sum mismatch" in refused.stderr
    assert apt.downloaded() == []


@pytest.mark.parametrize("name", ["InRelease", "main/binary-amd64/Packages.xz"])
def test_apt_refuses_lists_that_were_changed(name: str, repository: Path, apt: Apt) -> None:
    changed = repository / "dists/bookworm" / name
    if name == "InRelease":
        text = changed.read_text()
        changed.write_text(text.replace("Label: Slackwater", "Label: Somebody", 1))
    else:
        change_a_byte(changed)
    refused = apt.get("update", "--error-on=any")
    assert refused.returncode != 0
    assert re.search("BADSIG|invalid|Hash Sum mismatch|not signed", refused.stderr), refused.stderr
    assert apt.get("download", PACKAGE).returncode != 0


def test_apt_refuses_another_key_s_repository(packages: Path, repository: Path, url: str, tmp_path: Path) -> None:
    other = apt_repository(packages, tmp_path / "other", signing_key(tmp_path / "other-gnupg"))
    apt = Apt(tmp_path / "apt", source(url, other))
    refused = apt.get("update", "--error-on=any")
    assert refused.returncode != 0
    assert "NO_PUBKEY" in refused.stderr
    assert (repository / "pool").exists()


def test_a_second_call_replaces_the_repository_and_nothing_else(
    packages: Path, repository: Path, tmp_path: Path
) -> None:
    key = signing_key(tmp_path / "gnupg-2")
    (repository / "pool/old.deb").write_text("")
    apt_repository(packages, repository, key)
    assert not (repository / "pool/old.deb").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("")
    done = repository_command("--packages", str(packages), "--out", str(mine), "--key", "nobody")
    assert done.returncode == 1
    assert "something else is there" in done.stderr
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = repository_command("--packages", str(tmp_path), "--out", str(tmp_path / "out"), "--key", "nobody")
    assert done.returncode == 1
    assert "expected Debian packages (*.deb)" in done.stderr
    assert not (tmp_path / "out").exists()


def repository_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "packaging/repository.py"), *words], capture_output=True, text=True
    )
