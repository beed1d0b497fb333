"""The private nats-server: its configuration, its address, and what goes wrong."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import BusError
from slackwater.core.bus.config import MAX_PAYLOAD_BYTES
from slackwater.core.config import BusSettings, ControllerSettings, is_loopback
from tests.support.real_processes import free_address


def settings(state_dir: Path, listen: str = "127.0.0.1:1") -> ControllerSettings:
    return ControllerSettings(pool=[], state_dir=str(state_dir), bus=BusSettings(listen=listen))


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which something listens that is no NATS server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_taken_address_is_named(taken: str) -> None:
    with pytest.raises(BusError, match=rf"cannot listen on {taken} \(Address already in use\); set bus\.listen"):
        nats_server.check_free(taken)


def test_address_that_is_not_of_this_machine_is_named() -> None:
    with pytest.raises(BusError, match=r"cannot listen on 192\.0\.2\.1:4222 \(Cannot assign requested address\)"):
        nats_server.check_free("192.0.2.1:4222")


def test_waiting_ends_with_the_last_line_of_the_log(taken: str, tmp_path: Path) -> None:
    log = tmp_path / "nats.log"
    log.write_text("first\nthe end\n")
    with pytest.raises(BusError, match=rf"does not answer on {taken} within 0\.2 s; the last line of .*: the end"):
        nats_server.wait_until_it_answers(taken, log, within_s=0.2)


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BusError, match=r"nats-server is not on the PATH \(Debian: package nats-server\)"):
        nats_server.command(settings(tmp_path))


def test_server_starts_in_a_folder_with_an_awkward_name(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" # name'
    listen = free_address()
    with subprocess.Popen(nats_server.command(settings(folder, listen)), stdin=subprocess.DEVNULL) as server:
        try:
            nats_server.wait_until_it_answers(listen, folder / "nats.log")
            assert nats_server.answers(listen)
            with socket.create_connection(("127.0.0.1", int(listen.partition(":")[2]))) as connection:
                greeting = connection.recv(4096)
            assert f'"max_payload":{MAX_PAYLOAD_BYTES}'.encode() in greeting
        finally:
            server.terminate()
    assert "Server is ready" in (folder / "nats.log").read_text()
    assert not nats_server.answers(listen)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
        ("nats.example.com:1", False),
    ],
)
def test_addresses_of_this_machine_alone_are_known(listen: str, expected: bool) -> None:
    assert is_loopback(listen) is expected
