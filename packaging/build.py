#!/usr/bin/env python3
"""Builds the Debian packages: the same bytes each time from the same sources (SOURCE_DATE_EPOCH, or the last commit's
time). Beside each is the list of its parts (SBOM, `.cdx.json`).

`make deb` calls it; `make setup` must have been there, and `make setup-arm64` for arm64 on another machine. The
controller's Python packages come as wheels, and nothing is compiled on the target hosts.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import components
import environment
import manual
import sbom
from environment import LOCK

from tools import setup_arm64  # `environment` has made it reachable
from tools.systems import MACHINES, SYSTEMS, System, own_architecture

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
BUILD = ROOT / ".build"
PRESSED = ("-Zzstd", "-z12")
"""More takes minutes, and saves 2%."""
SNIFFER = "slackwater-sniffer"
PROGRAMS = ("slackwater-monitor", SNIFFER, "slackwater-wsengine")
MAINTAINER = "Slackwater <slackwater@localhost>"


def output(*command: str | Path, **environment: str) -> str:
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def version() -> str:
    """The version of both languages; they must be the same."""
    python = output(sys.executable, "-c", "import slackwater; print(slackwater.__version__)", PYTHONPATH=str(ROOT))
    rust = output(BUILD.parent / "target/release/slackwater-monitor", "--version").split()[-1]
    if python.strip() != rust:
        sys.exit(
            f"the Python code has version {python.strip()}, slackwater-monitor {rust}: `make setup` builds it anew"
        )
    return rust


def install(source: Path, place: Path, mode: int = 0o644) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(mode)


def write(place: Path, text: str, mode: int = 0o644) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    place.chmod(mode)


def write_gz(place: Path, text: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(text, 9, mtime=0))
    place.chmod(0o644)


def documents(stage: Path, name: str, epoch_s: int, full_version: str, releases: str) -> None:
    folder = stage / "usr/share/doc" / name
    # Debian's form of it: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n"
    head += "Copyright: the Slackwater authors\nLicense: Apache-2.0\n"
    head += " On Debian systems the text of the licence is in /usr/share/common-licenses/Apache-2.0.\n"
    head += "Comment: third-party-notices.txt.gz beside this file has the licences of what others wrote.\n"
    write(folder / "copyright", head)
    day = output("date", "-u", "-R", "-d", f"@{epoch_s}").strip()
    head = f"{name} ({full_version}) {releases}; urgency=medium"
    entry = f"{head}\n\n  * See CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {day}\n"
    write_gz(folder / "changelog.Debian.gz", entry.encode())
    write_gz(folder / "CHANGELOG.md.gz", (ROOT / "CHANGELOG.md").read_bytes())
    install(ROOT / "docs/reference/settings.md", folder / "settings.md")


def units(stage: Path, folder: Path, name: str) -> None:
    for unit in sorted(folder.glob("*.service")):
        install(unit, stage / "lib/systemd/system" / unit.name)
    install(folder / "sysusers.conf", stage / f"usr/lib/sysusers.d/{name}.conf")
    install(folder / "tmpfiles.conf", stage / f"usr/lib/tmpfiles.d/{name}.conf")


def apparmor(stage: Path, folder: Path) -> None:
    """The profiles, which a site may change: dpkg keeps its changes."""
    profiles = sorted((folder / "apparmor").iterdir())
    for profile in profiles:
        install(profile, stage / "etc/apparmor.d" / profile.name)
    write(stage / "DEBIAN/conffiles", "".join(f"/etc/apparmor.d/{profile.name}\n" for profile in profiles))


def is_cross(architecture: str) -> bool:
    """Whether it is another one than this machine's."""
    return architecture != own_architecture()


def stage_program(name: str, folder: Path, architecture: str) -> None:
    """One of the Rust programs."""
    programs = setup_arm64.programs() if is_cross(architecture) else ROOT / "target/release"
    release(programs / name, folder / name, architecture)


