#!/usr/bin/env python3
"""Makes what the controller's container image is built from: its Containerfile, and a tar of its root file system.

The root file system is Debian 12's smallest, nats-server and our package. `make image` calls it. It needs root; no
container engine is needed until the image itself is built (`podman build target/image`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.systems import DEBIAN_12  # noqa: E402

CONTAINERFILE = ROOT / "packaging/controller/Containerfile"
TAR = "controller-root.tar"
INSTALL = 'chroot "$1" apt-get -qq -y --no-install-recommends install /tmp/controller.deb nats-server'


def make(package: Path, out: Path) -> Path:
    """The folder to build the image from; gives the tar in it. Raises CalledProcessError."""
    out.mkdir(parents=True, exist_ok=True)
    tar = out / TAR
    hooks = [f"upload {package} /tmp/controller.deb", INSTALL, 'rm "$1/tmp/controller.deb"']
    options = [f"--customize-hook={hook}" for hook in hooks]
    options += ['--aptopt=Acquire::Check-Valid-Until "false"', "--dpkgopt=path-exclude=/usr/share/locale/*"]
    options += ['--aptopt=Acquire::Check-Date "false"', '--aptopt=Acquire::Languages "none"']
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=tar", *options]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command += [DEBIAN_12.release, str(tar), *DEBIAN_12.sources()]
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)
    shutil.copyfile(CONTAINERFILE, out / CONTAINERFILE.name)
    return tar


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: packaging/image.py --package target/packages/slackwater-controller_1.0.0-1_amd64.deb",
    )
    parser.add_argument("--package", type=Path, required=True, help="the controller's package, of `make deb`")
    parser.add_argument("--out", type=Path, default=ROOT / "target/image", help="the folder to build the image from")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, to install the package into a root file system")
    if not asked.package.is_file():
        parser.error(f"--package {asked.package}: expected the controller's package; `make deb` makes it")
    tar = make(asked.package.resolve(), asked.out.resolve())
    print(f"{tar} {tar.stat().st_size} bytes")


if __name__ == "__main__":
    main()
