"""Steps of tools/setup.py: programs of other releases than Debian 12, unpacked below .build and never installed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.setup_base import BIN, BUILD, MULTIARCH, ROOT, SetupError, need, report, run, wrap
from tools.setup_debian import KEYRING, apt_options, mirror

UBUNTU = "http://archive.ubuntu.com/ubuntu"


@dataclass(frozen=True)
class Release:
    """Another release of a distribution, some of whose programs tests run beside Debian 12's."""

    title: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]
    """Those of the programs, and those of the libraries that they load; `name/suite` for one that apt would not take by
    itself."""
    programs: Mapping[str, str]
    """Command -> where the program is in the packages."""
    archive: str = ""
    """Its URL; empty: where this machine gets Debian from."""
    is_older: bool = False
    """Than Debian 12: its programs run with this machine's C library. A newer one's need their own."""

    @property
    def folder(self) -> Path:
        """Where its packages are unpacked."""
        return BUILD / self.title.lower().replace(" ", "-")


HAPROXY = "usr/sbin/haproxy"
HAPROXY_LIBRARIES = (
    *("libc6", "libcrypt1", "libgcc-s1", "libjemalloc2", "liblua5.4-0", "libopentracing-c-wrapper0t64"),
    *("libopentracing1", "libpcre2-8-0", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g"),
)
"""Of Debian 13 and later."""
DEBIAN_13 = Release(
    "Debian 13",
    ("trixie",),
    (
        *("haproxy", *HAPROXY_LIBRARIES),
        *("php8.4-fpm", "libacl1", "libapparmor1", "libargon2-1", "libcap2", "libsodium23", "libsystemd0", "libxml2"),
        *("liblzma5", "libselinux1", "ubuntu-keyring"),
    ),
    {"haproxy-3": HAPROXY, "php-fpm8.4": "usr/sbin/php-fpm8.4"},
)
RELEASES = (
    DEBIAN_13,  # has the keys of Ubuntu's archive
    Release(
        "Debian 11",
        ("bullseye",),
        (
            *("haproxy", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5"),
            *("libpcre2-8-0", "libssl1.1", "libsystemd0", "libzstd1", "zlib1g"),
        ),
        {"haproxy-2.2": HAPROXY},
        is_older=True,
    ),
    Release(
        "Ubuntu 22.04",
        ("jammy", "jammy-updates"),
        (
            *("haproxy", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5"),
            *("libcap2", "libpcre2-8-0", "libssl3", "libsystemd0", "libzstd1", "zlib1g"),
            *("php8.1-fpm", "libacl1", "libapparmor1", "libargon2-1", "libsodium23", "libxml2", "libicu70"),
        ),
        {"haproxy-2.4": HAPROXY, "php-fpm8.1": "usr/sbin/php-fpm8.1"},
        UBUNTU,
        is_older=True,
    ),
    Release(
        "Ubuntu 24.04",
        ("noble", "noble-updates"),
        (
            *("haproxy", "libc6", "libcap2", "libcrypt1", "libgcc-s1", "libgcrypt20", "libgpg-error0", "liblua5.4-0"),
            *("liblz4-1", "liblzma5", "libpcre2-8-0", "libssl3t64", "libstdc++6", "libsystemd0", "libzstd1", "zlib1g"),
            *("php8.3-fpm", "libacl1", "libapparmor1", "libargon2-1", "libselinux1", "libsodium23", "libxml2"),
            *("libicu74",),
        ),
        {"haproxy-2.8": HAPROXY, "php-fpm8.3": "usr/sbin/php-fpm8.3"},
        UBUNTU,
    ),
    Release("Debian 14", ("forky",), ("haproxy", *HAPROXY_LIBRARIES), {"haproxy-3.2": HAPROXY}),
    Release(
        "Debian experimental",
        ("sid", "experimental"),
        ("haproxy/experimental", *HAPROXY_LIBRARIES),
        {"haproxy-3.4": HAPROXY},
    ),
)
UBUNTU_KEYRING = DEBIAN_13.folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
NEWER_PYTHON = Release(
    "Debian 13 Python",
    ("trixie",),
    ("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "libexpat1", "zlib1g"),
    {"python3.13": "usr/bin/python3.13"},
)
"""It compiles that release's package of the controller."""


def unpack_of(release: Release) -> None:
    """Its packages, in its folder. Steps that want the same suite run at the same time, so apt's state is its own."""
    need("apt-get", f"{release.title} comes as Debian's packages")
    state = BUILD / f"apt-of-{release.folder.name}"
    options = apt_options(state)
    sources, archives = state / "sources.list", state / "archives"
    if release.archive:
        keyring, url, parts = str(UBUNTU_KEYRING), release.archive, "main universe"
    else:
        keyring, url, parts = KEYRING, mirror(), "main"
    lines = [f"deb [signed-by={keyring}] {url} {suite} {parts}\n" for suite in release.suites]
    sources.write_text("".join(lines))
    options += ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"]
    options += ["-o", "Dir::State::status=/dev/null"]  # what this machine has says nothing of another release
    archives.mkdir(exist_ok=True)
    run(["apt-get", *options, "update", "-q"])
    run(["apt-get", *options, "download", "-q", *release.packages], cwd=archives)
    shutil.rmtree(release.folder, ignore_errors=True)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, release.folder])
    shutil.rmtree(state, ignore_errors=True)


def bring(release: Release) -> None:
    """Its programs as commands. A program that starts argv[0] anew, as HAProxy does at a reload, starts the command."""
    unpack_of(release)
    for command, program in release.programs.items():
        wrap(command, start(release, program))


def start(release: Release, program: str) -> str:
    """How the program is started: a newer release's by its own dynamic linker."""
    folder = release.folder
    if release.is_older:
        libraries = f"{folder}/usr/lib/{MULTIARCH}:{folder}/lib/{MULTIARCH}"
        return f'LD_LIBRARY_PATH={libraries} exec {folder}/{program} "$@"'
    linker = next(iter(sorted(folder.glob("usr/lib*/**/ld-linux-*.so.*"))), None)
    if linker is None:
        raise SetupError(f"libc6 of {release.title} has no dynamic linker where it was expected")
    named = folder / "linkers" / Path(program).name  # a process has the name of the file that was started
    named.parent.mkdir(exist_ok=True)
    named.unlink(missing_ok=True)
    named.symlink_to(linker)
    return f'exec {named} --library-path {folder}/usr/lib/{MULTIARCH} --argv0 "$0" {folder}/{program} "$@"'


def newer_python() -> None:
    """Debian 13's Python."""
    unpack_of(NEWER_PYTHON)
    for command, program in NEWER_PYTHON.programs.items():
        wrap(command, f"PYTHONHOME={NEWER_PYTHON.folder}/usr {start(NEWER_PYTHON, program)}")


def inputs(*releases: Release) -> list[bytes]:
    """What the wrappers depend on: they have this checkout's path in them."""
    return [str(ROOT).encode(), repr(releases).encode()]


def present(*releases: Release) -> bool:
    """Whether all of their programs are commands."""
    return all((BIN / name).exists() for release in releases for name in release.programs)


def bring_all() -> None:
    """Without one the tests that want its programs are skipped; nothing else needs it."""
    for release in RELEASES:
        try:
            bring(release)
        except SetupError as error:
            report(f"no {', '.join(release.programs)} here, which some tests would like: {error}")
