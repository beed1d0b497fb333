"""The table of `slackwater-sniffer live --every`, as a terminal shows it: the real command on a pseudo terminal."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyte
import pytest

from tests.support.sniffer_traffic import WITHIN_S, program

pytestmark = pytest.mark.lab

# The last thing of each picture.
PICTURE_END = b"\x1b[J"


class Terminal(pyte.Screen):
    """pyte's screen does not know a terminal's second screen: here entering and leaving it is noted, and clears it."""

    entered = False
    left = False

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        super().set_mode(*modes, **kwargs)
        if kwargs.get("private") and 1049 in modes:
            self.entered = True
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        super().reset_mode(*modes, **kwargs)
        if kwargs.get("private") and 1049 in modes:
            self.left = True
            self.erase_in_display(2)
            self.cursor_position()


class Window:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], columns: int, rows: int) -> None:
        self.screen = Terminal(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.drawn = b""
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        environment = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def until(self, condition: Callable[[list[str]], bool], event: str) -> list[str]:
        """Shows picture after picture until one is as wanted, or the command has ended; returns the lines."""
        deadline = time.monotonic() + WITHIN_S
        while not condition(self.lines()):
            assert self.next_picture(deadline), f"{event}: it did not come\n" + "\n".join(self.lines())
        return self.lines()

    def next_picture(self, deadline: float) -> bool:
        """Shows the next picture, or what the command draws until it ends; false if nothing came."""
        while PICTURE_END not in self.drawn:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            more = b""
            with contextlib.suppress(OSError):  # The command ended, and all that it drew was read.
                more = os.read(self.master, 65_536) if ready else b""
            if not more:
                break
            self.drawn += more
        picture, end, self.drawn = self.drawn.partition(PICTURE_END)
        self.stream.feed(picture + end)
        return bool(picture + end)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


class Pages(BaseHTTPRequestHandler):
    """`/missing` is missing, all else is there."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or an answer may take the 40 ms of a delayed acknowledgement

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def live(port: int, columns: int, rows: int, *options: str) -> Iterator[Window]:
    if os.geteuid() != 0:
        pytest.skip("capturing needs root")
    every = ("--every", "0.2", *options)
    window = Window([program("slackwater-sniffer"), "live", "-i", "lo", "-p", str(port), *every], columns, rows)
    try:
        yield window
    finally:
        window.close()


def asked(port: int, *paths: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    for path in paths:
        connection.request("GET", path)
        connection.getresponse().read()
    connection.close()


def row(lines: list[str], name: str) -> str:
    return next((line for line in lines if line.strip().startswith(name)), "")


def test_the_table_is_aligned_shrinks_cleanly_and_ends_with_a_summary(port: int) -> None:
    routes = ("--route", "good=/good*", "--route", "a-rather-long-name-of-a-route=/x*")
    with live(port, 80, 40, *routes) as window:
        window.until(lambda lines: "listening" in lines[0], "a first picture")
        assert window.screen.entered
        times, lines = 0, window.lines()
        while not row(lines, "2xx"):  # a period may end between two of the requests: once more then
            window.until(lambda lines: not row(lines, "4xx"), "a period without requests")
            asked(port, "/good", "/good/2", "/missing")
            lines = window.until(lambda lines: bool(row(lines, "4xx")), "a period with requests")
            times += 1
        head = row(lines, "rps")
        assert head.split() == ["rps", "mean", "ms", "p50", "ms", "p95", "ms", "p99", "ms", "max", "ms"]
        assert lines[0].startswith(f"lo, port {port} ")
        assert lines[0].endswith(" s")
        assert len(lines[0]) <= 80
        for name in ("all", "first byte", "2xx", "4xx", "good", "other"):
            # Every column ends where its head ends.
            assert len(row(lines, name)) == len(head) <= 80, lines
        assert row(lines, "all").split()[1] != "0.0"
        assert row(lines, "a-rather-lon").split()[0].endswith("~")
        assert "drops 0" in "\n".join(lines)
        assert not lines[-1], "nothing was scrolled"

        # The next period has nothing: the rows of its classes are gone, and nothing of them is left.
        lines = window.until(lambda lines: bool(lines[0]) and not row(lines, "4xx"), "a period without requests")
        assert row(lines, "all").split()[1:] == ["0.0", "-", "-", "-", "-", "-"]
        filled = [line for line in lines if line]
        assert filled[-1].startswith("other")
        assert len([line for line in lines if line.startswith("lo, port")]) == 1

        window.process.send_signal(signal.SIGINT)
        lines = window.until(lambda lines: bool(row(lines, "dropped packets")), "the summary")
        assert window.process.wait(timeout=WITHIN_S) == 0
        assert window.screen.left, "the terminal is as it was"
        assert row(lines, "exchanges").split() == ["exchanges", str(3 * times)]
        assert not [line for line in lines if "listening" in line or "last 0.2 s" in line]
        assert all(len(line) <= 80 for line in lines)


def test_the_table_follows_the_window(port: int) -> None:
    with live(port, 80, 24) as window:
        asked(port, "/")
        window.until(lambda lines: bool(row(lines, "rps")), "a table")
        window.resize(50, 8)
        lines = window.until(
            lambda lines: row(lines, "rps").split() == ["rps", "p95", "ms", "p99", "ms"], "a narrow table"
        )
        assert all(len(line) <= 50 for line in lines)
        assert "drops 0" in "\n".join(lines), "what matters stays in a low window"
        window.resize(100, 30)
        lines = window.until(lambda lines: "max ms" in row(lines, "rps"), "a wide table")
        assert len([line for line in lines if "rps" in line]) == 1


def test_without_a_terminal_each_period_is_a_line(port: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("capturing needs root")
    command = [program("slackwater-sniffer"), "live", "-i", "lo", "-p", str(port), "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(WITHIN_S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        try:
            periods = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        finally:
            watchdog.cancel()
    assert all(" rps " in line and line.endswith("drops 0\n") for line in periods), periods
    assert process.returncode == 0
    assert "dropped packets" in rest
    assert "\x1b" not in "".join(periods) + rest


def test_it_ends_by_itself_after_the_seconds_that_were_asked_for(port: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("capturing needs root")
    command = [program("slackwater-sniffer"), "live", "-i", "lo", "-p", str(port), "--seconds", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN_S)
    assert "dropped packets" in done.stdout
