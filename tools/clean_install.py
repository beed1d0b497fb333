#!/usr/bin/env python3
"""Installs the packages on a plain Debian or Ubuntu, runs them there, and removes them: what each step took.

The system is a root file system of its own, without a network and without a running systemd; its apt gets our packages
from a repository that is signed with a key made for it. Needs root, and what `make setup` brings; for arm64 on another
machine, where it is emulated, what `make setup-arm64` brings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.built_packages import revised
from tests.support.clean_root import base, clean_root, own, why_not
from tests.support.clean_site import BASELINE, BUS, CleanSite, clean_site
from tests.support.package_repository import SigningKey, apt_repository, signing_key
from tests.support.paths import ROOT
from tools.systems import MACHINES, SYSTEMS, own_architecture

OURS = CONTROLLER, NODE = "slackwater-controller", "slackwater-node"
UPGRADED, NEWER = "99", "newer"
"""Revision of the packages that the upgrade brings, and the folder that they are in, below the others."""
APT_S = 1800.0
"""For apt-get on a busy machine."""
SOURCE = "/etc/apt/sources.list.d/slackwater.sources"
SOURCES = """\
Types: deb
URIs: file:/srv/slackwater
Suites: {release}
Components: main
Signed-By: /srv/slackwater/slackwater-archive-keyring.pgp
"""


@dataclass(frozen=True)
class Step:
    """One thing that was done."""

    step: str
    seconds: float
    found: str


class Story:
    """The steps, in their order, on one release; each gives in words what it found."""

    def __init__(self, site: CleanSite, release: str, packages: Path, key: SigningKey, *, captures: bool) -> None:
        """`captures`: packets can be captured there, and not only counters be read."""
        self.site, self.root, self.release = site, site.root, release
        self._packages, self._key, self._captures = packages, key, captures

    def steps(self) -> list[Callable[[], str]]:
        first_use = [self.install, self.init, self.alone]
        return [*first_use, self.monitors, self.observe, self.act, self.upgrade, self.remove]

    def install(self) -> str:
        """The repository among apt's sources, and the controller by apt-get."""
        self._publish(self._packages)
        (self.root.place / SOURCE.lstrip("/")).write_text(SOURCES.format(release=self.release))
        before_bytes = self.root.size_bytes()
        self._update()
        self._apt("install", CONTROLLER, "nats-server")
        version = self.root.run("slackwater", "--version").stdout.strip()
        taken_mb = (self.root.size_bytes() - before_bytes) / 1e6
        return f"{version}; {taken_mb:.0f} MB with all that they need"

    def init(self) -> str:
        """Settings beside the running HAProxy, and the controller started as its unit starts it."""
        result = json.loads(self.root.run("slackwater", "init", "--json").stdout)
        self.site.start_controller()
        assert result["written"], result
        assert not result["missing"], result
        return f"{len(result['pools'][0]['nodes'])} servers found; {result['access']}"

    def alone(self) -> str:
        """Each server's rate, errors and percentiles, with nothing on the web servers."""
        self.site.start_requests()
        rows = self.site.known(times=self._captures)
        shown = rows[0]["percentiles"]
        times = f"p50 {shown['p50_ms']:.2f} ms, p99 {shown['p99_ms']:.2f} ms" if self._captures else "no packets"
        return f"{rows[0]['node']}: {rows[0]['rps']:.0f} requests/s, {times}, {rows[0]['state']}"

    def monitors(self) -> str:
        """The node's package, and the bus with a user for each web server."""
        self._apt("install", NODE)
        result = json.loads(self.root.run("slackwater", "monitors", "--listen", BUS, "--json").stdout)
        return f"commands for {len(result['nodes'])} web servers"

    def observe(self) -> str:
        """A neighbour beside a server: an episode, and no weight is changed."""
        self.site.start_nodes()
        self.site.calm()
        self.site.noise("host1")
        weights = self.site.weights()
        assert set((weights or {}).values()) == {BASELINE}, weights
        weight = self.site.would_have_set("host1")
        self.site.calm()
        return f"an episode of host1; its weight would have been {weight}"

    def act(self) -> str:
        """The same in act mode: the weight is lowered, and comes back."""
        self.root.run("slackwater", "mode", "act", "--why", "the test")
        self.site.noise("host1")
        lowest = self.site.lowered("host1")
        self.site.calm()
        return f"weight of host1 {lowest} instead of {BASELINE}, and back"

    def upgrade(self) -> str:
        """Newer packages in the repository: apt-get takes them, and settings and journal stay."""
        before = self.site.changes()
        self._publish(self._packages / NEWER)
        self._update()
        self._apt("upgrade")
        self.site.stop_controller()
        self.site.start_controller()
        self.site.calm()
        versions = {self.root.run("dpkg-query", "-W", "-f=${Version}", name).stdout for name in OURS}
        assert all(f"-{UPGRADED}" in version for version in versions), versions
        assert self.site.changes()[: len(before)] == before
        return " and ".join(sorted(versions))

    def remove(self) -> str:
        """Everything is gone, what our commands wrote too; HAProxy has its weights."""
        self.site.stop_controller()
        self._apt("purge", *OURS)
        left = [name for name in self._named_after_us() if not name.startswith(("etc/apt/", "var/lib/apt/"))]
        assert not left, left
        weights = self.site.weights()
        assert set((weights or {}).values()) == {BASELINE}, weights
        return "baseline weights; no file of ours is left"

    def _named_after_us(self) -> list[str]:
        """The files and folders with `slackwater` in their names, but for our repository's."""
        places = [str(self.root.place / name) for name in ("etc", "opt", "root", "run", "usr", "var")]
        done = subprocess.run(["find", *places, "-xdev", "-name", "*slackwater*"], capture_output=True, text=True)
        return sorted(str(Path(line).relative_to(self.root.place)) for line in done.stdout.splitlines())

    def _publish(self, packages: Path) -> None:
        apt_repository(packages, self.root.place / "srv/slackwater", self._key)

    def _update(self) -> None:
        """Of our source alone: there is no network for the others, whose lists are there."""
        alone = ("-o", f"Dir::Etc::SourceList={SOURCE}", "-o", "Dir::Etc::SourceParts=/dev/null")
        self.root.run("apt-get", "-q", "--error-on=any", *alone, "-o", "APT::Get::List-Cleanup=0", "update")

    def _apt(self, *words: str) -> None:
        # A file: source is read where it is; Debian's packages are in the archive.
        self.root.run("apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", *words, timeout_s=APT_S)