def release(built: Path, place: Path, architecture: str) -> None:
    """The program without the library path that it has in a checkout, and without what differs between checkouts: the
    names of its symbols, and the id that is made of them."""
    install(built, place, 0o755)
    if is_cross(architecture):  # built without a library path
        strip: str | Path = setup_arm64.STRIP
    else:
        output("chrpath", "-d", place)
        strip = "strip"
    output(strip, "--strip-unneeded", "--remove-section=.note.gnu.build-id", place)


def rust_components(names: Sequence[str], architecture: str) -> list[components.Component]:
    return components.rust(names, setup_arm64.TARGET if is_cross(architecture) else "")


def stage_node(stage: Path, program_version: str, epoch_s: int, architecture: str) -> None:
    """The Rust programs. What they say of themselves is asked of those that run here."""
    for name in PROGRAMS:
        stage_program(name, stage / "usr/bin", architecture)
        help_of = manual.read(str(ROOT / "target/release" / name))
        write_gz(stage / f"usr/share/man/man1/{name}.1.gz", manual.man_page(help_of, program_version, epoch_s).encode())
        write(stage / "usr/share/bash-completion/completions" / name, manual.bash_completion(help_of))


def stage_python(place: Path) -> None:
    """Our Python code with all files beside it, into a folder. What is a link in the checkout comes as files."""
    links = [path.name for path in (ROOT / "slackwater").iterdir() if path.is_symlink()]
    listed = output("git", "ls-files", "--cached", "--others", "--exclude-standard", "slackwater", *links)
    for name in sorted(listed.splitlines()):
        if (ROOT / name).is_file():
            install(ROOT / name, place / (name if name.startswith("slackwater/") else f"slackwater/{name}"))


