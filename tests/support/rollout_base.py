"""The root file systems that the test hosts start from: a Debian or Ubuntu with systemd and sshd, and packages in apt's
archive.

Made once for each system by mmdebstrap (some minutes), kept below .build/rollout until what it is made of changes. The
hosts install their packages with apt from the archive, without a network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.ansible_files import php_of
from tests.support.paths import ROOT
from tools.systems import DEBIAN_12, System

BUILD = ROOT / ".build"
FOLDER = BUILD / "rollout"
SYSTEM = (
    "apt",  # in Debian's smallest system, not in Ubuntu's
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-apt", "openssh-server", "iproute2", "iputils-ping"),
    *("ca-certificates", "procps", "curl", "sudo"),
)
ARCHIVE = ("apache2", "haproxy", "nats-server", "libpcap0.8", "libpfm4", "keepalived", "ipvsadm", "openssl")
"""What the site and the roles install on the hosts, beside php-fpm and Python of the system's versions."""
MASKED = (
    *("systemd-udevd.service", "systemd-udev-trigger.service", "systemd-modules-load.service"),
    *("systemd-sysctl.service", "getty@.service", "console-getty.service", "getty.target"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "dev-hugepages.mount"),
    *("dev-mqueue.mount", "systemd-remount-fs.service", "systemd-networkd-wait-online.service"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_all.timer", "dpkg-db-backup.timer"),
    *("logrotate.timer", "systemd-timesyncd.service", "systemd-time-wait-sync.service", "time-set.target"),
    *("chrony.service", "ntp.service", "ntpsec.service", "openntpd.service", "motd-news.timer", "ssh.socket"),
)
"""Nothing on a test host reaches for hardware, sets the clock or goes off by itself; sshd listens itself."""
HOST_KEYS = """[Unit]
Description=host keys
Before=ssh.service
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
[Install]
WantedBy=multi-user.target
"""
# A snapshot of Debian may be older than its files say; documents and translations take room and time.
APT = ('Acquire::Check-Valid-Until "false"', 'Acquire::Check-Date "false"', 'Acquire::Languages "none"')
DPKG = ("path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/locale/*", "force-unsafe-io")


def base(system: System = DEBIAN_12) -> Path:
    """A system's unpacked root file system; builds it when it is not there."""
    archive = (*ARCHIVE, f"php{php_of(system)}-fpm", system.interpreter.name)
    made_of = Path(__file__).read_bytes() + repr((system.sources(), archive)).encode()
    place = FOLDER / f"base-{system.release}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if place.exists():
        return place
    FOLDER.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=FOLDER, prefix="new."))
    root = fresh / "root"
    try:
        _bootstrap(system, root)
        _settle(root)
        _fill_archive(root, archive)
        for old in FOLDER.glob(f"base-{system.release}-*"):
            shutil.rmtree(old)
        root.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


def _bootstrap(system: System, root: Path) -> None:
    options = [f"--aptopt={option}" for option in (*APT, 'APT::Install-Recommends "false"')]
    options += [f"--dpkgopt={option}" for option in DPKG]
    command = ["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={','.join(SYSTEM)}", *options]
    _run([*command, "--skip=cleanup/apt/lists", system.release, str(root), *system.sources()])


def _settle(root: Path) -> None:
    units = root / "etc/systemd/system"
    (root / "etc/machine-id").write_text("")  # each host makes its own
    for key in root.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    (units / "test-host-keys.service").write_text(HOST_KEYS)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "test-host-keys.service").symlink_to("../test-host-keys.service")
    shutil.rmtree(units / "ssh.service.requires", ignore_errors=True)  # Ubuntu's: the socket, which is masked
    (wanted / "ssh.service").unlink(missing_ok=True)
    (wanted / "ssh.service").symlink_to("/usr/lib/systemd/system/ssh.service")
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)


def _fill_archive(root: Path, archive: Sequence[str]) -> None:
    """apt in a chroot of its own mounts: they are gone with the command, however it ends."""
    script = 'mount --bind "$0" "$0"; mount -t proc proc "$0/proc"; exec chroot "$0" apt-get -qq -y "$@"'
    install = ["install", "--no-install-recommends", "--download-only", *archive]
    _run(["unshare", "--mount", "bash", "-ec", script, str(root), *install])


def _run(command: list[str]) -> None:
    with tempfile.TemporaryFile() as log:
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=1500,
        )
        if done.returncode:
            log.seek(0)
            tail = log.read().decode(errors="replace")[-1500:]
            raise AssertionError(f"`{' '.join(command[:4])} ...` failed:\n{tail}")
