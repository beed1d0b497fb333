"""Makes `tests/recordings/guest-cpi.parquet`: three emulated machines with a PMU, one of them moved beside a neighbour.

Each is a guest of tests/support/pmu_guest.py in which the real monitor counts the cycles and instructions of a web
server's cgroup, and captures its traffic. After CALM Samples `NOISY` is migrated to a machine on which each instruction
takes twice as many cycles, as beside a neighbour that fills the caches and the memory bus. Its clock goes on some
seconds later. Guests run one after the other, so their clocks are moved to one start. Made by
`python -m tests.support.cpi_recording` (some minutes).
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import Label, write
from slackwater_lab.cluster.guest import start
from slackwater_lab.cluster.spawn import wait_until
from tests.support.paths import RECORDINGS
from tests.support.pmu_guest import Guest, command, part, prepare, published, root_archive

FILE = RECORDINGS / "guest-cpi.parquet"
NODES = ("guest1", "guest2", "guest3")
NOISY = "guest1"
PERIOD_S = 0.5
CALM, BESIDE = 160, 40
"""Samples of each part."""
LONGER = 80
"""Samples that the others have in the time that `NOISY`'s clock leaves out."""
CALM_SHIFT, BESIDE_SHIFT = 1, 2
"""Powers of two: cycles that an instruction takes."""
START_UNIX_S = 1_795_000_000.0
WITHIN_S = 600.0
PORT, BUS_PORT = 80, 4222
RPS, TURNS = 20, 1500
"""Requests a second of 1,500,000 turns of two instructions: 6 ms of a CPU whose instructions take 2 ns."""
STORY = f"""\
cat > node.toml <<END
node = "NODE"
period_s = {PERIOD_S}
[bus]
url = "nats://127.0.0.1:{BUS_PORT}"
[cpu]
cgroup = "web"
[processes]
cgroup = "web"
[pmu]
scopes = ["cgroup"]
[sniffer]
interface = "lo"
ports = [{PORT}]
[canary]
enabled = false
END
echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/web
: > bus.txt; load bus {BUS_PORT} >> bus.txt &
sh -c 'echo 0 > /sys/fs/cgroup/web/cgroup.procs; exec load serve {PORT} {TURNS}' &
sleep 1; load ask {PORT} {RPS} &
slackwater-monitor run --config node.toml 2> log.txt &
until_samples() {{ while [ $(wc -l < bus.txt) -lt $1 ]; do sleep 0.1; done; }}
until_samples {CALM}; echo '=== move'; until_samples COUNT
echo '=== log'; cat log.txt; echo '=== samples'; head -n COUNT bus.txt | gzip | base64
"""


class Qmp:
    """QEMU's control socket."""

    def __init__(self, path: Path) -> None:
        wait_until(path.exists, f"QEMU at {path}", WITHIN_S)
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(str(path))
        self._lines = self._end.makefile("r")
        self._lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: str) -> Any:
        """Has it do something; its answer, after whatever events."""
        self._end.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        for line in self._lines:
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise RuntimeError(f"{command}: QEMU ended")

    def wait(self, command: str, *ends: str) -> str:
        """Until the status of `command` is one of these."""
        while (status := self.ask(command).get("status", "")) not in ends:
            time.sleep(0.1)
        return str(status)


def run(guest: Guest, story: str, folder: Path, *, moves: bool) -> str:
    """What a guest prints that runs the story, and is moved when it says so."""
    control, state = folder / "qmp", folder / "state"
    more = ("-qmp", f"unix:{control},server=on,wait=off")
    (folder / "initrd").write_bytes(root_archive(guest, story))

    def started(shift: int, *more_words: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        argv = [*command(guest, folder / "initrd", shift=shift), *more, *more_words]
        process = start(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        return process, process.stdout

    process, out = started(CALM_SHIFT)
    printed = b""
    while moves and b"=== move" not in printed and (line := out.readline()):
        printed += line
    if moves:
        source = Qmp(control)
        source.ask("stop")
        source.ask("migrate", uri=f"exec:cat >{state}")
        assert source.wait("query-migrate", "completed", "failed") == "completed"
        source.ask("quit")
        process.wait()
        control.unlink(missing_ok=True)
        process, out = started(BESIDE_SHIFT, "-incoming", f"exec:cat {state}")
        target = Qmp(control)
        target.wait("query-status", "paused")
        target.ask("cont")
    printed += out.read()
    process.wait()
    return printed.decode().replace("\r", "")


def record(guest: Guest, node: str) -> list[Sample]:
    """The Samples of one guest."""
    count = CALM + BESIDE + (0 if node == NOISY else LONGER)
    story = STORY.replace("NODE", node).replace("COUNT", str(count))
    with tempfile.TemporaryDirectory(prefix="sw-cpi-") as name:
        text = run(guest, story, Path(name), moves=node == NOISY)
    print(node, part(text, "log"), file=sys.stderr)
    return published(gzip.decompress(base64.b64decode(part(text, "samples"))).decode())


def main() -> None:
    """Records and writes the file."""
    guest = prepare()
    moved: list[Sample] = []
    labels = []
    for node in NODES:
        samples = record(guest, node)
        began_s = samples[0].time_unix_s
        own = [
            msgspec.structs.replace(
                sample, time_unix_s=START_UNIX_S + sample.time_unix_s - began_s, boot_id=f"boot-{node}"
            )
            for sample in samples
        ]
        if node == NOISY:
            labels.append(Label(node, "memory", 0.5, own[CALM - 1].time_unix_s, own[-1].time_unix_s))
        moved += own
    moved.sort(key=lambda sample: sample.time_unix_s)
    description = "emulated machines with a PMU; tests/support/cpi_recording.py"
    write(FILE, moved, labels, description, [sample.time_unix_s for sample in moved])


if __name__ == "__main__":
    main()
