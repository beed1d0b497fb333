"""The sniffer on traffic of real servers and clients, compared with tshark packet by packet."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.real_processes import free_port
from tests.support.sniffer_traffic import MODULES, captured, http_times, program, running, sniffed, tshark

pytestmark = pytest.mark.lab


def site(folder: Path) -> Path:
    """Pages of different sizes: in one segment, in several, and without a length."""
    pages = folder / "pages"
    pages.mkdir()
    (pages / "small.html").write_text("<p>small</p>\n")
    (pages / "large.html").write_text("<p>large</p>\n" * 5_000)
    (pages / "chunks.php").write_text("<?php for ($i = 0; $i < 5; $i++) { echo str_repeat('x', 3000); flush(); }\n")
    for path in (folder, pages, *pages.iterdir()):
        path.chmod(0o755)
    return pages


def apache(folder: Path, port: int) -> list[str]:
    (folder / "apache.conf").write_text(
        f'LoadModule mpm_event_module "{MODULES}/mod_mpm_event.so"\n'
        f'LoadModule authz_core_module "{MODULES}/mod_authz_core.so"\n'
        f'ServerRoot "{folder}"\nServerName test\nListen 127.0.0.1:{port}\nPidFile "{folder}/pid"\n'
        f'ErrorLog "{folder}/log"\nDefaultRuntimeDir "{folder}"\nMutex pthread\nUser nobody\nGroup nogroup\n'
        f'DocumentRoot "{folder}/pages"\nKeepAlive On\nMaxKeepAliveRequests 0\n'
    )
    return [program("apache2"), "-f", str(folder / "apache.conf"), "-DFOREGROUND"]


def nginx(folder: Path, port: int) -> list[str]:
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1; user nobody nogroup;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {folder}/body;\n"
        f"proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;\n"
        f"scgi_temp_path {folder}/scgi; server {{ listen 127.0.0.1:{port}; root {folder}/pages; }} }}\n"
    )
    return [program("nginx"), "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "log")]


def php(folder: Path, port: int) -> list[str]:
    return [program("php8.2"), "-n", "-S", f"127.0.0.1:{port}", "-t", str(folder / "pages")]


def run_clients(port: int, folder: Path, pages: tuple[str, ...], *, load: bool) -> int:
    """Requests of curl, ab and wrk; returns how many at least."""
    count = 0
    for page in pages:
        url = f"http://127.0.0.1:{port}/{page}"
        curl = [program("curl"), "-s", "-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null"]
        subprocess.run([*curl, url, url, url + "?query"], check=True)
        subprocess.run([program("curl"), "-s", "-I", "-o", "/dev/null", url], check=True)
        count += 4
        for keep_alive in ([], ["-k"]) if load else []:
            subprocess.run(
                [program("ab"), "-q", "-n", "200", "-c", "4", *keep_alive, url], check=True, capture_output=True
            )
            count += 200
    body = folder / "posted"
    body.write_bytes(b"x" * 5_000)
    post = [program("curl"), "-s", "-o", "/dev/null", "-H", "Expect: 100-continue", "--data-binary", f"@{body}"]
    subprocess.run([*post, f"http://127.0.0.1:{port}/{pages[0]}"], check=True)
    if load:
        wrk = [program("wrk"), "-t", "1", "-c", "4", "-d", "1s", f"http://127.0.0.1:{port}/{pages[0]}"]
        subprocess.run(wrk, check=True, capture_output=True)
    return count + 1


@pytest.mark.parametrize("server", [apache, nginx, php], ids=["apache", "nginx", "php"])
def test_http_pairs_and_times_are_tsharks(server: Callable[[Path, int], list[str]], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    site(tmp_path)
    port = free_port()
    is_php = server is php
    pages = ("small.html", "large.html", "chunks.php") if is_php else ("small.html", "large.html")
    path = tmp_path / "traffic.pcap"
    with running(server(tmp_path, port), port), captured(path, port):
        least = run_clients(port, tmp_path, pages, load=not is_php)
    theirs = http_times(path, port)
    seen = sniffed(path, str(port))
    assert len(seen.exchanges) >= least
    for row in seen.exchanges:
        pair = (row["request_frame"], row["response_frame"])
        if (time := theirs.get(pair)) is not None:
            assert row["seconds"] == pytest.approx(time.seconds, abs=1.5e-9), pair
        elif closed := [time for (request, _), time in theirs.items() if time.is_close and request == pair[0]]:
            # A body that ends with the connection: tshark takes the packet that closes it for the last one.
            assert row["seconds"] < closed[0].seconds, pair
        else:
            # nginx refuses a body before it came: tshark sees no request that ended.
            assert row["method"] == "POST", pair
    assert {request for request, _ in theirs} <= {row["request_frame"] for row in seen.exchanges}
    # wrk breaks off what is under way when its time is over.
    assert isinstance(seen.summary["unmatched_requests"], int)
    assert seen.summary["unmatched_requests"] <= (0 if is_php else 4)
    assert (seen.summary["orphan_responses"], seen.summary["holes"], seen.summary["malformed"]) == (0, 0, 0)


def binary_exchange(port: int) -> tuple[int, int]:
    """Sets, quiet gets that hit and miss, a multi-get as libraries send it; returns answered and silent requests."""

    def message(opcode: int, opaque: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> bytes:
        body = len(extras) + len(key) + len(value)
        head = bytes([0x80, opcode]) + len(key).to_bytes(2, "big") + bytes([len(extras), 0, 0, 0])
        return head + body.to_bytes(4, "big") + opaque.to_bytes(4, "big") + bytes(8) + extras + key + value

    with socket.create_connection(("127.0.0.1", port)) as connection:
        stream = connection.makefile("rwb")

        def ask(request: bytes, replies: int) -> None:
            stream.write(request)
            stream.flush()
            for _ in range(replies):
                head = stream.read(24)
                stream.read(int.from_bytes(head[8:12], "big"))

        for number in range(20):
            ask(message(0x01, number + 1, b"key%d" % number, bytes(8), b"v" * 100 * number), 1)
        batch = b"".join(message(0x0D, 100 + number, b"key%d" % number) for number in range(30))
        ask(batch + message(0x0A, 200), 21)
        ask(message(0x07, 201), 1)
    return 20 + 21 + 1, 10


def test_memcached_in_text_and_binary(tmp_path: Path) -> None:
    port = free_port()
    path = tmp_path / "traffic.pcap"
    server = [program("memcached"), "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", "-B", "auto"]
    with running(server, port), captured(path, port):
        answered, silent = binary_exchange(port)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            stream = connection.makefile("rwb")
            for number in range(50):
                stream.write(b"set k%d 0 0 1000 noreply\r\n" % number + b"x" * 1000 + b"\r\nget a k%d b\r\n" % number)
                stream.flush()
                while stream.readline() != b"END\r\n":
                    pass
            stream.write(b"mg k1 v q O1\r\nmg none v q O2\r\nmn\r\nquit\r\n")
            stream.flush()
            assert stream.read().endswith(b"MN\r\n")
        answered, silent = answered + 50 + 2, silent + 50 + 2
    seen = sniffed(path, f"{port}:memcached")
    summary = seen.summary
    assert (summary["exchanges"], summary["unmatched_requests"], summary["quiet_requests"]) == (
        answered,
        silent,
        silent,
    )
    assert (summary["orphan_responses"], summary["malformed"], summary["in_flight"]) == (0, 0, 0)
    # tshark gives no times for memcached, but it knows the frames of answers.
    rows = tshark(path, "-d", f"tcp.port=={port},memcache", "-Y", f"memcache && tcp.srcport=={port}", "-T", "fields",
                  "-e", "frame.number")  # fmt: skip
    answers = {int(row[0]) for row in rows}
    assert {row["response_frame"] for row in seen.exchanges} <= answers


def test_memcached_as_its_own_clients_speak_it(tmp_path: Path) -> None:
    port = free_port()
    path = tmp_path / "traffic.pcap"
    source = tmp_path / "value"
    source.write_bytes(b"v" * 40_000)
    server = [program("memcached"), "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", "-B", "auto"]
    with running(server, port), captured(path, port):
        for extra in ([], ["--binary"]):
            servers = f"--servers=127.0.0.1:{port}"
            subprocess.run([program("memccp"), servers, *extra, str(source)], check=True)
            stored = subprocess.run([program("memccat"), servers, *extra, "value"], check=True, capture_output=True)
            assert stored.stdout.startswith(b"v" * 40_000)
    seen = sniffed(path, f"{port}:memcached")
    methods = [row["method"] for row in seen.exchanges]
    assert methods.count("set") == 2
    assert sum(method in ("get", "getq", "getk", "getkq") for method in methods) >= 2
    assert (seen.summary["orphan_responses"], seen.summary["malformed"]) == (0, 0)
