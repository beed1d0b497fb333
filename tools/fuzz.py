#!/usr/bin/env python3
"""Runs the fuzz targets of all decoders for some minutes in all: Rust's of `fuzz/`, and Python's of `fuzz/python`.
All run under libFuzzer, which keeps the inputs that reach something new.

libFuzzer needs its coverage counters in the code. For Rust the compiler's stable options give them, so no nightly one
is needed (`cargo fuzz` works on the same folder where there is one); for Python, atheris does. Inputs to begin with
are in the repository; those of packets and conversations are written here, also from captures. New ones are kept in
`.build/fuzz`; `--merge` adds those to the repository that reach something new. A crash leaves its input in
`.build/fuzz/artifacts`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "fuzz"
PYTHON = FUZZ / "python"
KEPT = ROOT / ".build/fuzz"
LIBRARIES = ROOT / ".build/debian/usr/lib/x86_64-linux-gnu"
TRIPLE = "x86_64-unknown-linux-gnu"
TARGETS = {
    "rust": (
        *("packets", "file", "http1", "memcached", "unknown", "text"),
        *("messages", "order", "fastcgi", "pages", "kernel", "settings", "hot_events", "bus"),
    ),
    "python": ("messages", "bus", "haproxy", "ipvs", "keepalived", "configuration", "api"),
}
NAMES = tuple(f"{language}-{target}" for language, targets in TARGETS.items() for target in targets)
LONGEST = 8192
"""Bytes of an input."""
SHORT = 1024
"""Most bytes of an input that is added to the repository."""

# What cargo-fuzz passes, without a sanitizer: the code has no unsafe parser. See SanitizerCoverage of LLVM.
FLAGS = (
    "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    " -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    " -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code -Ccodegen-units=1"
)

SERVER, BACK, AHEAD, CUT, LAST, LATER = 1, 2, 4, 8, 16, 64


def conversation(*segments: tuple[int, bytes]) -> bytes:
    """The format of `conversation` in fuzz/src/lib.rs."""
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


def tunnels() -> list[bytes]:
    """Frames with a TCP segment in each kind of tunnel, in the format of `frames` in fuzz/src/lib.rs."""
    tcp = struct.pack(">HHIIBBHHH", 40_000, 80, 1, 1, 0x50, 0x10, 0, 0, 0) + b"GET / HTTP/1.1\r\n\r\n"

    def ip(protocol: int, payload: bytes) -> bytes:
        return struct.pack(">BBHIBBHII", 0x45, 0, 20 + len(payload), 0, 64, protocol, 0, 1, 2) + payload

    def ethernet(ether_type: int, payload: bytes) -> bytes:
        return bytes(12) + struct.pack(">H", ether_type) + payload

    def udp(port: int, payload: bytes) -> bytes:
        return ethernet(0x0800, ip(17, struct.pack(">4H", 50_000, port, 8 + len(payload), 0) + payload))

    inner = ip(6, tcp)
    plain = ethernet(0x0800, inner)
    all_of_them = [
        plain,
        ethernet(0x8100, b"\0\7\x08\0" + inner),
        ethernet(0x8847, b"\0\1\1\x40" + inner),
        ethernet(0x8864, bytes(6) + b"\0\x21" + inner),
        ethernet(0x0800, ip(4, inner)),
        ethernet(0x0800, ip(47, b"\xb0\0\x08\0" + bytes(12) + inner)),
        ethernet(0x0800, ip(47, b"\x10\0\x88\xbe" + bytes(12) + plain)),
        udp(4789, b"\x08" + bytes(7) + plain),
        udp(6081, b"\1\0\x65\x58" + bytes(8) + plain),
    ]
    return [struct.pack("<BH", 0, len(frame)) + frame for frame in all_of_them]


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
    line = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 80\r\n"
    block = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    http += [
        conversation((0, line[:9]), (0, line[9:] + get), (SERVER, ok)),
        conversation((0, block[:14]), (0, block[14:]), (0, get), (SERVER, ok)),
        conversation(
            (0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings), (SERVER, settings), (0, settings), (SERVER, settings)
        ),
        conversation(
            (0, b"\x16\x03\x01\0\1x"), (SERVER, b"\x16\x03\x03\0\1x"), (LATER, b"\x17\x03\x03\0\1x"), (SERVER, b"x")
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
    histogram = (FUZZ / "corpus/text/histogram").read_bytes()
    return {
        "packets": tunnels(),
        "file": [pcap(b""), pcap(bytes(60)), pcapng(bytes(60))],
        "http1": http,
        "memcached": memcached,
        "unknown": turns + http,
        "text": [b"a=/b*", histogram + histogram],
    }


def frames(capture: Path) -> bytes:
    """The frames of a pcap file in the format of `frames` in fuzz/src/lib.rs; empty for other files."""
    content = capture.read_bytes()
    order = {b"\xa1\xb2\xc3\xd4": ">", b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}.get(content[:4])
    if order is None:
        return b""
    (link,) = struct.unpack_from(order + "I", content, 20)
    links = [1, 0, 12, 108, 113, 228, 229, 276, 9, 50, 51, 101, 239]
    if link not in links:
        return b""
    parts, start = [], 24
    while start + 16 <= len(content):
        (length,) = struct.unpack_from(order + "I", content, start + 8)
        frame = content[start + 16 : start + 16 + length]
        parts.append(struct.pack("<BH", links.index(link), len(frame)) + frame)
        start += 16 + length
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
    """Builds the targets in Rust; returns the folder that they are in."""
    target = FUZZ / "target"
    command = ["cargo", "build", "--release", "--locked", "--bins", "--target", TRIPLE, "--target-dir", str(target)]
    subprocess.run(command, cwd=FUZZ, env={**os.environ, "RUSTFLAGS": FLAGS}, check=True)
    return target / TRIPLE / "release"


@dataclass(frozen=True)
class Fuzzer:
    """One target: the words that start it, and the inputs that it begins with."""

    name: str
    command: tuple[str, ...]
    corpus: Path

    @property
    def kept(self) -> Path:
        """Where its new inputs are kept."""
        return KEPT / "corpus" / self.name

    @property
    def artifacts(self) -> Path:
        """Where the inputs that broke it are."""
        return KEPT / "artifacts" / self.name

    def start(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        for folder in (self.kept, self.artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        command = [*self.command, f"-max_len={LONGEST}", *map(str, arguments)]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
        return subprocess.run(command, cwd=KEPT, env=environment, capture_output=True, text=True, errors="replace")


def fuzzers(names: Sequence[str]) -> Iterator[Fuzzer]:
    """The fuzzers of these names, built."""
    wanted = {
        language: [target for target in targets if f"{language}-{target}" in names]
        for language, targets in TARGETS.items()
    }
    if wanted["rust"]:
        folder = build()
        for target in wanted["rust"]:
            yield Fuzzer(f"rust-{target}", (str(folder / target),), FUZZ / "corpus" / target)
    if wanted["python"] and importlib.util.find_spec("atheris") is None:
        print("fuzz: no Python targets: atheris is not installed (it has no wheel for every machine)")
        return
    for target in wanted["python"]:
        name = f"python-{target}"
        command = (sys.executable, str(PYTHON / "python_target.py"), target, str(KEPT / f"{name}.words"))
        yield Fuzzer(name, command, PYTHON / "corpus" / target)


def run(fuzzer: Fuzzer, seconds: int, hang_s: int) -> bool:
    """Runs one target; prints what it reached, or where the input that broke it is."""
    done = fuzzer.start(
        f"-max_total_time={seconds}", "-rss_limit_mb=1024", f"-timeout={hang_s}",
        f"-artifact_prefix={fuzzer.artifacts}/", "-print_final_stats=1", fuzzer.kept, fuzzer.corpus,
    )  # fmt: skip
    if done.returncode != 0:
        print(done.stderr[-4000:], file=sys.stderr)
        print(f"fuzz: {fuzzer.name}: FAILED, the input is in {fuzzer.artifacts}", file=sys.stderr)
        return False
    executed = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    peak = re.search(r"peak_rss_mb:\s+(\d+)", done.stderr)
    print(
        f"fuzz: {fuzzer.name}: {int(executed[1]) if executed else 0:,} inputs in {seconds} s, "
        f"{covered[-1] if covered else '?'} edges, peak {peak[1] if peak else '?'} MiB, no fault",
        flush=True,
    )
    return True


def merge(fuzzer: Fuzzer) -> bool:
    """Adds to the inputs in the repository those that reach something which none of them reaches, the short ones."""
    fuzzer.corpus.mkdir(parents=True, exist_ok=True)
    short = KEPT / "short" / fuzzer.name
    shutil.rmtree(short, ignore_errors=True)
    short.mkdir(parents=True)
    for file in fuzzer.kept.glob("*"):
        if file.stat().st_size <= SHORT:
            shutil.copy(file, short)
    done = fuzzer.start("-merge=1", fuzzer.corpus, short)
    print(f"fuzz: {fuzzer.name}: {len(list(fuzzer.corpus.iterdir()))} inputs in {fuzzer.corpus}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: tools/fuzz.py --minutes 60 --target rust-messages --target python-messages",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all targets together (default 10)")
    parser.add_argument("--captures", type=Path, nargs="*", default=[], help="pcap files whose frames become seeds")
    parser.add_argument(
        "--hang-s", type=int, default=10, help="an input hangs after so many seconds; more if you stop it (default 10)"
    )
    parser.add_argument("--target", choices=NAMES, action="append", help="only this one (may be given several times)")
    parser.add_argument("--merge", action="store_true", help="no fuzzing: add what was found to the repository")
    options = parser.parse_args()
    write_corpus(options.captures)
    names = options.target or NAMES
    seconds = max(1, round(options.minutes * 60 / len(names)))
    if options.merge:
        results = [merge(fuzzer) for fuzzer in fuzzers(names)]
    else:
        results = [run(fuzzer, seconds, options.hang_s) for fuzzer in fuzzers(names)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
