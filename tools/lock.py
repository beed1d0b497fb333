#!/usr/bin/env python3
"""Works out requirements*.txt from pyproject.toml and lab/pyproject.toml: every package with its version and the hashes
of its files.

They name what is imported and the tools; `uv` finds what those need in turn. Versions that are locked
already stay until `--upgrade`. `--check` needs no network: it compares the locks with what the installed packages say
that they need.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "3.11"
"""The oldest that Slackwater runs on."""


WITH_LAB = ("pyproject.toml", "lab/pyproject.toml")


def read(project: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / project).read_text())


@dataclass(frozen=True)
class Lock:
    """One file of locked packages: what is added to the product's own, and the locks that it must agree with."""

    file: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    agrees_with: tuple[str, ...] = ()
    projects: tuple[str, ...] = ("pyproject.toml",)
    """Whose dependencies are among it. Without any, the packages are for an environment of their own, so
    `--check` compares versions and hashes only."""

    def command(self, out: Path, upgrade: bool) -> list[str]:
        """What writes it to `out`."""
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", PYTHON, "--generate-hashes"]
        command += ["--custom-compile-command", "python tools/lock.py", "--output-file", str(out)]
        command += self.projects
        command += [f"--extra={extra}" for extra in self.extras] + [f"--group={group}" for group in self.groups]
        command += [word for lock in self.agrees_with for word in ("--constraints", lock)]
        return [*command, "--upgrade"] if upgrade else command

    def source(self) -> list[Requirement]:
        """What the projects ask of it."""
        lines = [line for project in self.projects for line in read(project)["project"]["dependencies"]]
        whole = read("pyproject.toml")
        lines += [line for extra in self.extras for line in whole["project"]["optional-dependencies"][extra]]
        lines += [line for group in self.groups for line in whole["dependency-groups"][group]]
        return [Requirement(line) for line in lines]


LOCKS = (
    Lock("requirements.txt"),
    Lock("requirements-lab.txt", projects=WITH_LAB, agrees_with=("requirements.txt",)),
    Lock("requirements-otlp.txt", extras=("otlp",), agrees_with=("requirements.txt",)),
    Lock(
        "requirements-dev.txt",
        projects=WITH_LAB,
        extras=("otlp", "dev"),
        agrees_with=("requirements-lab.txt", "requirements-otlp.txt"),
    ),
    Lock("requirements-docs.txt", groups=("docs",), projects=()),
)


def locked(text: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Each package of a lock with its hashes.

    Raises:
        ValueError: a line is neither.
    """
    for line in re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*$", "", text)).splitlines():
        words, *hashes = re.split(r"\s+--hash=", line.strip())
        if words:
            try:
                yield Requirement(words), hashes
            except InvalidRequirement as error:
                raise ValueError(f"{words!r}: expected a package with its version: {error}") from None


def needed(wanted: Iterable[Requirement]) -> dict[str, str]:
    """Names and versions of the installed packages that these requirements lead to in this environment.

    Raises:
        importlib.metadata.PackageNotFoundError: one of them is not installed.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in wanted]
    while waiting:
        requirement, of_extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(requirement.name)
        distribution = importlib.metadata.distribution(name)
        versions[name] = distribution.version
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(Requirement(line), extra) for line in distribution.requires or []]
    return versions


def pinned(text: str) -> dict[str, str]:
    """Names and versions of a lock, for this environment."""
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement, _ in locked(text)
        if requirement.marker is None or requirement.marker.evaluate()
    }


def faults(text: str, source: list[Requirement], needs: dict[str, str]) -> Iterator[str]:
    """What is wrong with a lock, given what pyproject.toml asks and which packages that needs."""
    pins: dict[str, str] = {}
    for requirement, hashes in locked(text):
        name, specifiers = canonicalize_name(requirement.name), list(requirement.specifier)
        if [specifier.operator for specifier in specifiers] != ["=="]:
            yield f"{requirement}: expected one version, NAME==VERSION"
            continue
        if not hashes or not all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in hashes):
            yield f"{name}: expected the SHA-256 of each of its files"
        if requirement.marker is None or requirement.marker.evaluate():
            pins[name] = specifiers[0].version
    for requirement in source:
        pinned = pins.get(canonicalize_name(requirement.name))
        if pinned is not None and pinned not in requirement.specifier:
            yield f"{requirement.name}: locked is {pinned}, pyproject.toml has {requirement.specifier}"
    yield from (f"{name}: needed, but not locked" for name in sorted(needs.keys() - pins.keys()))
    yield from (f"{name}: locked, but nothing needs it" for name in sorted(pins.keys() - needs.keys()))
    for same in sorted(needs.keys() & pins.keys()):
        if needs[same] != pins[same]:
            yield f"{same}: locked is {pins[same]}, installed {needs[same]} (`make setup` installs what is locked)"


def check() -> int:
    wrong = []
    for lock in LOCKS:
        source = lock.source()
        try:
            text = (ROOT / lock.file).read_text()
            wrong_here = list(faults(text, source, needed(source) if lock.projects else pinned(text)))
        except importlib.metadata.PackageNotFoundError as error:
            wrong_here = [f"{error.name} is not installed: `make setup` installs what is locked"]
        wrong += [f"{lock.file}: {fault}" for fault in wrong_here]
    for fault in wrong:
        print(fault, file=sys.stderr)
    if wrong:
        print("`python tools/lock.py` writes the locks anew", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="Example: tools/lock.py"
    )
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    parser.add_argument("--upgrade", action="store_true", help="also take the newest version of what is not pinned")
    options = parser.parse_args()
    if options.check:
        return check()
    for lock in LOCKS:
        subprocess.run(lock.command(Path(lock.file), options.upgrade), cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
