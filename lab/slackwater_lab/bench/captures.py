"""The files of the benchmark: made with a real server and a load generator, cut and doubled here."""

from __future__ import annotations

import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.bench.stage import Stage, oha
from slackwater_lab.cluster.paths import LabError, program
from slackwater_lab.cluster.spawn import wait_until

HEAD = 24
RECORD = struct.Struct("<IIII")
MAGIC_NS = 0xA1B23C4D


@dataclass(frozen=True)
class CaptureFile:
    """A capture and the number of packets in it."""

    name: str
    path: Path
    packets: int

    @property
    def mib(self) -> float:
        return self.path.stat().st_size / 2**20


def records(content: bytes | bytearray) -> list[int]:
    """Where the packets of a pcap file start; the last one may be cut: then it is left out."""
    starts = []
    offset = HEAD
    while offset + RECORD.size <= len(content):
        length = RECORD.unpack_from(content, offset)[2]
        if offset + RECORD.size + length > len(content):
            break
        starts.append(offset)
        offset += RECORD.size + length
    return [*starts, offset]


def make(stage: Stage, name: str, packets: int, *options: str) -> CaptureFile:
    """Captures on the client's side while requests run, until there are enough packets."""
    requests = packets // 3 if name == "keep-alive" else packets // 8
    path = stage.folder / f"{name}.pcap"
    for _ in range(3):
        path.unlink(missing_ok=True)
        capture = stage.start(
            stage.client,
            *(program("tcpdump"), "-i", "eth0", "-w", str(path), "-B", "131072", "-Z", "root"),
            *("--time-stamp-precision=nano", "tcp port 80"),
        )
        wait_until(path.exists, f"tcpdump writes {path}", 10.0)
        time.sleep(0.3)
        oha(stage, "page.html", "-n", str(requests), *options)
        time.sleep(1)
        capture.stop(signal.SIGINT)
        count = len(records(path.read_bytes())) - 1
        if count >= packets:
            return CaptureFile(name, path, count)
        requests = int(requests * packets / max(count, 1) * 1.1)
    raise LabError(f"{name}: only {count} packets of {packets} were captured")


def doubled(file: CaptureFile) -> CaptureFile:
    """The capture twice, one after the other in time."""
    content = bytearray(file.path.read_bytes())
    starts = records(content)
    if struct.unpack_from("<I", content)[0] != MAGIC_NS:
        raise LabError(f"{file.path} has no nanoseconds")
    first, last = (RECORD.unpack_from(content, start)[0] for start in (starts[0], starts[-2]))
    path = file.path.with_name(f"{file.name}-doubled.pcap")
    with path.open("wb") as out:
        out.write(content[: starts[-1]])
        for start in starts[:-1]:
            struct.pack_into("<I", content, start, RECORD.unpack_from(content, start)[0] + last - first + 10)
        out.write(content[HEAD : starts[-1]])
    return CaptureFile(f"{file.name}, doubled", path, 2 * file.packets)


def part(file: CaptureFile, packets: int) -> CaptureFile:
    """The first packets of a capture."""
    content = file.path.read_bytes()
    starts = records(content)
    count = min(packets, len(starts) - 1)
    path = file.path.with_name(f"{file.name}-part.pcap")
    path.write_bytes(content[: starts[count]])
    return CaptureFile(f"{file.name}, part", path, count)