def stage_controller(stage: Path, program_version: str, epoch_s: int, system: System, architecture: str) -> None:
    """Our Python code and its pinned packages as a virtual environment of the system's Python, and the sniffer in it:
    the node's package has one of its own, and both may be on a host."""
    shutil.copytree(environment.third_party(system, architecture), stage, symlinks=True, dirs_exist_ok=True)
    ours = Path(tempfile.mkdtemp(dir=stage.parent, prefix="ours."))
    stage_python(ours / environment.site(system))
    environment.compile_python(system, ours, environment.site(system))
    shutil.copytree(ours, stage, dirs_exist_ok=True)
    shutil.rmtree(ours)
    home = stage / "opt/slackwater"
    write(home / "pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {system.python}\n")
    (home / "bin").mkdir(mode=0o755)
    (home / "bin/python").symlink_to(f"/usr/bin/python{system.python}")
    write(
        stage / "usr/bin/slackwater",
        "#!/opt/slackwater/bin/python -I\nfrom slackwater.controller.cli.main import main\n\nmain()\n",
        0o755,
    )
    stage_program(SNIFFER, home / "bin", architecture)
    help_of = manual.in_reference((ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8"), "slackwater")
    write_gz(stage / "usr/share/man/man1/slackwater.1.gz", manual.man_page(help_of, program_version, epoch_s).encode())
    for shell, place in {
        "bash": "usr/share/bash-completion/completions/slackwater",
        "zsh": "usr/share/zsh/vendor-completions/_slackwater",
        "fish": "usr/share/fish/vendor_completions.d/slackwater.fish",
    }.items():
        script = output(BUILD / "venv/bin/slackwater", _SLACKWATER_COMPLETE=f"{shell}_source", PYTHONPATH=str(ROOT))
        write(stage / place, script)


PACKAGES = {"slackwater-node": "node", "slackwater-controller": "controller"}
"""Package -> its folder here."""


def settle(stage: Path, epoch_s: int) -> None:
    """Modes and times that don't depend on who builds when."""
    for path in [stage, *sorted(stage.rglob("*"))]:
        if not path.is_symlink():
            is_open = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_open else 0o644)
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def build(name: str, revision: str, out: Path, epoch_s: int, system: System, architecture: str) -> Path:
    """One package; returns its file. The node's runs on every system, the controller's on one."""
    folder = PACKAGING / PACKAGES[name]
    is_node = name == "slackwater-node"
    program_version = version()
    releases = " ".join(SYSTEMS) if is_node else system.release
    full_version = f"{program_version}-{revision}" + ("" if is_node else system.suffix)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="stage.") as work:
        stage = Path(work, "root")
        stage.mkdir()
        if is_node:
            stage_node(stage, program_version, epoch_s, architecture)
            carried = rust_components(PROGRAMS, architecture)
        else:
            stage_controller(stage, program_version, epoch_s, system, architecture)
            site = environment.third_party(system, architecture) / environment.site(system)
            carried = components.python(site, LOCK, environment.wheels(system, architecture))
            carried += rust_components([SNIFFER], architecture)
        units(stage, folder, name)
        apparmor(stage, folder)
        documents(stage, name, epoch_s, full_version, releases)
        notices = components.notices(f"What others wrote in {name} {full_version}", carried)
        write_gz(stage / "usr/share/doc" / name / "third-party-notices.txt.gz", notices.encode())
        files = sorted(path for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
        files = [path for path in files if not path.is_relative_to(stage / "DEBIAN")]
        size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
        digests = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in files]
        control = (folder / "control").read_text().replace("@PYTHON@", f"python{system.python}")
        facts = f"Version: {full_version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n"
        facts += f"Installed-Size: {size_kib}\nPriority: optional\n"
        facts += f"Slackwater-Releases: {releases}\n"
        write(stage / "DEBIAN/control", control.replace("\n", "\n" + facts, 1))
        write(stage / "DEBIAN/md5sums", "".join(digests))
        for script in ("postinst", "prerm", "postrm"):
            install(folder / script, stage / "DEBIAN" / script, 0o755)
        settle(stage, epoch_s)
        out.mkdir(parents=True, exist_ok=True)
        file = out / f"{name}_{full_version}_{architecture}.deb"
        output("dpkg-deb", "--root-owner-group", *PRESSED, "--build", stage, file, SOURCE_DATE_EPOCH=str(epoch_s))
        listed = sbom.document(name, full_version, architecture, carried, epoch_s)
        write(out / f"{file.stem}.cdx.json", listed)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: packaging/build.py --out target/packages")
    parser.add_argument("--out", type=Path, default=ROOT / "target/packages", help="where the packages are written")
    parser.add_argument("--revision", default="1", help="what follows the version: 1.0.0-REVISION")
    parser.add_argument("--only", choices=sorted(PACKAGES), help="only this package")
    parser.add_argument(
        "--release", choices=list(SYSTEMS), default="bookworm", help="the controller's system  [default: bookworm]"
    )
    parser.add_argument(
        "--architecture",
        choices=sorted(MACHINES),
        help="of the hosts  [default: this machine's]",
    )
    asked = parser.parse_args()
    architecture = asked.architecture or own_architecture()
    if is_cross(architecture):
        if architecture != "arm64":
            parser.error(f"--architecture {architecture}: expected arm64, or this machine's; others are not built here")
        if not setup_arm64.programs_present():
            sys.exit(f"{setup_arm64.programs()} has not all of {', '.join(PROGRAMS)}: `make setup-arm64` builds them")
    system = SYSTEMS[asked.release]
    if asked.only != "slackwater-node" and not system.interpreter.exists():
        sys.exit(f"{system.interpreter} is not here: `make setup` brings it from the archive of {system.title}")
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    os.umask(0o022)
    for name in [asked.only] if asked.only else PACKAGES:
        file = build(name, asked.revision, asked.out, epoch_s, system, architecture)
        print(f"{file} {file.stat().st_size} bytes, sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
