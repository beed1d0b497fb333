"""Steps of tools/setup.py: our Rust programs, the load generator oha, cargo-deny.

For the demo both are built to be there soon: less optimised, and oha's C libraries from Debian instead of from source.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.setup_base import BIN, BUILD, DEBIAN, MULTIARCH, ROOT, SetupError, link, need, report, run

OHA_VERSION = "1.16.0"
CARGO_DENY_VERSION = "0.20.2"
RUST_BINARIES = ("slackwater-monitor", "slackwater-sniffer", "slackwater-wsengine")
DEMO_BINARIES = ("slackwater-monitor", "slackwater-sniffer")
QUICK_PROFILE = "quick"
"""A profile of Cargo.toml."""
SHOW_PROGRESS = {"CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "80"}
GET_CARGO = "install Rust 1.89 or newer (https://rustup.rs, or Debian's rustup)"


def sources() -> list[bytes]:
    """Names, sizes and times: cargo itself decides what to rebuild, this only spares calling it."""
    files = [ROOT / "Cargo.toml", ROOT / "Cargo.lock", *ROOT.glob(".cargo/*")]
    for crate in ("messages", "node", "sniffer", "monitor", "wsengine"):
        files += [ROOT / crate / "Cargo.toml", *sorted((ROOT / crate / "src").rglob("*.rs"))]
    return [f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}".encode() for path in files if path.exists()]


def built(profile: str, name: str) -> Path:
    return ROOT / "target" / profile / name


def release_run() -> None:
    """All programs as they are shipped, for tests and packages."""
    build("release", "--workspace")
    for name in RUST_BINARIES:
        link(BIN / name, built("release", name))


def release_present() -> bool:
    return are_linked("release", RUST_BINARIES)


def quick_run() -> None:
    """Those that the demo runs."""
    build(QUICK_PROFILE, *(word for name in DEMO_BINARIES for word in ("--package", name)))
    for name in DEMO_BINARIES:
        link(BIN / name, built(QUICK_PROFILE, name))


def quick_present() -> bool:
    return are_linked(QUICK_PROFILE, DEMO_BINARIES)


def are_linked(profile: str, names: Sequence[str]) -> bool:
    """Whether these programs are there, of this profile."""
    return all((BIN / name).resolve() == built(profile, name) and (BIN / name).exists() for name in names)


def build(profile: str, *options: str) -> None:
    need("cargo", GET_CARGO)
    need("cc", "apt-get install gcc libc6-dev")
    report(f"building the Rust binaries (profile {profile})")
    run(["cargo", "build", "--profile", profile, "--locked", *options], env=SHOW_PROGRESS)


def oha_run() -> None:
    report(f"building the load generator oha {OHA_VERSION} (once, some minutes)")
    install("oha", OHA_VERSION, "--features", "rustls")


def quick_oha_run() -> None:
    """With Debian's OpenSSL, SQLite and jemalloc linked in: oha builds its own otherwise, or the crates it uses do."""
    report(f"building the load generator oha {OHA_VERSION} (less optimised)")
    libraries, headers = DEBIAN / "usr/lib" / MULTIARCH, DEBIAN / "usr/include"
    environment = {
        **{"OPENSSL_NO_PKG_CONFIG": "1", "OPENSSL_STATIC": "1", "OPENSSL_LIB_DIR": str(libraries)},
        **{"OPENSSL_INCLUDE_DIR": str(headers), "CFLAGS": f"-I{headers / MULTIARCH}"},
        **{"LIBSQLITE3_SYS_USE_PKG_CONFIG": "1", "SQLITE3_STATIC": "1", "SQLITE3_LIB_DIR": str(libraries)},
        "JEMALLOC_OVERRIDE": str(libraries / "libjemalloc_pic.a"),
        **{"CARGO_PROFILE_RELEASE_OPT_LEVEL": "0", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"},
    }
    features = "native-tls,tikv-jemallocator/unprefixed_malloc_on_supported_platforms"
    try:
        install("oha", OHA_VERSION, "--features", features, environment=environment)
    except SetupError as error:
        report(f"not with Debian's libraries, so as usual: {str(error).splitlines()[0]}")
        oha_run()


def cargo_deny_or_not() -> None:
    """Without it `make lint` leaves out what it checks, and says so; nothing else needs it."""
    report(f"building cargo-deny {CARGO_DENY_VERSION} (once, some minutes)")
    try:
        install("cargo-deny", CARGO_DENY_VERSION)
    except SetupError as error:
        report(f"no cargo-deny here: {error}")


def install(crate: str, version: str, *options: str, environment: dict[str, str] | None = None) -> None:
    """A program of crates.io, into .build/bin."""
    need("cargo", GET_CARGO)
    target = BUILD / f"{crate}-target"
    command: list[str | Path] = ["cargo", "install", crate, "--version", version, "--locked", "--force"]
    command += ["--no-default-features", *options, "--root", BUILD, "--target-dir", target]
    try:
        run(command, env={**SHOW_PROGRESS, **(environment or {})})
    finally:
        shutil.rmtree(target, ignore_errors=True)
