"""Steps of tools/setup.py for arm64: Debian 12's libraries that the node's programs are linked with, an emulator that
runs them on another machine, and the programs themselves. Only who asks for arm64 needs any of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.setup_base import BIN, BUILD, ROOT, SetupError, link, need, report, run
from tools.setup_debian import apt_options
from tools.setup_rust import GET_CARGO, RUST_BINARIES, SHOW_PROGRESS
from tools.systems import own_architecture

TARGET = "aarch64-unknown-linux-gnu"
FOLDER = BUILD / "arm64"
SYSTEM = FOLDER / "system"
"""Below it is what an arm64 Debian 12 has below its root: what programs are linked with, and find when they run."""
LIBRARIES = (
    *("libc6", "libcap2", "libdbus-1-3", "libgcc-s1", "libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5"),
    *("libpcap0.8", "libpfm4", "libsystemd0", "libzstd1"),
)
"""libpcap with all that it loads, libpfm, and the C library."""
EMULATOR = "qemu-aarch64-static"
COMPILER, ARCHIVER, STRIP = (f"aarch64-linux-gnu-{name}" for name in ("gcc", "ar", "strip"))


def is_native() -> bool:
    """Whether this machine is an arm64 one, where `make setup` has built all of it."""
    return own_architecture() == "arm64"


def unpack(names: Sequence[str], place: Path) -> None:
    """Debian's packages for arm64, into a folder in place of what is there, by apt with a state of its own.

    Raises SetupError.
    """
    need("apt-get", "the libraries for arm64 come from Debian 12's packages")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new.") as work:
        options = arm64_apt(Path(work, "apt"))
        archives, fresh = Path(work, "archives"), Path(work, "fresh")
        archives.mkdir()
        fresh.mkdir()
        run(["apt-get", *options, "update", "-q"])
        run(["apt-get", *options, "download", "-q", *newest(names, options)], cwd=archives)
        for archive in sorted(archives.glob("*.deb")):
            run(["dpkg-deb", "-x", archive, fresh])
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)


def arm64_apt(state: Path) -> list[str | Path]:
    """apt's options for arm64; the sources are this machine's."""
    options = [*apt_options(state), "-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"]
    (state / "status").touch()
    return [*options, "-o", f"Dir::State={state}", "-o", f"Dir::State::status={state / 'status'}"]


def newest(names: Sequence[str], options: Sequence[str | Path]) -> list[str]:
    """The packages, and in place of one that only names others, such as a kernel's, those that it names. Raises
    SetupError."""
    command = ["apt-get", *map(str, options), "install", "-s", "-q", "--no-install-recommends", *names]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SetupError(f"apt cannot resolve {', '.join(names)} for arm64:\n  {done.stderr.strip()}")
    installed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    return sorted({*names, *(name for name in installed if name.startswith("linux-image-"))})


# --- the steps -------------------------------------------------------------------------------------------------


def libraries_run() -> None:
    report("unpacking Debian 12's libraries for arm64 into .build/arm64")
    unpack(LIBRARIES, SYSTEM)
    # What the linker looks for is in a package with headers, which are not needed.
    (SYSTEM / "usr/lib/aarch64-linux-gnu/libpcap.so").symlink_to("libpcap.so.0.8")


def libraries_present() -> bool:
    return (SYSTEM / "usr/lib/aarch64-linux-gnu/libpcap.so").exists()


def emulator_run() -> None:
    """It runs single programs; a whole machine is emulated by another one, which `make setup` brings."""
    place = FOLDER / "emulator"
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="new.") as work:
        options = apt_options(Path(work, "apt"))
        run(["apt-get", *options, "update", "-q"])
        run(["apt-get", *options, "download", "-q", "qemu-user-static"], cwd=Path(work))
        (archive,) = Path(work).glob("*.deb")
        shutil.rmtree(place, ignore_errors=True)
        run(["dpkg-deb", "-x", archive, place])
    link(BIN / EMULATOR, place / "usr/bin" / EMULATOR)


def emulator_present() -> bool:
    return (BIN / EMULATOR).exists()


def programs_run() -> None:
    build("--release", "--workspace", "--bins")


def programs_present() -> bool:
    return all((programs() / name).exists() for name in RUST_BINARIES)


def programs() -> Path:
    """The folder with the programs that were built for arm64."""
    return ROOT / "target" / TARGET / "release"


def build(*options: str) -> None:
    """`cargo build` for arm64. Raises SetupError."""
    need("cargo", GET_CARGO)
    need(COMPILER, "`make setup` brings it")
    rust_target()
    report("building the Rust binaries for arm64")
    run(["cargo", "build", "--locked", "--target", TARGET, *options], env={**SHOW_PROGRESS, **cargo_environment()})


def rust_target() -> None:
    """Has rustup fetch Rust's standard library for arm64 when the compiler has none. Raises SetupError."""
    how = f"`rustup target add {TARGET}` brings it; a Rust that rustup did not install has to come with it"
    asked = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", TARGET], cwd=ROOT, capture_output=True, text=True
    )
    if asked.returncode == 0 and next(Path(asked.stdout.strip()).glob("libstd-*.rlib"), None):
        return
    if shutil.which("rustup") is None:
        raise SetupError(f"rustc has no standard library for {TARGET}, and rustup is not on this machine; {how}")
    report(f"rustup brings Rust's standard library for {TARGET}")
    try:
        run(["rustup", "target", "add", TARGET])
    except SetupError as error:
        raise SetupError(f"rustc has no standard library for {TARGET}; {how}\n  {error}") from None


def cargo_environment() -> dict[str, str]:
    """How cargo builds for arm64: Debian's cross compiler, and the libraries that were unpacked."""
    upper, under = TARGET.upper().replace("-", "_"), TARGET.replace("-", "_")
    return {
        f"CARGO_TARGET_{upper}_LINKER": COMPILER,
        # What libpcap loads is found when a program starts.
        f"CARGO_TARGET_{upper}_RUSTFLAGS": "-C link-arg=-Wl,--allow-shlib-undefined",
        f"CC_{under}": COMPILER,
        f"AR_{under}": ARCHIVER,
        "LIBPCAP_LIBDIR": str(SYSTEM / "usr/lib/aarch64-linux-gnu"),
        "LIBPCAP_VER": "1.10.3",
    }
