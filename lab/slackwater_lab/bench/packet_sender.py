#!/usr/bin/env python3
"""Sends the packets of a capture on an interface at a steady rate and prints what was reached, as JSON.

Many packets go with each system call (sendmmsg) and past the queue of the interface, so that one core sends 400,000 a
second; tcpreplay makes a call for each.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import socket
import struct
import time
from pathlib import Path

BATCH = 32
HEAD = 24
RECORD = struct.Struct("<IIII")
IOVEC = struct.Struct("@QQ")
# struct mmsghdr: name and its length, the iovec and how many, control data and its length, flags, bytes sent.
MESSAGE = struct.Struct("@QI4xQQQQi4xI4x")
SOL_PACKET = 263
PACKET_QDISC_BYPASS = 20


class Messages:
    """What sendmmsg takes, for all packets of a file that the interface takes."""

    def __init__(self, path: Path, longest: int) -> None:
        content = path.read_bytes()
        places = []
        offset = HEAD
        while offset + RECORD.size <= len(content):
            length = RECORD.unpack_from(content, offset)[2]
            offset += RECORD.size
            if length <= longest and offset + length <= len(content):
                places.append((offset, length))
            offset += length
        self.count = len(places)
        self._packets = ctypes.create_string_buffer(content, len(content))
        self._vectors = ctypes.create_string_buffer(self.count * IOVEC.size)
        self._messages = ctypes.create_string_buffer(self.count * MESSAGE.size)
        packets, vectors = ctypes.addressof(self._packets), ctypes.addressof(self._vectors)
        for number, (start, length) in enumerate(places):
            IOVEC.pack_into(self._vectors, number * IOVEC.size, packets + start, length)
            vector = vectors + number * IOVEC.size
            MESSAGE.pack_into(self._messages, number * MESSAGE.size, 0, 0, vector, 1, 0, 0, 0, 0)
        self._address = ctypes.addressof(self._messages)

    def address(self, number: int) -> int:
        return self._address + number * MESSAGE.size


def send(interface: str, messages: Messages, packets: int, pps: int) -> float:
    """Sends this number of packets, from the start again after the last; returns the seconds that it took."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((interface, 0))
        out.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        file, sent, place = out.fileno(), 0, 0
        start = time.perf_counter()
        while sent < packets:
            due = min(packets, int((time.perf_counter() - start) * pps))
            while sent < due:
                batch = min(BATCH, due - sent, messages.count - place)
                done = libc.sendmmsg(file, messages.address(place), batch, 0)
                if done < 0:
                    number = ctypes.get_errno()
                    if number not in (errno.ENOBUFS, errno.EAGAIN, errno.EINTR):
                        raise OSError(number, os.strerror(number), interface)
                    continue
                sent += done
                place = (place + done) % messages.count
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sender.py wire0 requests.pcap --packets 4000000 --pps 400000",
    )
    parser.add_argument("interface")
    parser.add_argument("file", type=Path, help="a pcap file of Ethernet frames")
    parser.add_argument("--packets", type=int, required=True, help="packets in all")
    parser.add_argument("--pps", type=int, required=True, help="packets a second")
    options = parser.parse_args()
    longest = int(Path(f"/sys/class/net/{options.interface}/mtu").read_text()) + 14
    messages = Messages(options.file, longest)
    if messages.count == 0:
        raise SystemExit(f"{options.file}: no packet of up to {longest} bytes")
    seconds = send(options.interface, messages, options.packets, options.pps)
    print(json.dumps({"packets": options.packets, "seconds": seconds, "pps": options.packets / seconds}))


if __name__ == "__main__":
    main()
