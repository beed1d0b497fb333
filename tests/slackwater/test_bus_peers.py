"""Who gets the passwords of the controller's own nats-server: a process of its user, and nobody who took its port."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.bus.peers import user_at
from slackwater.core.config import ControllerSettings, load
from tests.support.nats_impostor import GREETING
from tests.support.nats_process import until
from tests.support.real_processes import free_address

STRANGER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a process of another user")
LISTENS = f"""
import json, socket, sys, threading
host, port = sys.argv[1].rsplit(":", 1)
server = socket.create_server((host, int(port)))
print("listens", flush=True)
def meet(connection):
    connection.sendall(b"INFO " + json.dumps({GREETING!r}).encode() + b"\\r\\n")
    print("heard", connection.recv(65536), flush=True)
while True:
    threading.Thread(target=meet, args=(server.accept()[0],), daemon=True).start()
"""


@contextmanager
def stranger(listen: str, user: int = STRANGER) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that answers as a nats-server, and prints what each connection said."""
    command = ["/usr/bin/python3", "-I", "-c", LISTENS, listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=user, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        try:
            yield process
        finally:
            process.terminate()


def heard_by(process: subprocess.Popen[str]) -> str:
    """What the next connection said."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "controller.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\n[bus]\nlisten = "{free_address()}"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
    )
    return path


@pytest.fixture
def settings(config: Path) -> ControllerSettings:
    """The passwords are there, and no server runs."""
    made = load(config)
    nats_server.command(made)
    return made


@AS_ROOT
@pytest.mark.parametrize("user", ["controller_bus", "control_bus"])
def test_a_strangers_process_at_the_buss_port_gets_no_password(settings: ControllerSettings, user: str) -> None:
    with stranger(settings.bus.listen) as process:
        with pytest.raises(BusError) as error:
            asyncio.run(Bus.connect(getattr(settings, user), "t", wait_s=1.0))
        assert heard_by(process) == "heard b''\n"
    assert "a process of user nobody answers there" in str(error.value)
    assert "the password is not sent" in str(error.value)
    assert f"ss -lntp 'sport = :{settings.bus.listen.rpartition(':')[2]}'" in str(error.value)


@AS_ROOT
def test_a_command_while_the_controller_is_down_says_who_listens(
    config: Path, settings: ControllerSettings, tmp_path: Path
) -> None:
    words = ["record", "--out", str(tmp_path / "r.parquet"), "--seconds", "1", "--config", str(config)]
    with stranger(settings.bus.listen) as process:
        done = CliRunner().invoke(cli, words)
        assert heard_by(process) == "heard b''\n"
    assert done.exit_code == 1
    assert "a process of user nobody answers there" in done.output


@AS_ROOT
def test_who_takes_the_port_after_the_server_died_gets_none_either(settings: ControllerSettings) -> None:
    async def story(real: subprocess.Popen[bytes]) -> None:
        bus = await Bus.connect(settings.controller_bus, "t")
        try:
            real.terminate()
            real.wait()
            with stranger(settings.bus.listen) as process:
                assert await asyncio.to_thread(heard_by, process) == "heard b''\n"
                assert await asyncio.to_thread(heard_by, process) == "heard b''\n"
            assert not bus.connected
            with subprocess.Popen(nats_server.command(settings)) as again:
                await until(lambda: bus.connected)
                again.terminate()
        finally:
            await bus.close()

    with subprocess.Popen(nats_server.command(settings)) as real:
        nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings))
        asyncio.run(story(real))


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")],
    ids=["IPv4", "IPv6", "IPv4 in the form of IPv6"],
)
def test_the_kernel_names_the_user_of_the_other_end(listens: str, reached: str) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with (
        socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as server,
        socket.create_connection((reached, server.getsockname()[1])) as ours,
    ):
        ends = ours.getpeername()[:2], ours.getsockname()[:2]
        assert user_at(*ends) is None, "nobody has accepted it"
        theirs, _ = server.accept()
        with theirs:
            assert user_at(*ends) == os.geteuid()
        assert user_at(*ends) is None, "it is closed"
