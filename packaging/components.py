"""What others wrote and the packages carry: Rust crates in the programs, and the controller's Python packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LICENCE_FILE = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)")
MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
OWN_TEXTS = {
    "Apache-2.0": "On Debian systems the text of the licence is in /usr/share/common-licenses/Apache-2.0.\n",
    "MIT": MIT,
}
"""For those that come without the text of their licence."""


class ComponentError(Exception):
    """A component that cannot be described; the text names it."""


@dataclass(frozen=True)
class Component:
    """One crate or Python package."""

    name: str
    version: str
    kind: str
    """`cargo` or `pypi`, as in package URLs."""
    licence: str
    """Its SPDX expression."""
    authors: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Its licence and notice files."""
    sha256: tuple[str, ...] = ()
    """SHA-256 of the file that it came in."""
    depends: tuple[str, ...] = field(default=())
    """`url` of what it uses itself."""

    @property
    def url(self) -> str:
        """Its package URL."""
        return f"pkg:{self.kind}/{self.name}@{self.version}"


def texts_of(files: Iterable[Path], licence: str, authors: Iterable[str], name: str) -> tuple[str, ...]:
    """The texts of licence files, or the common text of a licence that came without one.

    Raises:
        ComponentError: there is no text of this licence here.
    """
    texts = tuple(file.read_text(encoding="utf-8", errors="replace").strip() + "\n" for file in sorted(files))
    if texts:
        return texts
    known = [words for words in re.split(r"[^A-Za-z0-9.-]+", licence) if words in OWN_TEXTS]
    if not known:
        raise ComponentError(f"{name}: it comes without the text of its licence ({licence or 'none named'})")
    return (f"Copyright: {', '.join(authors) or f'the authors of {name}'}\n\n{OWN_TEXTS[known[0]]}",)


# --- Rust ------------------------------------------------------------------------------------------------------


def rust(programs: Iterable[str], target: str = "") -> list[Component]:
    """The crates that these programs of the workspace are built from, and the standard library; for Rust's name of a
    kind of machine, or for this one.

    Raises ComponentError.
    """
    asked = subprocess.run(["rustc", "--version", "--verbose"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    compiler = dict(line.split(": ", 1) for line in asked.stdout.splitlines() if ": " in line)
    platform = ("--filter-platform", target or compiler["host"])
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *platform]
    described = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    crates = {crate["id"]: crate for crate in described["packages"]}
    uses = {
        node["id"]: [used["pkg"] for used in node["deps"] if any(kind["kind"] is None for kind in used["dep_kinds"])]
        for node in described["resolve"]["nodes"]
    }
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in lock}
    waiting = [key for key, crate in crates.items() if crate["name"] in set(programs)]
    reached: set[str] = set()
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += uses[key]

    def component(crate: dict[str, object], used: Iterable[str] = ()) -> Component:
        name, version = str(crate["name"]), str(crate["version"])
        # An old form of it: https://doc.rust-lang.org/cargo/reference/manifest.html#the-license-and-license-file-fields
        licence = str(crate["license"] or "").replace("/", " OR ")
        authors = tuple(re.sub(r" *<.*>", "", author) for author in crate["authors"])  # type: ignore[attr-defined]
        folder = Path(str(crate["manifest_path"])).parent
        files = [file for file in folder.iterdir() if LICENCE_FILE.match(file.name) and file.is_file()]
        texts = texts_of(files, licence, authors, name)
        digest = sums[name, version]
        return Component(name, version, "cargo", licence, authors, texts, (digest,) if digest else (), tuple(used))

    others = {key for key in reached if crates[key]["source"] is not None}
    urls = {key: f"pkg:cargo/{crates[key]['name']}@{crates[key]['version']}" for key in others}
    parts = [component(crates[key], sorted(urls[used] for used in uses[key] if used in others)) for key in others]
    licence, authors = "MIT OR Apache-2.0", ("the Rust Project contributors",)
    library = texts_of([], licence, authors, "std")
    parts.append(Component("rust-std", compiler["release"], "generic", licence, authors, library))
    return sorted(parts, key=lambda part: (part.name, part.version))


# --- Python ----------------------------------------------------------------------------------------------------


def python(site_packages: Path, lock: Path, wheels: Path) -> list[Component]:
    """The packages that are installed in `site_packages`, which came from `wheels` by the hashes in `lock`.

    Raises ComponentError.
    """
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in wheels.glob("*.whl")}
    locked = locked_hashes(lock.read_text())
    installed = {
        canonicalize_name(distribution.name): distribution
        for distribution in importlib.metadata.distributions(path=[str(site_packages)])
    }
    folders = {canonicalize_name(folder.name.split("-")[0]): folder for folder in site_packages.glob("*.dist-info")}
    parts = []
    for name, distribution in sorted(installed.items()):
        about = distribution.metadata
        licence = about.get("License-Expression") or licence_of(about.get_all("Classifier") or [], about.get("License"))
        named = about.get("Author") or about.get("Author-email") or about.get("Maintainer-email") or ""
        authors = tuple(filter(None, [re.sub(r" *<.*?>", "", named).strip('" ')]))
        inside = {file for file in folders[name].rglob("*") if file.is_file()}
        files = [file for file in inside if LICENCE_FILE.match(file.name) or file.parent.name == "licenses"]
        used = {canonicalize_name(Requirement(line).name) for line in distribution.requires or [] if is_used(line)}
        parts.append(
            Component(
                name,
                distribution.version,
                "pypi",
                licence,
                authors,
                texts_of(files, licence, authors, name),
                tuple(sorted(digests & locked.get(name, set()))),
                tuple(
                    f"pkg:pypi/{requirement}@{installed[requirement].version}"
                    for requirement in sorted(used & installed.keys())
                ),
            )
        )
    return parts


def is_used(line: str) -> bool:
    """Whether a requirement holds in this environment, without extras."""
    marker = Requirement(line).marker
    return marker is None or marker.evaluate({"extra": ""})


def locked_hashes(text: str) -> dict[str, set[str]]:
    """The hashes of each package in a lock."""
    by_name: dict[str, set[str]] = {}
    for name, hashes in re.findall(r"(?m)^([A-Za-z0-9._-]+)==[^\\]*\\\n((?:\s+--hash=\S+(?: \\)?\n)+)", text):
        by_name[canonicalize_name(name)] = set(re.findall(r"sha256:([0-9a-f]{64})", hashes))
    return by_name


CLASSIFIED = {
    "MIT License": "MIT",
    "MIT": "MIT",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "ZPL 2.1": "ZPL-2.1",
}
"""Older names of licences -> SPDX."""


def licence_of(classifiers: Iterable[str], text: str | None) -> str:
    """The SPDX name of a licence that is given in an older form; empty: none is known."""
    given = [text or "", *(line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::"))]
    return next((CLASSIFIED[name] for name in given if name in CLASSIFIED), "")


def notices(title: str, components: Iterable[Component]) -> str:
    """The file that goes with a package: each component with its licence, then each text once."""
    texts: dict[str, int] = {}
    head = [title, "=" * len(title), ""]
    for part in components:
        numbers = ", ".join(f"[{texts.setdefault(text, len(texts) + 1)}]" for text in part.texts)
        authors = f"; {', '.join(part.authors)}" if part.authors else ""
        head.append(f"{part.name} {part.version}: {part.licence or 'as its text says'}{authors}; texts {numbers}")
    body = [f"\n[{number}]\n{'-' * 78}\n{text}" for text, number in texts.items()]
    return "\n".join([*head, *body])
