"""Feedback agents for HAProxy's own `agent-check`: a TCP port for each server, on which whoever asks gets `75%`."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Mapping, Sequence

from slackwater_lab.cluster.background import Background

ADDRESS = "127.0.0.1"
LOOK_S = 0.1


class Agents(Background):
    """One agent for each server, from `with` on; all of them answer `100%` until `answer` changes that."""

    def __init__(self, servers: Sequence[str], inter_ms: int) -> None:
        super().__init__("agents")
        self.asked = dict.fromkeys(servers, 0)
        """Server -> number of HAProxy's questions."""
        self._inter_ms = inter_ms
        self._answers = dict.fromkeys(servers, 100)
        self._listeners = {server: socket.create_server((ADDRESS, 0)) for server in servers}

    @property
    def lines(self) -> dict[str, str]:
        """Server -> words for its line (HAProxy Configuration Manual 2.6, 5.2: `agent-check`, `agent-inter`)."""
        return {
            server: f"agent-check agent-addr {ADDRESS} agent-port {listener.getsockname()[1]}"
            f" agent-inter {self._inter_ms}ms"
            for server, listener in self._listeners.items()
        }

    def answer(self, percents: Mapping[str, int]) -> None:
        """Sets the answers, in percent of each server's configured weight."""
        self._answers.update(percents)

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for server, listener in self._listeners.items():
                ready.register(listener, selectors.EVENT_READ, server)
            while not self._end.is_set():
                for key, _ in ready.select(LOOK_S):
                    with contextlib.suppress(OSError):  # who asked has hung up
                        connection, _ = self._listeners[key.data].accept()
                        with connection:
                            connection.sendall(f"{self._answers[key.data]}%\n".encode())
                        self.asked[key.data] += 1

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for listener in self._listeners.values():
            listener.close()
