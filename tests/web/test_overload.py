"""A dashboard, in a process of its own, that clients load: half-sent requests, large ones, and the site's checks."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.web.http_server import MAX_REQUEST_BYTES, MOST_CONNECTIONS, THREADS, HttpServer
from slackwater.web.reader import JournalReader
from tests.support.served_dashboard import IN_TIME_S, Dashboard, served
from tests.support.web_settings import settings_in

ANSWER_BYTES = 24 << 20
"""More than the system's buffers take, and than waitress keeps for a client by itself."""
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    """One without a journal."""
    with served(tmp_path) as running:
        yield running


@pytest.mark.parametrize("count", [100, MOST_CONNECTIONS + 100])
def test_half_sent_requests_hold_up_nobody(dashboard: Dashboard, count: int) -> None:
    half_sent = []
    try:
        for _ in range(count):
            half_sent.append(dashboard.connect())
            half_sent[-1].sendall(HALF)
        assert dashboard.first_line(HALF + b"no\r\n\r\n").startswith(b"HTTP/1.1 503"), "there is no journal"
        half_sent[-1].sendall(b"yes\r\n\r\n")  # also the newest of the slow ones is answered
        assert half_sent[-1].recv(12) == b"HTTP/1.1 503"
    finally:
        for connection in half_sent:
            connection.close()


def test_a_stop_ends_what_serves_though_a_client_holds_a_connection(dashboard: Dashboard) -> None:
    with dashboard.connect() as connection:
        connection.sendall(HALF)
        dashboard.process.send_signal(signal.SIGINT)
        out, _ = dashboard.process.communicate(timeout=IN_TIME_S)
        assert (out, dashboard.process.returncode) == ("0\n", 0)
        with contextlib.suppress(ConnectionResetError):  # closed too: the system resets it where the half was not read
            assert connection.recv(1) == b"", "it is closed"


def test_large_requests_are_refused_before_they_are_read(dashboard: Dashboard) -> None:
    body = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {MAX_REQUEST_BYTES + 1}\r\n\r\n"
    assert dashboard.first_line(body.encode()).startswith(b"HTTP/1.1 413")
    with dashboard.connect() as connection:
        connection.sendall(HALF + b"x" * MAX_REQUEST_BYTES)
        assert connection.recv(12).endswith(b" 431")


def test_checks_read_the_journal_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_unix_s = 1_795_000_000.0
    Journal.open(journal_path(tmp_path)).close()
    reader = JournalReader(settings_in(tmp_path), lambda: now_unix_s)
    opened: list[object] = []
    real = Journal.open

    def count(*given: object, **named: object) -> Journal:
        opened.append(given)
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "open", count)
    for _ in range(100):
        assert reader.health().stale == {"web": True}
    assert len(opened) == 1
    now_unix_s += 1.0
    assert reader.health().time_unix_s == now_unix_s
    assert len(opened) == 2


def test_checks_do_not_wait_for_one_that_waits_for_the_disk(tmp_path: Path) -> None:
    now_unix_s = 1_795_000_000.0
    Journal.open(journal_path(tmp_path)).close()
    reader = JournalReader(settings_in(tmp_path), lambda: now_unix_s)
    first = reader.health()
    with reader._health_lock:  # as one that reads
        now_unix_s += 1.0
        assert reader.health() is first
        now_unix_s += 10.0
        assert "the disk does not answer" in reader.health().error
    assert reader.health().error == ""


def test_answers_that_nobody_reads_are_dropped_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server as it is, with less room."""
    monkeypatch.setattr("slackwater.web.http_server.MOST_UNREAD_BYTES", 3 * ANSWER_BYTES)
    monkeypatch.setattr("slackwater.web.http_server.BEAT_EVERY_S", 0.05)
    asked = threading.Semaphore(0)

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [])
        asked.release()
        return [b"x" * ANSWER_BYTES] if environ["PATH_INFO"] == "/large" else [b"small"]

    server = HttpServer(application, "127.0.0.1", 0, lambda: None)
    serving = threading.Thread(target=server.run)
    serving.start()
    address = server.listening[0].socket.getsockname()
    unread = []
    try:
        for _ in range(THREADS + 5):
            unread.append(socket.create_connection(address, IN_TIME_S))
            unread[-1].sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert asked.acquire(timeout=IN_TIME_S), "a thread is free though nobody reads"
        with socket.create_connection(address, IN_TIME_S) as reads:
            reads.sendall(b"GET /small HTTP/1.0\r\n\r\n")
            assert reads.makefile("rb").read().endswith(b"small")
        deadline_s = time.monotonic() + IN_TIME_S
        while (kept := len(server.listening[0].active_channels)) > 4:
            assert time.monotonic() < deadline_s, f"{kept} answers are kept"
            time.sleep(0.05)
    finally:
        for connection in unread:
            connection.close()
        server.end()
        serving.join()


def test_a_connection_that_was_given_up_is_closed_though_much_is_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """waitress marks it, and then waits until the client reads."""
    monkeypatch.setattr("slackwater.web.http_server.SILENT_S", 0)
    monkeypatch.setattr("slackwater.web.http_server.BEAT_EVERY_S", 0.05)
    monkeypatch.setattr("waitress.adjustments.Adjustments.cleanup_interval", 0)

    def application(_: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [])
        return [b"x" * ANSWER_BYTES]

    server = HttpServer(application, "127.0.0.1", 0, lambda: None)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        with socket.create_connection(server.listening[0].socket.getsockname(), IN_TIME_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            deadline_s = time.monotonic() + IN_TIME_S
            while server.listening[0].active_channels:
                assert time.monotonic() < deadline_s, "it is kept"
                time.sleep(0.05)
    finally:
        server.end()
        serving.join()


def test_a_hundred_logins_at_once_take_little_memory(tmp_path: Path) -> None:
    with served(tmp_path) as dashboard:
        with dashboard.connect() as connection:
            connection.sendall(b"GET /login HTTP/1.0\r\nHost: localhost\r\n\r\n")
            page = connection.makefile("rb").read().decode()
        cookie = page.partition("Set-Cookie: ")[2].partition(";")[0]
        token = page.partition('name="csrf_token" value="')[2].partition('"')[0]
        before_mib = dashboard.memory_mib()
        answers = []

        def log_in(number: int) -> None:
            body = f"name=nobody{number}&password=xxxxxxxxxxxx&csrf_token={token}"
            head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nContent-Length: {len(body)}\r\n"
            form = "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            answers.append(dashboard.first_line((head + form + body).encode()).split()[1])

        threads = [threading.Thread(target=log_in, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) <= {b"401", b"429"}
        assert b"401" in answers
        assert dashboard.memory_mib("VmHWM") - before_mib < 150, "a few passwords, not a hundred"
