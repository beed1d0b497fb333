"""A real HAProxy before three web servers, for tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.real_haproxy import RealHAProxy, backend, haproxy, web_servers


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with web_servers(3) as listening:
        yield listening


@pytest.fixture
def running(ports: list[int]) -> Iterator[RealHAProxy]:
    with haproxy(backend(ports)) as balancer:
        yield balancer
