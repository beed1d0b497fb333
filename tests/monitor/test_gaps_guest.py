"""Time that a hypervisor takes away, as the monitor finds it inside a guest that is told of none, beside what the
host's scheduler knows of the guest's virtual CPU. `pytest -s` prints the figures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.qemu_guest import archive, command, missing, root_files, start

# A guest boots and is watched for three times 20 s.
pytestmark = pytest.mark.slow

SECONDS = 20
PROGRAMS = (ROOT / "target/release/slackwater-monitor", ROOT / "target/release/examples/gap_loop")
"""The second one, `cargo build --release --example gap_loop -p slackwater-monitor`, may be missing."""
INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/libs
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
printf 'node = "g"\\nperiod_s = {SECONDS}.0\\n[sniffer]\\ninterface = ""\\n' > /tmp/node.toml
watch() {{
    echo "=== begin $1"; slackwater-monitor once --json --config /tmp/node.toml; echo "=== end $1"
    if [ -x /bin/gap_loop ]; then echo "=== loop $1"; gap_loop {SECONDS}; echo "=== looped $1"; fi
}}
watch idle
(while :; do usleep 20000; i=0; while [ $i -lt 300 ]; do i=$((i + 1)); done; done) & HALF=$!
watch half
kill $HALF
(while :; do :; done) & FULL=$!
watch full
kill $FULL
poweroff -f
"""
MARK = re.compile(r"=== (begin|end|loop|looped) (\w+)")


def libraries(program: Path) -> dict[str, bytes]:
    """What the program is linked with, by the place where the guest has it."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]
    place = {path: "lib64" if path.name.startswith("ld-linux") else "libs" for path in found}
    return {f"{folder}/{path.name}": path.read_bytes() for path, folder in place.items()}


def initrd(folder: Path) -> Path:
    files = root_files(INIT, []) | dict.fromkeys(("tmp", "libs", "lib64"), (0o040755, b""))
    for path in (path for path in PROGRAMS if path.exists()):
        files[f"bin/{path.name}"] = (0o100755, path.read_bytes())
        files |= {place: (0o100755, contents) for place, contents in libraries(path).items()}
    packed = folder / "initrd"
    packed.write_bytes(archive(files))
    return packed


@contextlib.contextmanager
def neighbour(cpu: int) -> Iterator[None]:
    """A program that is always busy on this CPU."""
    busy = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def scheduled(pid: int) -> tuple[float, float]:
    """Seconds that the guest's virtual CPU ran, and waited for a CPU of the host."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU 0/"):
            ran_ns, waited_ns, _ = (int(word) for word in (task / "schedstat").read_text().split())
            return ran_ns / 1e9, waited_ns / 1e9
    raise AssertionError("QEMU has no thread for the virtual CPU")


def watch_guest(folder: Path, cpu: int) -> dict[str, dict[str, Any]]:
    """For each phase of the guest: its Sample, and the loop's line if that was built, with the host's account."""
    seen: dict[str, dict[str, Any]] = {}
    more = ("-name", "gaps,debug-threads=on", "-serial", "stdio")
    guest = start(
        ["taskset", "-c", str(cpu), *command(initrd(folder), more, line="", cpu="max", cpus=1, memory_mib=256)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said: list[str] = []
    try:
        assert guest.stdout is not None
        since = (0.0, 0.0)
        for raw in guest.stdout:
            line = raw.decode(errors="replace")
            said.append(line)
            mark = MARK.search(line)
            if mark and mark[1] in ("begin", "loop"):
                since = scheduled(guest.pid)
            elif mark:
                ran_s, waited_s = (now - before for now, before in zip(scheduled(guest.pid), since, strict=True))
                part = "sample" if mark[1] == "end" else "loop"
                text = next(text for text in reversed(said) if text.startswith("{"))
                seen.setdefault(mark[2], {})[part] = (json.loads(text), ran_s, waited_s)
        guest.wait()
    finally:
        guest.kill()
        guest.wait()
    assert len(seen) == 3, "".join(said[-60:])
    return seen


def test_a_guest_finds_the_time_that_its_host_gives_to_others(tmp_path: Path) -> None:
    if missing():
        pytest.skip(f"no guest: {', '.join(missing())} is missing")
    cpu = min(os.sched_getaffinity(0))
    with neighbour(cpu):
        seen = watch_guest(tmp_path, cpu)
    for phase, parts in seen.items():
        sample, ran_s, waited_s = parts["sample"]
        gaps = sample["gaps"]
        print(f"\n{phase}: the host ran it for {ran_s:.2f} s and let it wait for {waited_s:.2f} s; {gaps}")
        print(f"  load {os.getloadavg()[0]:.1f}, loop {parts.get('loop')}")
    sample, ran_s, waited_s = seen["full"]["sample"]
    gaps, true_share = sample["gaps"], waited_s / (ran_s + waited_s)
    assert sample["cpu"]["steal"] == 0.0, "QEMU reports none"
    assert true_share > 0.2, "the neighbour takes about half"
    error = (true_share * (1 - true_share) / gaps["moments"]) ** 0.5
    assert abs(gaps["lost_share"] - true_share) < 0.1 + 4 * error, (gaps, true_share)
    assert gaps["longest_ms"] > 1.0
