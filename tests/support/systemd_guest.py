"""A guest with Debian's kernel, systemd, Apache and php-fpm, and Slackwater's own units: cgroups as a real web server
has them.

Its root is the rollout's base with the web servers installed, under a layer in memory; it boots in software emulation
(lab/cluster/guest.py), so the machine that runs the tests needs neither systemd nor cgroup version 2.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.cluster.guest import INIT_SCRIPT, Guest, GuestSettings
from tests.support import ipvs_guest, rollout_base
from tests.support.paths import ROOT

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
chroot "$0" a2enmod -q proxy_fcgi; chroot "$0" a2enconf -q php8.2-fpm
rm "$0/usr/sbin/policy-rc.d"
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
$b mount -t overlay -o lowerdir=/host{root},upperdir=/layer/upper,workdir=/layer/work new /new &&
$b mkdir -p /new/host /new/etc/slackwater && $b mount --move /host /new/host &&
{copies}
$b chmod 755 /new/usr/bin/slackwater-monitor /new/usr/bin/slackwater-wsengine &&
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


def web_root() -> Path:
    """The base with the web servers installed, kept beside it until the base changes."""
    rollout_base.FOLDER.mkdir(parents=True, exist_ok=True)
    with (rollout_base.FOLDER / "web.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = rollout_base.base()
        place = rollout_base.FOLDER / f"web-{base.name}"
        if not place.exists():
            for old in rollout_base.FOLDER.glob("web-base-*"):
                shutil.rmtree(old)
            fresh = Path(tempfile.mkdtemp(dir=rollout_base.FOLDER, prefix="web-new-"))
            root = fresh / "root"
            try:
                subprocess.run(["cp", "-a", str(base), str(root)], check=True)
                command = ["unshare", "--mount", "bash", "-ec", INSTALL, str(root), *PACKAGES]
                subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
                root.rename(place)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return place.resolve()


@contextmanager
def booted() -> Iterator[Guest]:
    """A guest whose systemd has started the web servers, ended and cleaned up afterwards."""
    with tempfile.TemporaryDirectory(prefix="sw-systemd-") as name:
        unit = Path(name) / "commands.service"
        unit.write_text(COMMANDS.format(script=COMMANDS_SCRIPT))
        targets = {Path(str(shutil.which(program))).resolve(): f"usr/bin/{program}" for program in PROGRAMS}
        node = ROOT / "packaging/node"
        targets |= {file: f"usr/lib/systemd/system/{file.name}" for file in node.glob("*.service")}
        targets[node / "sysusers.conf"] = "usr/lib/sysusers.d/slackwater-node.conf"
        copies = "\n".join(
            f"$b cp {shlex.quote(f'/new/host{source}')} /new/{target} &&" for source, target in targets.items()
        )
        init = INIT.format(root=web_root(), copies=copies, unit=unit)
        guest = Guest(Path(name), GuestSettings(drivers=("overlay",), cpus=2, init=init))
        guest.wait_ready(READY_WITHIN_S)
        try:
            yield guest
        finally:
            guest.stop()
