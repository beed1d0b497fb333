"""A name server for one SRV record, as HAProxy's resolver asks it. RFC 1035 (messages), RFC 2782 (SRV)."""

from __future__ import annotations

import socket
import struct
import threading

A, SRV, OPT = 1, 33, 41
TTL_S = 1


def name_bytes(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.strip(".").split(".")) + b"\0"


def record(name: str, kind: int, data: bytes) -> bytes:
    return name_bytes(name) + struct.pack("!HHIH", kind, 1, TTL_S, len(data)) + data


class SrvDns:
    """Answers every SRV question with the servers in `weights` (port -> SRV weight), all of them on 127.0.0.1."""

    def __init__(self, weights: dict[int, int]) -> None:
        self.weights = weights
        self.answered = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            question, client = self._socket.recvfrom(4096)
            if len(question) <= 1:
                return
            self._socket.sendto(self._answer(question), client)
            self.answered += 1

    def _answer(self, question: bytes) -> bytes:
        end = question.index(b"\0", 12) + 5
        asked, kind = question[12:end], struct.unpack("!H", question[end - 4 : end - 2])[0]
        if kind == SRV:
            name = ".".join(self._labels(asked))
            answers = [
                record(name, SRV, struct.pack("!HHH", 0, weight, port) + name_bytes(f"s{port}.test"))
                for port, weight in self.weights.items()
            ]
            more = [record(f"s{port}.test", A, bytes([127, 0, 0, 1])) for port in self.weights]
        else:
            answers, more = [record(".".join(self._labels(asked)), A, bytes([127, 0, 0, 1]))], []
        header = question[:2] + struct.pack("!HHHHH", 0x8580, 1, len(answers), 0, len(more))
        return header + asked + b"".join(answers) + b"".join(more)

    @staticmethod
    def _labels(asked: bytes) -> list[str]:
        labels, start = [], 0
        while length := asked[start]:
            labels.append(asked[start + 1 : start + 1 + length].decode())
            start += 1 + length
        return labels

    def close(self) -> None:
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(5.0)
        self._socket.close()
