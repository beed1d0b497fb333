#!/usr/bin/env python3
"""Runs the fuzz targets of `sniffer/fuzz` for some minutes in all, from seeds written here and from captures.

libFuzzer needs its coverage counters in the code; the compiler's stable options give them, so no nightly one is needed
(`cargo fuzz` works on the same folder where there is one). A crash leaves its input in `sniffer/fuzz/artifacts`.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "sniffer/fuzz"
LIBRARIES = ROOT / ".build/debian/usr/lib/x86_64-linux-gnu"
TRIPLE = "x86_64-unknown-linux-gnu"
TARGETS = ("packets", "file", "http1", "memcached", "unknown", "text")

# What cargo-fuzz passes, without a sanitizer: the code has no unsafe parser. See SanitizerCoverage of LLVM.
FLAGS = (
    "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    " -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    " -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code -Ccodegen-units=1"
)

SERVER, BACK, AHEAD, CUT, LAST, LATER = 1, 2, 4, 8, 16, 64


def conversation(*segments: tuple[int, bytes]) -> bytes:
    """The format of `conversation` in sniffer/fuzz/src/lib.rs."""
    return b"".join(bytes([control, len(text)]) + text for control, text in segments)


def binary(magic: int, opcode: int, opaque: int, key: bytes = b"", value: bytes = b"") -> bytes:
    body = len(key) + len(value)
    return struct.pack(">BBHBBHIIQ", magic, opcode, len(key), 0, 0, 0, body, opaque, 0) + key + value


def pcap(frame: bytes) -> bytes:
    """A capture file of one frame of Ethernet."""
    head = struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)
    return head + struct.pack("<4I", 7, 5, len(frame), len(frame)) + frame


def pcapng(frame: bytes) -> bytes:
    """The same in the newer format; the frame's length is a multiple of four."""
    section = struct.pack("<7I", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0xFFFFFFFF, 0xFFFFFFFF, 28)
    interface = struct.pack("<5I", 1, 20, 1, 262_144, 20)
    length = 32 + len(frame)
    packet = struct.pack("<7I", 6, length, 0, 0, 0, len(frame), len(frame)) + frame + struct.pack("<I", length)
    return section + interface + packet


def seeds() -> dict[str, list[bytes]]:
    """Conversations that reach each state of each protocol."""
    get = b"GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n"
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n"
    http = [
        conversation((0, get + get), (SERVER, ok), (SERVER | LAST, ok)),
        conversation(
            (0, b"POST /a HTTP/1.1\r\n" + chunks),
            (SERVER, b"HTTP/1.1 100 Continue\r\n\r\n"),
            (SERVER, b"HTTP/1.1 500 No\r\n" + chunks),
        ),
        conversation(
            (0, b"HEAD / HTTP/1.0\r\n\r\n"),
            (SERVER, b"HTTP/1.1 304 Not Modified\r\n\r\n"),
            (0, b"CONNECT a:1 HTTP/1.1\r\n\r\n"),
            (SERVER, b"HTTP/1.1 200 OK\r\n\r\n"),
            (0, b"xx"),
            (SERVER, b"y"),
        ),
        conversation(
            (CUT, get),
            (SERVER | CUT, ok),
            (LATER | AHEAD, get),
            (SERVER, b"HTTP/1.0 200 OK\r\n\r\nuntil"),
            (SERVER | LAST, b"close"),
        ),
        conversation(
            (0, get), (SERVER, ok[:20]), (SERVER | AHEAD, ok), (SERVER | BACK, ok), (LATER, get), (SERVER, ok)
        ),
    ]
    memcached = [
        conversation(
            (0, b"set k 0 0 5\r\nhello\r\nget k j\r\n"),
            (SERVER, b"STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n"),
            (0, b"stats\r\nquit\r\n"),
            (SERVER, b"STAT a 1\r\nEND\r\n"),
        ),
        conversation((0, b"mg k v q O1\r\nms k 2 q\r\nhi\r\nmn\r\n"), (SERVER, b"VA 2 O1\r\nhi\r\nMN\r\n")),
        conversation(
            (0, binary(0x80, 0x0D, 1, b"k") + binary(0x80, 0x10, 2)),
            (SERVER, binary(0x81, 0x0D, 1, b"k", b"v") + binary(0x81, 0x10, 2, b"pid", b"1")),
            (SERVER | LATER, binary(0x81, 0x10, 2)),
        ),
    ]
    turns = [conversation((0, b"ask"), (0, b"more"), (SERVER, b"answer"), (BACK, b"ask"), (SERVER | LATER, b"again"))]
    histogram = (FUZZ / "seeds/histogram.txt").read_bytes()
    return {
        "packets": [],
        "file": [pcap(b""), pcap(bytes(60)), pcapng(bytes(60))],
        "http1": http,
        "memcached": memcached,
        "unknown": turns + http,
        "text": [b"a=/b*", histogram, histogram + histogram],
    }


