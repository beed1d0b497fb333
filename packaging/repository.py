#!/usr/bin/env python3
"""Makes an apt repository folder of our Debian packages, signed with the site's own key.

A web server that serves the folder is all that a host's apt needs (docs/operations/install.md). `make repo` calls it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYRING = "slackwater-archive-keyring.pgp"
"""The public key, in the repository's folder."""
RELEASES_FIELD = "Slackwater-Releases"
"""The field of a package that names the Debian releases it is for."""
CONFIGURATION = """\
Dir {{ ArchiveDir "{folder}"; CacheDir "{work}"; FileListDir "{work}"; OverrideDir "{work}"; }};
Default {{ Packages::Compress ". xz"; Contents::Compress "xz"; }};
TreeDefault {{ Contents " "; SrcDirectory " "; BinCacheDB " "; FileList "dists_{release}_$(ARCH)"; }};
Tree "dists/{release}" {{ Sections "main"; Architectures "{architectures}"; }};
"""


class RepositoryError(Exception):
    """A repository that cannot be made; the text says what is missing."""


def output(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RepositoryError(f"`{' '.join(map(str, command[:3]))} ...`: {done.stderr.strip() or done.returncode}")
    return done.stdout


def sorted_packages(packages: Path) -> dict[tuple[str, str], list[Path]]:
    """The packages of a folder by (release, architecture). Raises RepositoryError when there is none."""
    by_release: dict[tuple[str, str], list[Path]] = {}
    for file in sorted(packages.glob("*.deb")):
        releases = output("dpkg-deb", "-f", file, RELEASES_FIELD).split()
        architecture = output("dpkg-deb", "-f", file, "Architecture").strip()
        if not releases:
            raise RepositoryError(f"{file}: expected a package of `make deb`, with the field {RELEASES_FIELD}")
        for release in releases:
            by_release.setdefault((release, architecture), []).append(file)
    if not by_release:
        raise RepositoryError(f"{packages}: expected Debian packages (*.deb); `make deb` makes them")
    return by_release


def index(folder: Path, release: str, files: dict[str, list[Path]]) -> None:
    """The lists of one release: `files` are its packages by architecture, in `folder`/pool."""
    with tempfile.TemporaryDirectory() as work:
        for architecture, ours in files.items():
            lines = "".join(f"pool/{file.name}\n" for file in ours)
            Path(work, f"dists_{release}_{architecture}").write_text(lines)
            (folder / f"dists/{release}/main/binary-{architecture}").mkdir(parents=True)
        configuration = Path(work, "apt.conf")
        architectures = " ".join(files)
        text = CONFIGURATION.format(folder=folder, work=work, release=release, architectures=architectures)
        configuration.write_text(text)
        output("apt-ftparchive", "generate", configuration)
    about = {
        "Origin": "Slackwater",
        "Label": "Slackwater",
        "Suite": release,
        "Codename": release,
        "Architectures": " ".join(files),
        "Components": "main",
    }
    options = [word for name, value in about.items() for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")]
    listed = output("apt-ftparchive", *options, "release", folder / "dists" / release)
    (folder / "dists" / release / "Release").write_text(listed)


def sign(folder: Path, release: str, key: str) -> None:
    """InRelease and Release.gpg, by a key that gpg knows."""
    place = folder / "dists" / release
    gpg = ("gpg", "--batch", "--yes", "--digest-algo", "SHA512", "--local-user", key)
    output(*gpg, "--output", place / "InRelease", "--clearsign", place / "Release")
    output(*gpg, "--output", place / "Release.gpg", "--armor", "--detach-sign", place / "Release")


def make(packages: Path, out: Path, key: str) -> list[str]:
    """The repository in `out`, in place of one that is there; gives its releases. Raises RepositoryError."""
    for program in ("apt-ftparchive", "gpg", "dpkg-deb"):
        if shutil.which(program) is None:
            raise RepositoryError(f"{program} is not here: `make setup` brings apt-ftparchive, gpg is Debian's gnupg")
    by_release = sorted_packages(packages)
    if out.exists() and any(out.iterdir()) and not (out / KEYRING).exists():
        raise RepositoryError(f"{out}: expected an earlier repository or no folder; something else is there")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f"{out.name}.") as work:
        folder = Path(work, "fresh")
        (folder / "pool").mkdir(parents=True)
        folder.chmod(0o755)
        for file in {file for files in by_release.values() for file in files}:
            shutil.copy2(file, folder / "pool" / file.name)
        releases = sorted({release for release, _ in by_release})
        for release in releases:
            files_of = {
                architecture: files for (of_release, architecture), files in by_release.items() if of_release == release
            }
            index(folder, release, files_of)
            sign(folder, release, key)
        output("gpg", "--batch", "--output", folder / KEYRING, "--export", key)
        if out.exists():
            out.rename(Path(work, "before"))
        folder.rename(out)
    return releases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: packaging/repository.py --key packages@example.org --out /var/www/slackwater",
    )
    parser.add_argument("--packages", type=Path, default=ROOT / "target/packages", help="the folder with the packages")
    parser.add_argument("--out", type=Path, default=ROOT / "target/repository", help="the repository's folder")
    parser.add_argument("--key", required=True, help="the signing key in gpg's keyring: fingerprint or address")
    asked = parser.parse_args()
    os.umask(0o022)
    try:
        releases = make(asked.packages.resolve(), asked.out.resolve(), asked.key)
    except RepositoryError as error:
        sys.exit(f"error: {error}")
    print(f"{asked.out}: {', '.join(releases)}; the key for the hosts is {asked.out / KEYRING}")


if __name__ == "__main__":
    main()
