"""A real cpufreq: Debian's kernel in QEMU's software emulation, with P-states that a firmware table gives it.

The table (an SSDT) has `_PCT`, `_PSS` and `_PPC` for the CPU objects that QEMU names; acpi-cpufreq takes it for real.
The "register" of a policy is a DMA page latch of QEMU's i8257, which reads back what was written. Speed and power do
not follow; the kernel's interface, its rounding, its clamping and its errors are the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support import qemu

IASL = shutil.which("iasl")
WITHIN_S = 100
MODULES = ("cpufreq_userspace", "cpufreq_ondemand", "cpufreq_conservative", "cpufreq_powersave", "acpi-cpufreq")
LATCHES = (0x81, 0x82)
MHZ = (3000, 2600, 2200, 1800, 1400, 1000)
# acpi-cpufreq asks for a processor that it knows to have P-states.
CPU = "max,vendor=GenuineIntel,family=6,model=60,stepping=3"

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for name in $(cat /modules/order); do
  case "$name $(cat /proc/cmdline)" in
    acpi-cpufreq*no_driver*) ;;
    acpi-cpufreq*strict*) insmod /modules/$name.ko acpi_pstate_strict=1 ;;
    *) insmod /modules/$name.ko ;;
  esac
done
# The story prints to the console too: what the kernel says would stand in the middle of its lines.
echo 1 >/proc/sys/kernel/printk
sh /story.sh
echo "STATUS $?"
poweroff -f
"""


def missing() -> str:
    """What keeps a guest from being started here; empty: nothing."""
    return ", ".join([*qemu.missing(), *([] if IASL else ["iasl"])])


def table(*, limit: int = 0, broken: int | None = None) -> str:
    """The SSDT of two policies. `limit`: index of the highest state that the firmware allows; `broken`: index of a
    state whose register never confirms that it was reached."""
    states = ",\n".join(
        f"Package () {{ {mhz}, {mhz * 10}, 10, 10, {index}, {127 if index == broken else index} }}"
        for index, mhz in enumerate(MHZ)
    )
    cpus = [f"\\_SB.CPUS.C{index:03X}" for index in range(len(LATCHES))]
    scopes = "".join(
        f"Scope ({cpu}) {{\n"
        f"Name (_PCT, Package () {{ ResourceTemplate () {{ Register (SystemIO, 8, 0, {latch:#x}) }},"
        f" ResourceTemplate () {{ Register (SystemIO, 8, 0, {latch:#x}) }} }})\n"
        f"Name (_PSS, Package () {{\n{states}\n}})\nMethod (_PPC, 0) {{ Return ({limit}) }}\n}}\n"
        for cpu, latch in zip(cpus, LATCHES, strict=True)
    )
    externals = "".join(f"External ({cpu}, DeviceObj)\n" for cpu in cpus)
    return f'DefinitionBlock ("", "SSDT", 2, "TEST", "PSTATES", 1) {{\n{externals}{scopes}}}\n'


def libraries_of(program: Path) -> list[Path]:
    """The shared libraries that a program needs, at the paths at which it looks for them."""
    shown = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(word) for line in shown.splitlines() for word in line.split() if word.startswith("/")]


def boot(
    folder: Path, programs: dict[str, Path], texts: dict[str, str], story: str, *, line: str = "", ssdt: str = ""
) -> str:
    """Boots a guest with these programs in /bin and these files, runs the shell script `story` in it as root,
    and returns what it printed. `line`: `no_driver` or `strict` (acpi-cpufreq checks the register after each change).
    """
    assert IASL is not None
    (folder / "ssdt.asl").write_text(ssdt or table())
    subprocess.run([IASL, "-p", str(folder / "ssdt"), str(folder / "ssdt.asl")], check=True, capture_output=True)
    libraries = {str(path): path.read_bytes() for program in programs.values() for path in libraries_of(program)}
    folders = {"tmp"} | {str(parent)[1:] for name in libraries for parent in Path(name).parents}
    files = qemu.root_files(INIT, qemu.modules(*MODULES))
    files |= dict.fromkeys(sorted(folders - {""}), (0o040755, b""))
    files |= {name[1:]: (0o100755, contents) for name, contents in libraries.items()}
    files["story.sh"] = (0o100644, story.encode())
    files |= {f"bin/{name}": (0o100755, path.read_bytes()) for name, path in programs.items()}
    files |= {name: (0o100644, text.encode()) for name, text in texts.items()}
    initrd = folder / "initrd"
    initrd.write_bytes(qemu.archive(files))
    more = ["-serial", "stdio", "-acpitable", f"file={folder / 'ssdt.aml'}"]
    command = qemu.command(initrd, more, line=line, cpu=CPU, cpus=len(LATCHES), memory_mib=256)
    return qemu.run_to_the_end(command, "STATUS 0", WITHIN_S)