def frames(capture: Path) -> bytes:
    """The frames of a pcap file in the format of `frames` in sniffer/fuzz/src/lib.rs; empty for other files."""
    content = capture.read_bytes()
    order = {b"\xa1\xb2\xc3\xd4": ">", b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}.get(content[:4])
    if order is None:
        return b""
    (link,) = struct.unpack_from(order + "I", content, 20)
    links = [1, 0, 12, 108, 113, 228, 229, 276]
    if link not in links:
        return b""
    parts, at = [], 24
    while at + 16 <= len(content):
        (length,) = struct.unpack_from(order + "I", content, at + 8)
        frame = content[at + 16 : at + 16 + length]
        parts.append(struct.pack("<BH", links.index(link), len(frame)) + frame)
        at += 16 + length
    return b"".join(parts)


def write_corpus(captures: list[Path]) -> None:
    for target, inputs in seeds().items():
        folder = FUZZ / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(inputs):
            (folder / f"seed-{number}").write_bytes(content)
    for capture in captures:
        (FUZZ / "corpus/file" / f"seed-{capture.name}").write_bytes(capture.read_bytes())
        if content := frames(capture):
            (FUZZ / "corpus/packets" / f"seed-{capture.name}").write_bytes(content)


def build() -> Path:
    """Builds the targets; returns the folder that they are in."""
    target = FUZZ / "target"
    command = ["cargo", "build", "--release", "--locked", "--bins", "--target", TRIPLE, "--target-dir", str(target)]
    subprocess.run(command, cwd=FUZZ, env={**os.environ, "RUSTFLAGS": FLAGS}, check=True)
    return target / TRIPLE / "release"


def run(program: Path, seconds: int, hang_s: int) -> bool:
    """Runs one target; prints what it reached, or where the input that broke it is."""
    target = program.name
    artifacts = FUZZ / "artifacts" / target
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [
        str(program), str(FUZZ / "corpus" / target), f"-max_total_time={seconds}", "-rss_limit_mb=512",
        f"-timeout={hang_s}", "-max_len=8192", f"-artifact_prefix={artifacts}/", "-print_final_stats=1",
    ]  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
    done = subprocess.run(command, cwd=FUZZ, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        print(done.stderr[-4000:], file=sys.stderr)
        print(f"fuzz: {target}: FAILED, the input is in {artifacts}", file=sys.stderr)
        return False
    executed = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    peak = re.search(r"peak_rss_mb:\s+(\d+)", done.stderr)
    print(
        f"fuzz: {target}: {int(executed[1]) if executed else 0:,} inputs in {seconds} s, "
        f"{covered[-1] if covered else '?'} edges, peak {peak[1] if peak else '?'} MiB, no fault",
        flush=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: tools/fuzz.py --minutes 60 --captures ../captures/*.pcap",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all targets together (default 10)")
    parser.add_argument("--captures", type=Path, nargs="*", default=[], help="pcap files whose frames become seeds")
    parser.add_argument(
        "--hang-s", type=int, default=10, help="an input hangs after so many seconds; more if you stop it (default 10)"
    )
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one (may be given several times)")
    options = parser.parse_args()
    write_corpus(options.captures)
    folder = build()
    targets = options.target or TARGETS
    seconds = max(1, round(options.minutes * 60 / len(targets)))
    results = [run(folder / target, seconds, options.hang_s) for target in targets]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
