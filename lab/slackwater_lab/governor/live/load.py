"""Load in open or closed loop whose answers can be read while it runs, which oha cannot give to a policy.

Debian's memcaslap knows only a closed loop and prints no percentiles, and mutilate and memtier are not packaged.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import urllib3

TIMEOUT_S = 20.0
KEYS, VALUE_BYTES = 100, 100
"""Keys and bytes of a memcached request: with many keys the server works more for an answer than the client."""
LOOK_S = 0.05


class Client(ABC):
    """One connection to a service; one request at a time."""

    @abstractmethod
    def ask(self) -> bool:
        """Sends a request and waits for its answer; whether it was a good one. Raises OSError or HTTPError."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""


class Memcached(Client):
    """Asks for all keys in one `get` of the text protocol (memcached's doc/protocol.txt)."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._get = b"get " + b" ".join(map(key, range(KEYS))) + b"\r\n"

    def fill(self) -> None:
        """Stores the values that are asked for. Raises OSError."""
        for number in range(KEYS):
            data = b"set %s 0 0 %d\r\n%s\r\n" % (key(number), VALUE_BYTES, b"v" * VALUE_BYTES)
            if self._talk(data, b"\r\n") != b"STORED\r\n":
                raise OSError(f"memcached at {self._address} did not store a value")

    def ask(self) -> bool:
        try:
            return self._talk(self._get, b"END\r\n").count(b"VALUE ") == KEYS
        except OSError:
            self.close()
            raise

    def _talk(self, data: bytes, end: bytes) -> bytes:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(data)
        parts = bytearray()
        while not parts.endswith(end):
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionError(f"memcached at {self._address} ended the connection")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def key(number: int) -> bytes:
    return b"key-%03d" % number


class Web(Client):
    """Asks for the pages in random order."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls, self._random = urls, random.Random(0)
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=TIMEOUT_S)

    def ask(self) -> bool:
        return self._pool.request("GET", self._random.choice(self._urls)).status == 200

    def close(self) -> None:
        self._pool.clear()


@dataclass(frozen=True)
class Answer:
    """In an open loop the time counts from the instant the request was due, else from the one it was sent."""

    due_s: float
    """On the monotonic clock."""
    took_s: float
    good: bool


class LiveLoad:
    """Inside `with` it can be run; `answers` grows meanwhile."""

    def __init__(self, make: Callable[[], Client], connections: int, closed: bool, seed: int) -> None:
        """`closed`: each connection asks when it has its answer, and no faster than its share of the rate."""
        self.answers: list[Answer] = []
        self._make, self._closed, self._random = make, closed, random.Random(seed)
        self._rate_rps = 0.0
        self._connections = connections
        self._due: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Numbers of requests that no connection has taken yet."""
        self._open: dict[int, float] = {}
        """Number of a request -> when it was due; the oldest first."""
        self._number = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        ask = self._ask_in_turn if closed else self._ask_when_due
        self._threads = [threading.Thread(target=ask, daemon=True) for _ in range(connections)]

    @property
    def lost(self) -> int:
        """Requests that are not answered yet."""
        return len(self._open)

    def oldest_s(self) -> float:
        """Age of the oldest unanswered request; 0 without one."""
        with self._lock:
            due_s = next(iter(self._open.values()), None)
        return 0.0 if due_s is None else max(0.0, time.monotonic() - due_s)

    def run(self, rate_rps: float, seconds: float) -> None:
        """Sends at this rate for some seconds. An infinite rate in a closed loop means as fast as answers come."""
        self._rate_rps = rate_rps
        end_s = time.monotonic() + seconds
        if self._closed:
            self._end.wait(seconds)
            return
        due_s = time.monotonic() + self._random.expovariate(rate_rps)
        while due_s < end_s and not self._end.is_set():
            if (left_s := due_s - time.monotonic()) > 0.0:
                time.sleep(left_s)
            self._due.put(self._begin(due_s))
            due_s += self._random.expovariate(rate_rps)
        self._end.wait(max(0.0, end_s - time.monotonic()))

    def finish(self, within_s: float) -> None:
        """Sends nothing more, and waits at most `within_s` for the answers under way."""
        self._rate_rps = 0.0
        end_s = time.monotonic() + within_s
        while self._open and time.monotonic() < end_s:
            self._end.wait(LOOK_S)

    def _begin(self, due_s: float) -> int:
        with self._lock:
            self._number += 1
            self._open[self._number] = due_s
            return self._number

    def _ask_when_due(self) -> None:
        with contextlib.closing(self._make()) as client:
            while (number := self._due.get()) is not None and not self._end.is_set():
                self._ask(client, number)

    def _ask_in_turn(self) -> None:
        with contextlib.closing(self._make()) as client:
            while not self._end.is_set():
                rate_rps, due_s = self._rate_rps, time.monotonic()
                if not rate_rps:
                    self._end.wait(LOOK_S)
                    continue
                self._ask(client, self._begin(due_s))
                self._end.wait(max(0.0, due_s + self._connections / rate_rps - time.monotonic()))

    def _ask(self, client: Client, number: int) -> None:
        try:
            good = client.ask()
        except (OSError, urllib3.exceptions.HTTPError):
            good = False
        now_s = time.monotonic()
        with self._lock:
            due_s = self._open.pop(number)
            self.answers.append(Answer(due_s, now_s - due_s, good))

    def __enter__(self) -> LiveLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for _thread in self._threads:
            self._due.put(None)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
