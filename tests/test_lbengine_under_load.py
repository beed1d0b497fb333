"""Requests that run while weights change and HAProxy reloads: none may fail."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, web_servers

from lbengine.haproxy import BalancerUnreachable, HAProxy

CHANGES = 10_000
RELOADS = 20
CLIENTS = 4


class Load:
    """Clients that ask one request after the other, each on a connection of its own."""

    def __init__(self, running: RealHAProxy) -> None:
        self.answers: list[int | str] = []
        self._running = running
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self._running.request_any())
            except OSError as error:
                self.answers.append(repr(error))

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


@pytest.mark.slow
@needs_haproxy
def test_no_request_fails_while_weights_change_ten_thousand_times() -> None:
    with web_servers(3) as ports, haproxy(backend(ports)) as running:
        client, load = HAProxy(running.socket, "web", 10.0), Load(running)
        with load.going_on():
            for number in range(CHANGES // 2):
                client.set_weights({"host1": number % 101, "host2": (number * 7) % 101})
    assert len(load.answers) > 100
    assert set(load.answers) == {200}


@pytest.mark.slow
@needs_haproxy
def test_no_request_fails_over_twenty_reloads_with_changes_between() -> None:
    with web_servers(3) as ports, haproxy(backend(ports)) as running:
        client, load = HAProxy(running.socket, "web", 10.0), Load(running)
        with load.going_on():
            for number in range(RELOADS):
                client.set_weights({"host1": number, "host2": 100 - number})
                running.reload()
                with contextlib.suppress(BalancerUnreachable):
                    client.set_weights({"host1": 0})
    assert len(load.answers) > 100
    assert set(load.answers) == {200}
