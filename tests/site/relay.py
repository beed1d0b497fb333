"""`ssh` and `systemctl` in the site's machines: they ask the site, which runs the command in the other machine, or
starts, stops and reloads the services that packages bring.

With them the commands that `slackwater init` and `slackwater check` print can be run as they are.
"""

from __future__ import annotations

import json
import socketserver
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SOCKET = "/run/site.sock"
PROGRAMS = ("ssh", "systemctl")
ASKING = f"""\
#!{sys.executable} -I
import json, socket, struct, sys
from pathlib import Path
name = Path(sys.argv[0]).name
given = sys.stdin.buffer.read().decode() if name == "ssh" else ""
with socket.socket(socket.AF_UNIX) as site:
    site.connect({SOCKET!r})
    question = json.dumps([name, sys.argv[1:], given]).encode()
    site.sendall(struct.pack("!I", len(question)) + question)
    answer = json.loads(site.makefile("rb").read())
sys.stdout.write(answer[1])
sys.stderr.write(answer[2])
sys.exit(answer[0])
"""
Answer = tuple[int, str, str]
"""Status, output, errors."""
Asked = Callable[[str, str, list[str], str], Answer]
"""Machine, program, arguments, what it is given on its standard input."""


class Relay:
    """Answers one machine from `with` on, in threads of its own. `place` is where its socket is for this process."""

    def __init__(self, machine: str, place: Path, asked: Asked) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                (length,) = struct.unpack("!I", self.rfile.read(4))
                name, arguments, given = json.loads(self.rfile.read(length))
                try:
                    answer = asked(machine, str(name), list(arguments), str(given))
                except Exception as error:
                    answer = 255, "", f"{name}: {error}\n"
                self.wfile.write(json.dumps(answer).encode())

        self._server = socketserver.ThreadingUnixStreamServer(str(place), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"relay of {machine}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
