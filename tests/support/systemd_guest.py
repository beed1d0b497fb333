"""A guest with Debian's kernel, systemd, and Slackwater's own units: a web server with Apache and php-fpm, or a
balancer's host with HAProxy. Its cgroups are as a real one has them.

Its root is the rollout's base with more packages installed, under a layer in memory; it boots in software emulation
(tests/support/qemu_guest.py), so the machine that runs the tests needs neither systemd nor cgroup version 2.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slackwater_lab.cluster.guest import INIT_SCRIPT
from tests.support import ipvs_guest, rollout_base
from tests.support.paths import ROOT
from tests.support.qemu_guest import Guest, GuestSettings

PACKAGES = ("apache2", "php8.2-fpm", "libpcap0.8", "libpfm4")
READY_WITHIN_S = 600.0
"""Ten seconds on a machine that is not busy."""
COMMANDS_SCRIPT = INIT_SCRIPT.with_name("guest-commands.sh")
PROGRAMS = ("slackwater-monitor", "slackwater-wsengine")
# Nothing is started while packages are installed: this is not the guest yet.
INSTALL = """\
mount --bind "$0" "$0"; mount -t proc proc "$0/proc"
printf '#!/bin/sh\\nexit 101\\n' >"$0/usr/sbin/policy-rc.d"; chmod +x "$0/usr/sbin/policy-rc.d"
chroot "$0" apt-get -qq -y install --no-install-recommends --no-download "$@"
rm "$0/usr/sbin/policy-rc.d"
"""
WEB_SETTINGS = """\
chroot "$0" a2enmod -q proxy_fcgi; chroot "$0" a2enconf -q php8.2-fpm
"""
# A layer with what the package and its maintainer script change.
LAYER = """\
mount -t overlay -o lowerdir="$0",upperdir="$1/upper",workdir="$1/work" layer "$1/all"
mount -t proc proc "$1/all/proc"; cp "$2" "$1/all/package.deb"
chroot "$1/all" dpkg --force-depends -i /package.deb; rm "$1/all/package.deb"
"""
COMMANDS = """\
[Unit]
After=apache2.service php8.2-fpm.service
[Service]
ExecStart=/bin/bash /host{script}
Environment=HOME=/root LC_ALL=C TERM=dumb
[Install]
WantedBy=multi-user.target
"""
# Process 1 until systemd takes over.
INIT = """\
#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev &&
while read -r name; do $b insmod /modules/$name.ko; done </modules/order &&
$b mkdir /host /layer /new && $b mount -t virtiofs -o ro,nosuid host /host && $b mount -t tmpfs layer /layer &&
$b mkdir /layer/upper /layer/work &&
$b mount -t overlay -o lowerdir={roots},upperdir=/layer/upper,workdir=/layer/work new /new &&
$b mkdir -p /new/host /new/etc/slackwater && $b mount --move /host /new/host &&
{copies}
$b mkdir -p /new/etc/systemd/system/multi-user.target.wants &&
$b cp /new/host{unit} /new/etc/systemd/system/test-commands.service &&
$b ln -s ../test-commands.service /new/etc/systemd/system/multi-user.target.wants/ &&
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done && exec $b switch_root /new /sbin/init
$b poweroff -f
"""


def why_not() -> str:
    """Why the guest cannot be had on this machine; empty where it can."""
    if os.geteuid() != 0:
        return "needs root, for a root file system of its own"
    if ipvs_guest.why_not():
        return ipvs_guest.why_not()
    lacks = [name for name in PROGRAMS if shutil.which(name) is None]
    lacks += [] if shutil.which("mmdebstrap") else ["mmdebstrap"]
    return f"not in .build: {', '.join(lacks)} (run `make setup`)" if lacks else ""


def installed(name: str, packages: Sequence[str], more: str = "") -> Path:
    """The base with these packages installed, kept beside it until the base changes. `more`: commands after that."""
    rollout_base.FOLDER.mkdir(parents=True, exist_ok=True)
    with (rollout_base.FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = rollout_base.base()
        place = rollout_base.FOLDER / f"{name}-{base.name}"
        if not place.exists():
            for old in rollout_base.FOLDER.glob(f"{name}-base-*"):
                shutil.rmtree(old)
            fresh = Path(tempfile.mkdtemp(dir=rollout_base.FOLDER, prefix=f"{name}-new-"))
            root = fresh / "root"
            try:
                subprocess.run(["cp", "-a", str(base), str(root)], check=True)
                _in_mounts_of_its_own(INSTALL + more, root, *packages)
                root.rename(place)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return place.resolve()


def layer(root: Path, package: Path, folder: Path) -> Path:
    """What installing one of our packages changes in a root, as a layer over it."""
    for name in ("upper", "work", "all"):
        (folder / name).mkdir(parents=True)
    (folder / "upper").chmod(0o755)
    _in_mounts_of_its_own(LAYER, root, folder, package)
    return folder / "upper"


def _in_mounts_of_its_own(script: str, *words: Path | str) -> None:
    command = ["unshare", "--mount", "bash", "-ec", script, *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


@contextmanager
def booted() -> Iterator[Guest]:
    """A web server whose systemd has started Apache and php-fpm, with the node's programs and units."""
    targets = {Path(str(shutil.which(program))).resolve(): f"usr/bin/{program}" for program in PROGRAMS}
    node = ROOT / "packaging/node"
    targets |= {file: f"usr/lib/systemd/system/{file.name}" for file in node.glob("*.service")}
    targets[node / "sysusers.conf"] = "usr/lib/sysusers.d/slackwater-node.conf"
    with booted_from([installed("web", PACKAGES, WEB_SETTINGS)], targets) as guest:
        yield guest


@contextmanager
def booted_from(roots: Sequence[Path], targets: Mapping[Path, str], memory_mib: int = 512) -> Iterator[Guest]:
    """A guest whose systemd has started, ended and cleaned up afterwards. `roots`: layers of its root, the uppermost
    first; `targets`: files of this machine that are copied into it, and where to."""
    with tempfile.TemporaryDirectory(prefix="sw-systemd-") as name:
        unit = Path(name) / "commands.service"
        unit.write_text(COMMANDS.format(script=COMMANDS_SCRIPT))
        copies = [
            f"$b cp -p {shlex.quote(f'/new/host{source}')} /new/{target} &&" for source, target in targets.items()
        ]
        lower = ":".join(f"/host{root}" for root in roots)
        init = INIT.format(roots=lower, copies="\n".join(copies) or "true &&", unit=unit)
        guest = Guest(Path(name), GuestSettings(drivers=("overlay",), cpus=2, memory_mib=memory_mib, init=init))
        guest.wait_ready(READY_WITHIN_S)
        try:
            yield guest
        finally:
            guest.stop()
