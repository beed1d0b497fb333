"""An agent for HAProxy's `agent-check`, as small as can be."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.real_haproxy import until


class Agent:
    """A server's own agent, which tells HAProxy its share: each connection is answered with `line`."""

    def __init__(self) -> None:
        self.line = "100%\n"
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # a HAProxy that is reloaded hangs up
                connection.sendall(self.line.encode())
                self.asked += 1

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._thread.join(5.0)

    def twice_more(self) -> None:
        """Returns when an answer of now has surely been taken in."""
        before = self.asked
        until(lambda: self.asked >= before + 3, "HAProxy asks its agent")
