"""A real HAProxy that is started with a configuration only to be asked what it makes of it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.real_haproxy import PATIENCE_S, haproxy_program, until


@contextmanager
def started(
    files: Sequence[Path],
    admin: Path,
    program: str = "haproxy",
    environ: Mapping[str, str] | None = None,
    *,
    master: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """HAProxy with these files, from when its admin socket answers; ended afterwards."""
    command = haproxy_program(program)
    assert command is not None
    words = [command, *(["-W"] if master else []), "-db", *(word for file in files for word in ("-f", str(file)))]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=None if environ is None else dict(environ))
    try:
        until(lambda: asked(admin, "show info") or process.poll() is not None, "HAProxy answers")
        assert process.poll() is None, process.stderr and process.stderr.read().decode(errors="replace")
        yield process
    finally:
        process.terminate()
        process.communicate()


def asked(admin: Path, command: str) -> str:
    """Its answer; empty while nobody answers."""
    answer = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(admin))
        connection.sendall(command.encode() + b"\n")
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.decode()


def configured_weights(admin: Path) -> dict[str, dict[str, int]]:
    """Backend -> each server's weight as HAProxy took it from its configuration."""
    weights: dict[str, dict[str, int]] = {}
    for line in asked(admin, "show servers state").splitlines()[2:]:
        if values := line.split():
            weights.setdefault(values[1], {})[values[3]] = int(values[8])
    return weights
