"""Step of tools/setup.py: the kernel of the lab's guests, User Mode Linux, built from Debian's kernel source package.

The build takes some 9 minutes of CPU. Its result is kept in the user's cache, so that `make clean` does not cost them
again, under a name that all it depends on decides; `.build/uml/linux` is a link to it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.setup_base import BUILD, ROOT, SetupError, link, need, report, run
from tools.setup_debian import apt_options
from tools.systems import DEBIAN, System

PACKAGE, VERSION = "linux-source-7.2", "7.2.13-1"
SHA256 = "30a8c5fc63f9028a62e6d7b3f7f43bee67425dbce2a05fceba83f9b87c92083d"
"""Of Debian unstable. The kernel must be newer than 6.12: `seccomp=on`, without which system calls are dear, is."""
SNAPSHOT = "[check-valid-until=no signed-by={keyring}] http://snapshot.debian.org/archive/debian/20261129T000000Z"
"""Keeps the package when the archive has a newer one."""
BUILD_TOOLS = ("bison", "flex", "m4")
"""What building a kernel needs besides a compiler, make and bc; they are unpacked for the build only."""
CONFIG = "lab/slackwater_lab/native/uml.config"
KERNEL = BUILD / "uml/linux"

CLOCK_FILE, CLOCK_BEFORE = "arch/um/kernel/time.c", "void timer_handler(int sig"
CLOCK = """\
#ifndef CONFIG_UML_TIME_TRAVEL_SUPPORT
/* Run delay and pressure in nanoseconds: the scheduler's clock goes by ticks of 10 ms otherwise. */
notrace unsigned long long sched_clock(void)
{
	return os_nsecs();
}
#endif

"""


def inputs() -> list[bytes]:
    """What decides how the kernel is."""
    return [PACKAGE.encode(), VERSION.encode(), SHA256.encode(), CLOCK.encode(), (ROOT / CONFIG).read_bytes()]


def kept() -> Path:
    """Where the kernel is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(b"\0".join(inputs())).hexdigest()
    return cache / "slackwater" / f"uml-{VERSION}-{digest[:16]}" / "linux"


def present() -> bool:
    return KERNEL.resolve() == kept().resolve() and KERNEL.exists()


def kernel_run() -> None:
    """Builds the kernel unless it is kept already. Raises SetupError."""
    place = kept()
    if not place.exists():
        if platform.machine() != "x86_64":
            raise SetupError(f"User Mode Linux is for x86-64; this machine is {platform.machine()}")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD, prefix="new.uml.") as name:
            built = build(Path(name))
            fresh = place.with_suffix(".new")
            run(["strip", "-o", fresh, built])
            fresh.replace(place)
    link(KERNEL, place)


def build(work: Path) -> Path:
    """The kernel, built in a folder. Raises SetupError."""
    how = "`apt-get install build-essential bc` brings what a kernel is built with"
    for program in ("gcc", "make", "bc", "strip"):
        need(program, how)
    report(f"building the guests' kernel (User Mode Linux {VERSION}; some 9 minutes of CPU, once)")
    archive = source_package(work)
    run(["dpkg-deb", "-x", archive, work / "package"])
    archive.unlink()
    (packed,) = (work / "package/usr/src").glob("linux-source-*.tar.xz")
    with tarfile.open(packed) as archived:
        archived.extractall(work, filter="tar")
    packed.unlink()
    (tree,) = work.glob("linux-source-*/")
    clock = tree / CLOCK_FILE
    before, mark, after = clock.read_text().partition(CLOCK_BEFORE)
    if not mark:
        raise SetupError(f"{CLOCK_FILE} of {PACKAGE} {VERSION} has no `{CLOCK_BEFORE}`")
    clock.write_text(before + CLOCK + mark + after)
    environment = build_tools(work)

    def make(*words: str | Path) -> None:
        run(["nice", "-n", "19", *words], cwd=tree, env=environment)

    make("make", "ARCH=um", "x86_64_defconfig")
    make("scripts/kconfig/merge_config.sh", "-m", ".config", ROOT / CONFIG)
    make("make", "ARCH=um", "olddefconfig")
    make("make", "ARCH=um", f"-j{len(os.sched_getaffinity(0))}", "linux")
    return tree / "linux"


def source_package(work: Path) -> Path:
    """The kernel's source as Debian has it now, or had it. Raises SetupError."""
    system = System("Debian unstable", DEBIAN, ("sid",))
    problems = []
    for number, line in enumerate((*system.sources(), f"deb {SNAPSHOT.format(keyring=DEBIAN.keyring)} sid main")):
        folder = work / f"source-{number}"
        options = apt_options(folder)
        sources = folder / "sources.list"
        sources.write_text(f"{line}\n")
        options += ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"]
        options += ["-o", "Dir::State::status=/dev/null"]
        try:
            run(["apt-get", *options, "update", "-q"])
            (archive,) = downloaded([f"{PACKAGE}={VERSION}"], options, folder)
        except SetupError as error:
            problems.append(str(error))
            continue
        with archive.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        if digest != SHA256:
            raise SetupError(f"{archive.name} has the SHA-256 {digest}; expected {SHA256}")
        return archive
    raise SetupError("\n  ".join([f"neither Debian unstable nor its snapshot gives {PACKAGE} {VERSION}:", *problems]))


def build_tools(work: Path) -> dict[str, str]:
    """Unpacks Debian 12's bison, flex and m4; gives the environment that finds them. Raises SetupError."""
    folder = work / "tools"
    options = apt_options(folder)
    run(["apt-get", *options, "update", "-q"])
    for archive in downloaded(BUILD_TOOLS, options, folder):
        run(["dpkg-deb", "-x", archive, folder])
    usr = folder / "usr"
    return {
        "PATH": f"{usr / 'bin'}:{os.environ['PATH']}",
        "M4": str(usr / "bin/m4"),
        "BISON_PKGDATADIR": str(usr / "share/bison"),
    }


def downloaded(packages: Sequence[str], options: Sequence[str | Path], folder: Path) -> list[Path]:
    """These packages' archives, in a folder. Raises SetupError."""
    run(["apt-get", *options, "download", "-q", *packages], cwd=folder)
    return sorted(folder.glob("*.deb"))
