#!/usr/bin/env python3
"""Looks for known faults in the packages that Slackwater uses, and for licences and sources that it must not use.

Known faults need a list of advisories: PyPI's for Python (pip-audit), the npm registry's for the browser tests (npm
audit), RustSec's for Rust (cargo-deny). Where one cannot be reached, that is mentioned and is no error. Licences,
sources and duplicates of the Rust crates (`deny.toml`) need no network.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
UP_TO_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """What one look found: nothing, faults, or that it could not look (`not_done` says why)."""

    subject: str
    faults: tuple[str, ...] = ()
    not_done: str = ""

    def __str__(self) -> str:
        if self.not_done:
            return f"audit: {self.subject}: not looked at: {self.not_done}"
        return f"audit: {self.subject}: " + ("; ".join(self.faults) or "no known fault")


def call(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a program that may not be there or may hang: then it failed, with the reason in stderr."""
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]} is not installed")
    try:
        return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=UP_TO_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"{words[0]} did not end within {UP_TO_S:.0f} s")


def reason(text: str) -> str:
    """The last line of what a program printed, shortened."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:160]


def python_packages() -> Outcome:
    """The locked Python packages, by PyPI's advisories."""
    subject = "Python packages"
    command = ("pip-audit", "--requirement", "requirements-dev.txt", "--require-hashes", "--disable-pip")
    done = call(*command, "--format=json", "--progress-spinner=off", "--timeout=10")
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return Outcome(subject, not_done=f"no advisories: {reason(done.stderr)}")
    asked = [known for known in packages if "skip_reason" not in known]
    if not asked:
        return Outcome(subject, not_done="no advisories: the registry has none")
    return Outcome(
        subject,
        tuple(
            f"{known['name']} {known['version']}: {fault['id']} (fixed in {', '.join(fault['fix_versions']) or 'none'})"
            for known in asked
            for fault in known["vulns"]
        ),
    )


def browser_packages() -> Outcome:
    """What drives the browser in tests, by the npm registry's advisories."""
    subject = "browser packages"
    done = call("npm", "audit", "--json", "--package-lock-only", cwd=ROOT / "tests/browser")
    try:
        report = json.loads(done.stdout)
        faults = report["vulnerabilities"]
    except ValueError:
        return Outcome(subject, not_done=f"no advisories: {reason(done.stderr)}")
    except KeyError:
        return Outcome(subject, not_done=f"no advisories: {reason(str(report.get('message', '')))}")
    return Outcome(subject, tuple(f"{name}: {fault['severity']}" for name, fault in faults.items()))


def crates(metadata: Path) -> Outcome:
    """The Rust crates by RustSec's advisories; crates that were withdrawn (yanked) too."""
    subject = "Rust crates"
    fetched = call("cargo-deny", "fetch", "db")
    if fetched.returncode:
        return Outcome(subject, not_done=f"no advisories: {reason(fetched.stderr)}")
    done = call("cargo-deny", "--metadata-path", metadata, "check", "advisories")
    return Outcome(subject, (done.stdout + done.stderr,) if done.returncode else ())


def crates_offline(metadata: Path) -> Outcome:
    """Licences and sources of the Rust crates, and those that are there in several versions."""
    subject = "Rust licences, sources and duplicates"
    done = call("cargo-deny", "--offline", "--metadata-path", metadata, "check", "bans", "licenses", "sources")
    if done.returncode in (124, 127):
        return Outcome(subject, not_done=done.stderr)
    return Outcome(subject, (done.stdout + done.stderr,) if done.returncode else ())


def outcomes() -> list[Outcome]:
    """All looks."""
    described = call("cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={TARGET}")
    looks: list[Callable[[], Outcome]] = [python_packages, browser_packages]
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder, "metadata.json")
        metadata.write_text(described.stdout)
        if described.returncode:
            return [look() for look in looks] + [Outcome("Rust crates", not_done=reason(described.stderr))]
        return [look() for look in looks] + [crates(metadata), crates_offline(metadata)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="Example: tools/audit.py"
    )
    parser.parse_args()
    looked = outcomes()
    for outcome in looked:
        print(outcome, file=sys.stderr if outcome.faults else sys.stdout)
    return 1 if any(outcome.faults for outcome in looked) else 0


if __name__ == "__main__":
    sys.exit(main())
