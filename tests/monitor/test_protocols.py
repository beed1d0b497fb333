"""A port that speaks something else than the settings say has no figures, and the reason says what to write."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import certificates
from tests.support.real_processes import free_port

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "slackwater-monitor"))), reason="make setup was not run"),
]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PROXY = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 80\r\n"
IN_TIME_S = 60.0


@contextlib.contextmanager
def served(port: int, answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[None]:
    """Answers whatever comes with the same bytes."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                stream = context.wrap_socket(connection, server_side=True) if context else connection
                stream.recv(65536)
                stream.sendall(answer)
                stream.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(IN_TIME_S)


def ask(port: int, request: bytes, context: ssl.SSLContext | None = None) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        stream = context.wrap_socket(connection) if context else connection
        stream.sendall(request)
        stream.recv(65536)


def sampled(folder: Path, ports: list[object], ask_again: Callable[[], None] | None) -> dict[str, Any]:
    """What the monitor measures while `ask_again` is called over and over."""
    config = folder / "node.toml"
    config.write_text(
        f'node = "n1"\nperiod_s = 1.0\n[sniffer]\ninterface = "lo"\nports = {json.dumps(ports)}\n'
        "[canary]\nenabled = false\n[pmu]\nenabled = false\n"
    )
    once = ["slackwater-monitor", "once", "--config", str(config), "--json"]
    with subprocess.Popen(once, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as monitor:
        while monitor.poll() is None:
            if ask_again:
                ask_again()
        assert monitor.stdout
        return dict(json.loads(monitor.stdout.read()))


def test_tls_on_a_port_of_http_is_absent_with_what_to_write(tmp_path: Path) -> None:
    certificates(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    port = free_port()
    with served(port, ANSWER, server):
        sample = sampled(tmp_path, [port], lambda: ask(port, b"GET / HTTP/1.1\r\n\r\n", client))
        assert "traffic" not in sample
        assert sample["absent"]["traffic"] == (
            f"port {port} is taken for http1, and speaks TLS: requests there cannot be counted; "
            f'in node.toml write [sniffer] ports = ["{port}:unknown"]'
        )
        assert sample["absence_causes"]["traffic"] == "other_protocol"
        sample = sampled(tmp_path, [f"{port}:unknown"], lambda: ask(port, b"GET / HTTP/1.1\r\n\r\n", client))
        assert sample["traffic"]["rps"] > 0


def test_http2_without_tls_is_absent_and_an_idle_port_has_no_requests(tmp_path: Path) -> None:
    port = free_port()
    with served(port, SETTINGS):
        sample = sampled(tmp_path, [port], lambda: ask(port, PREFACE))
        assert "speaks HTTP/2 (h2c, as gRPC uses it)" in sample["absent"]["traffic"]
        assert sampled(tmp_path, [port], None)["traffic"]["rps"] == 0.0


def test_requests_behind_a_proxy_preamble_are_counted(tmp_path: Path) -> None:
    port = free_port()
    with served(port, ANSWER):
        sample = sampled(tmp_path, [port], lambda: ask(port, PROXY + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
        assert sample["traffic"]["rps"] > 0
