"""Steps of tools/setup.py: programs of other releases than Debian 12, unpacked below .build and never installed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.setup_base import BIN, BUILD, MULTIARCH, ROOT, SetupError, need, report, run, wrap
from tools.setup_debian import apt_options
from tools.systems import DEBIAN, DEBIAN_12, DEBIAN_13, UBUNTU, UBUNTU_24_04, System


@dataclass(frozen=True)
class Release:
    """What is unpacked of a system: programs that tests run beside Debian 12's, and the Python that compiles the
    controller's package where there is one."""

    system: System
    packages: tuple[str, ...] = ()
    """Those of the programs, and those of the libraries that they load; `name/suite` for one that apt would not take by
    itself."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Command -> where the program is in the packages."""
    is_older: bool = False
    """Than Debian 12: its programs run with this machine's C library. Others run with their own."""

    @property
    def python(self) -> str:
        """Its Python as a command; empty where there is none."""
        return self.system.interpreter.name if self.system.python else ""

    @property
    def all_packages(self) -> list[str]:
        """Its packages with those of its Python."""
        name = self.python
        pythons = (f"{name}-minimal", f"lib{name}-minimal", f"lib{name}-stdlib", "libc6", "libexpat1", "zlib1g")
        return sorted({*self.packages, *(pythons if name else ())})

    @property
    def commands(self) -> list[str]:
        return [*self.programs, *filter(None, [self.python])]


HAPROXY = "usr/sbin/haproxy"
HAPROXY_LIBRARIES = (
    *("libc6", "libcrypt1", "libgcc-s1", "libjemalloc2", "liblua5.4-0", "libopentracing-c-wrapper0t64"),
    *("libopentracing1", "libpcre2-8-0", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g"),
)
"""The packages of Debian 13 and later."""
RELEASES = (
    Release(DEBIAN_12),
    Release(
        DEBIAN_13,
        (
            *("haproxy", *HAPROXY_LIBRARIES),
            *("php8.4-fpm", "libacl1", "libapparmor1", "libargon2-1", "libcap2", "libsodium23", "libsystemd0"),
            *("libxml2", "liblzma5", "libselinux1"),
            *("virtiofsd", "libcap-ng0", "libseccomp2"),  # Debian 12's cannot be started by a normal user
            "ubuntu-keyring",  # for those below
        ),
        {"haproxy-3": HAPROXY, "php-fpm8.4": "usr/sbin/php-fpm8.4", "virtiofsd": "usr/libexec/virtiofsd"},
    ),
    Release(
        System("Debian 11", DEBIAN, ("bullseye",)),
        (
            *("haproxy", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5"),
            *("libpcre2-8-0", "libssl1.1", "libsystemd0", "libzstd1", "zlib1g"),
        ),
        {"haproxy-2.2": HAPROXY},
        is_older=True,
    ),
    Release(
        System("Ubuntu 22.04", UBUNTU, ("jammy", "jammy-updates")),
        (
            *("haproxy", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5"),
            *("libcap2", "libpcre2-8-0", "libssl3", "libsystemd0", "libzstd1", "zlib1g"),
            *("php8.1-fpm", "libacl1", "libapparmor1", "libargon2-1", "libsodium23", "libxml2", "libicu70"),
        ),
        {"haproxy-2.4": HAPROXY, "php-fpm8.1": "usr/sbin/php-fpm8.1"},
        is_older=True,
    ),
    Release(
        UBUNTU_24_04,
        (
            *("haproxy", "libc6", "libcap2", "libcrypt1", "libgcc-s1", "libgcrypt20", "libgpg-error0", "liblua5.4-0"),
            *("liblz4-1", "liblzma5", "libpcre2-8-0", "libssl3t64", "libstdc++6", "libsystemd0", "libzstd1", "zlib1g"),
            *("php8.3-fpm", "libacl1", "libapparmor1", "libargon2-1", "libselinux1", "libsodium23", "libxml2"),
            *("libicu74",),
        ),
        {"haproxy-2.8": HAPROXY, "php-fpm8.3": "usr/sbin/php-fpm8.3"},
    ),
    Release(System("Debian 14", DEBIAN, ("forky",)), ("haproxy", *HAPROXY_LIBRARIES), {"haproxy-3.2": HAPROXY}),
    Release(
        System("Debian experimental", DEBIAN, ("sid", "experimental")),
        ("haproxy/experimental", *HAPROXY_LIBRARIES),
        {"haproxy-3.4": HAPROXY},
    ),
)


def unpack_of(release: Release) -> None:
    """Its packages, in its system's folder."""
    system = release.system
    need("apt-get", f"{system.title} comes as Debian's packages")
    state = BUILD / f"apt-of-{system.folder.name}"
    options = apt_options(state)
    sources, archives = state / "sources.list", state / "archives"
    sources.write_text("".join(f"{line}\n" for line in system.sources()))
    options += ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"]
    options += ["-o", "Dir::State::status=/dev/null"]  # what this machine has says nothing of another release
    archives.mkdir(exist_ok=True)
    run(["apt-get", *options, "update", "-q"])
    run(["apt-get", *options, "download", "-q", *release.all_packages], cwd=archives)
    shutil.rmtree(system.folder, ignore_errors=True)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, system.folder])
    shutil.rmtree(state, ignore_errors=True)


def bring(release: Release) -> None:
    """Its programs as commands. A program that starts argv[0] anew, as HAProxy does at a reload, starts the command."""
    unpack_of(release)
    for command, program in release.programs.items():
        wrap(command, start(release, program))
    if release.python:
        home = f"PYTHONHOME={release.system.folder}/usr"
        wrap(release.python, f"{home} {start(release, f'usr/bin/{release.python}')}")


def start(release: Release, program: str) -> str:
    """How the program is started: with this machine's C library, or by the dynamic linker that it came with."""
    folder = release.system.folder
    libraries = f"{folder}/usr/lib/{MULTIARCH}:{folder}/lib/{MULTIARCH}"
    if release.is_older:
        return f'LD_LIBRARY_PATH={libraries} exec {folder}/{program} "$@"'
    linker = next(iter(sorted(folder.rglob("ld-linux-*.so.*"))), None)
    if linker is None:
        raise SetupError(f"libc6 of {release.system.title} has no dynamic linker")
    named = folder / "linkers" / Path(program).name  # a process has the name of the file that was started
    named.parent.mkdir(exist_ok=True)
    named.unlink(missing_ok=True)
    named.symlink_to(linker)
    return f'exec {named} --library-path {libraries} --argv0 "$0" {folder}/{program} "$@"'


def inputs() -> list[bytes]:
    """What the wrappers depend on: they have this checkout's path in them."""
    return [str(ROOT).encode(), repr(RELEASES).encode()]


def present() -> bool:
    """Whether all programs are commands."""
    return all((BIN / command).exists() for release in RELEASES for command in release.commands)


def bring_all() -> None:
    """Without one the tests that want its programs are skipped, and its package of the controller cannot be built."""
    for release in RELEASES:
        try:
            bring(release)
        except SetupError as error:
            report(f"no {', '.join(release.commands)} here, which tests or `make deb` would like: {error}")