def tell(release: str, architecture: str, packages: Path) -> Iterator[Step]:
    """The story on one release, step by step. For a process that was started with `own(architecture)`."""
    (packages / NEWER).mkdir()
    for file in packages.glob("*.deb"):
        revised(file, packages / NEWER, UPGRADED)
    system = SYSTEMS[release]
    with clean_root(system, architecture) as root, clean_site(root) as site, tempfile.TemporaryDirectory() as folder:
        key, captures = signing_key(Path(folder, "gnupg")), architecture == own_architecture()
        for step in Story(site, release, packages, key, captures=captures).steps():
            began_s = time.monotonic()
            outcome = step()
            yield Step(step.__name__, round(time.monotonic() - began_s, 1), outcome)


@contextmanager
def made_packages(release: str, architecture: str, there: Path | None) -> Iterator[Path]:
    """A folder with packages of a release and an architecture, linked from `there` or built."""
    with tempfile.TemporaryDirectory(prefix="sw-packages-") as folder:
        out = Path(folder)
        if there is None:
            build = [sys.executable, str(ROOT / "packaging/build.py"), "--out", folder, "--release", release]
            build += ["--architecture", architecture]
            subprocess.run(build, check=True, stdout=sys.stderr)
        else:
            for file in there.glob(f"*_{architecture}.deb"):
                (out / file.name).symlink_to(file.resolve())
        yield out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m tools.clean_install --release trixie --json",
    )
    parser.add_argument("--release", choices=list(SYSTEMS), default="bookworm", help="a system's  [default: bookworm]")
    parser.add_argument("--architecture", choices=sorted(MACHINES), help="of the system  [default: this machine's]")
    parser.add_argument("--packages", type=Path, help="a folder with packages; otherwise they are built")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object for each step")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    architecture = asked.architecture or own_architecture()
    if asked.inside:
        for step in tell(asked.release, architecture, asked.packages):
            line = json.dumps(asdict(step)) if asked.as_json else f"{step.step:8} {step.seconds:6.1f} s  {step.found}"
            print(line, flush=True)
        return 0
    if why := why_not(architecture):
        parser.error(why)
    base(SYSTEMS[asked.release], architecture)
    with made_packages(asked.release, architecture, asked.packages) as packages:
        again = [sys.executable, "-m", "tools.clean_install", "--inside", "--release", asked.release]
        again += ["--architecture", architecture, "--packages", str(packages), *(["--json"] if asked.as_json else [])]
        return subprocess.run([*own(architecture), *again], cwd=ROOT, env=os.environ).returncode


if __name__ == "__main__":
    sys.exit(main())
