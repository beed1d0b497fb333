#!/usr/bin/env python3
"""Takes the monitor's fixture of a kernel: boots it in QEMU and prints what /proc, /sys and its cgroups say, twice.

The kernel is an unpacked Debian package (`dpkg -x linux-image-*-cloud-amd64_*.deb FOLDER`). Two processes named
`apache2` run in the cgroup `web`, half a core wide; one of them always wants more than that. The test that reads the
fixtures is monitor/tests/kernels.rs.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = ROOT / ".build/debian"
WITHIN_S = 240
KERNEL_LINE = "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr no_timer_check random.trust_cpu=on psi=1 mitigations=off"
# Each where the kernel has it as a module.
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"),
    *("failover", "net_failover", "virtio_net"),
)
CGROUPS = {
    "v2": """\
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/web
echo 50000 100000 >/sys/fs/cgroup/web/cpu.max
groups=/sys/fs/cgroup/web
group_files="cgroup.controllers web/cpu.stat web/cpu.max web/cgroup.procs"
group_files="$group_files web/cpu.pressure web/memory.pressure web/io.pressure"
""",
    "v1": """\
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/cpu,cpuacct
mount -t cgroup -o cpu,cpuacct cgroup /sys/fs/cgroup/cpu,cpuacct
mkdir /sys/fs/cgroup/cpu,cpuacct/web
echo 100000 >/sys/fs/cgroup/cpu,cpuacct/web/cpu.cfs_period_us
echo 50000 >/sys/fs/cgroup/cpu,cpuacct/web/cpu.cfs_quota_us
groups=/sys/fs/cgroup/cpu,cpuacct/web
group_files=
for file in web/cpuacct.usage web/cpu.cfs_quota_us web/cpu.cfs_period_us cpu.cfs_quota_us cpu.cfs_period_us \\
    web/cpu.stat web/cgroup.procs; do group_files="$group_files cpu,cpuacct/$file"; done
""",
}
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# Twice: which of them needs the other changed between kernels.
for pass in 1 2; do while read -r name; do insmod /modules/$name.ko; done </modules/order; done 2>/dev/null
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
{cgroups}
echo 'while :; do i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; usleep 1000; done' >/busy
echo 'while :; do usleep 20000; done' >/calm
cp /bin/busybox /bin/apache2
for story in /busy /calm; do
    (exec -a sh /bin/apache2 $story) &
    pids="$pids $!"
    echo $! >$groups/cgroup.procs
done
(
    skip=0
    while :; do dd if=/dev/vda of=/dev/null bs=64k count=1 skip=$skip; skip=$((skip + 1)); usleep 20000; done
) 2>/dev/null &
ping -i 1 10.0.2.2 >/dev/null &
dump() {{
    read -r uptime rest </proc/uptime
    echo "$uptime" >/uptime$2
    for file in proc/stat proc/meminfo proc/vmstat proc/diskstats proc/net/dev proc/net/snmp proc/net/netstat \\
        proc/net/softnet_stat proc/pressure/cpu proc/pressure/memory proc/pressure/io $once; do
        [ -e /$file ] && echo "==> $1$file" && cat /$file
    done
    for file in $group_files; do echo "==> $1cgroup/$file"; cat /sys/fs/cgroup/$file; done
    for pid in $pids; do
        for file in comm task/$pid/schedstat task/$pid/status; do
            echo "==> $1proc/$pid/$file"
            cat /proc/$pid/$file
        done
    done
}}
sleep 5
once="proc/sys/kernel/random/boot_id sys/class/net/eth0/speed sys/block/vda/device/uevent"
dump "" 1 >/first
usleep 400000
once=
dump "later " 2 >/second
echo "=== $(uname -r)"
cat /first /second
echo "=== $(cat /uptime1) $(cat /uptime2)"
poweroff -f
"""


def entry(name: str, mode: int, content: bytes) -> bytes:
    """One file of a cpio archive ("newc", as the kernel unpacks it)."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    return b"".join(block + b"\0" * (-len(block) % 4) for block in (head, content))


def initrd(modules: Path, cgroups: str) -> bytes:
    contents: dict[str, bytes] = {}
    for path in modules.rglob("virtio*.ko*"), modules.rglob("*failover.ko*"):
        for file in path:
            content = file.read_bytes()
            contents[file.name.split(".")[0]] = lzma.decompress(content) if file.suffix == ".xz" else content
    order = [name for name in MODULES if name in contents]
    parts = [entry(name, 0o040755, b"") for name in ("bin", "proc", "sys", "dev", "modules")]
    parts.append(entry("bin/busybox", 0o100755, (DEBIAN / "bin/busybox").read_bytes()))
    parts.append(entry("init", 0o100755, INIT.format(cgroups=CGROUPS[cgroups]).encode()))
    parts.append(entry("modules/order", 0o100644, "".join(f"{name}\n" for name in order).encode()))
    parts += [entry(f"modules/{name}.ko", 0o100644, contents[name]) for name in order]
    return gzip.compress(b"".join([*parts, entry("TRAILER!!!", 0, b"")]), 1)


def take(package: Path, cgroups: str) -> str:
    (kernel,) = (package / "boot").glob("vmlinuz-*")
    (modules,) = (path for path in (package / "lib/modules", package / "usr/lib/modules") if path.is_dir())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "initrd").write_bytes(initrd(modules, cgroups))
        (folder / "disk").write_bytes(b"\1" * (64 << 20))
        command = [
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "512"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"),
            *("-drive", f"file={folder / 'disk'},format=raw,if=virtio", "-nic", "user,model=virtio-net-pci"),
            *("-kernel", str(kernel), "-initrd", str(folder / "initrd")),
            *("-append", KERNEL_LINE),
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WITHIN_S)
    output = done.stdout.decode(errors="replace").replace("\r", "")
    parts = output.split("=== ")
    if len(parts) != 3:
        raise SystemExit(
            f"the guest did not answer in three parts: {output[-2000:]}{done.stderr.decode(errors='replace')}"
        )
    release, _, files = parts[1].partition("\n")
    first_s, second_s = (float(word) for word in parts[2].split()[:2])
    step_ms = round((second_s - first_s) * 1000)
    return f"# Taken from Debian's {release} in QEMU, cgroups {cgroups}.\n==> step_ms\n{step_ms}\n{files}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: tools/kernel_fixture.py .build/debian >monitor/tests/fixtures/linux-6.1.txt",
    )
    parser.add_argument("package", type=Path, help="the folder of the unpacked package")
    parser.add_argument("--cgroups", choices=sorted(CGROUPS), default="v2", help="version of the cgroups (default v2)")
    options = parser.parse_args()
    sys.stdout.write(take(options.package, options.cgroups))
    return 0


if __name__ == "__main__":
    sys.exit(main())
