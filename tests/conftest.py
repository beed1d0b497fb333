"""What all tests need: the commands under test must hear Ctrl-C. And the one IP_VS guest of a whole run."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers that a configuration can name)
from slackwater_lab.cluster.traces import traces
from tests.support import count_tests, real_haproxy, same_examples, side_by_side
from tests.support.ipvs_guest import IpvsGuest, booted
from tests.support.ipvs_site import IpvsSite
from tests.support.real_lab import run_lab
from tests.support.real_servers import FPMS, Apache, Control, Fpm
from tests.support.real_wsengine import end_group

# A shell that runs tests in the background has them ignore SIGINT; commands that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis tries the same examples each time, however long one takes on a busy machine. `make test-full` has it look
# for others (pytest --hypothesis-profile=others).
settings.register_profile("others", settings.get_profile("ci"), derandomize=False)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    count_tests.register(config)
    side_by_side.register(config)


def pytest_sessionstart() -> None:
    """The profile is chosen by now."""
    if settings().derandomize:
        same_examples.without_local_constants()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuses the values of a set: they have another order in each process, and xdist's must collect the same tests."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if any(isinstance(values, set | frozenset) for values in (*mark.args[1:], *mark.kwargs.values())):
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: parametrize over a set; sort it")


def _use(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if name != "haproxy" and real_haproxy.haproxy_program(name) is None:
        pytest.skip(f"{name} is neither in .build/bin nor in PATH")
    monkeypatch.setattr(real_haproxy, "PROGRAM", name)
    return name


@pytest.fixture(params=real_haproxy.quick_with("haproxy-2.2", "haproxy", "haproxy-3", "haproxy-3.2"))
def haproxy_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has a test run once with each HAProxy that `make setup` brings where it can; in `make test` with four of them."""
    return _use(str(request.param), monkeypatch)


@pytest.fixture(params=real_haproxy.quick_with("haproxy"))
def haproxy_in_full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `haproxy_version`, but in `make test` with Debian 12's alone, unless marked `oldest_and_newest_too`."""
    return _use(str(request.param), monkeypatch)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A command that a test runs in this process closes its files to other users; other tests need theirs read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def balancer() -> Iterator[real_haproxy.RealHAProxy]:
    """A HAProxy with three servers of weight 100 and no traffic."""
    with real_haproxy.haproxy(real_haproxy.backend([1, 2, 3])) as running:
        yield running


@pytest.fixture(scope="session")
def running_guest() -> Iterator[IpvsGuest]:
    with booted() as guest:
        yield guest


@pytest.fixture(scope="session")
def running_site(running_guest: IpvsGuest) -> IpvsSite:
    return IpvsSite(running_guest)


@pytest.fixture
def guest(running_guest: IpvsGuest) -> Iterator[IpvsGuest]:
    """A real IP_VS with an empty table (mark the test `needs_ipvs`)."""
    yield running_guest
    running_guest.ok("ipvsadm -C; echo 0 >/proc/sys/net/ipv4/vs/expire_quiescent_template")


@pytest.fixture
def site(guest: IpvsGuest, running_site: IpvsSite) -> IpvsSite:  # noqa: ARG001 - `guest` empties the table afterwards
    """The same with a client and three web servers around it."""
    return running_site


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """Keys, bus and controller for a wsengine."""
    control = Control(tmp_path)
    yield control
    control.close()


@pytest.fixture
def apache(tmp_path: Path) -> Iterator[Callable[[str, str], Apache]]:
    """Starts a real Apache with an MPM and the site's own settings."""
    started: list[Apache] = []

    def start(mpm: str, own: str) -> Apache:
        started.append(Apache(tmp_path, mpm, own))
        return started[-1]

    yield start
    for server in started:
        end_group(server.process)


@pytest.fixture
def fpm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Fpm]]:
    """Starts a real php-fpm with a pool's own settings: Debian 12's, or what the test is called with."""
    name = getattr(request, "param", FPMS[0])
    if (program := shutil.which(name)) is None:
        pytest.skip(f"{name} is neither in .build/bin nor in PATH")
    started: list[Fpm] = []

    def start(pool: str, patience: str = "10s") -> Fpm:
        started.append(Fpm(tmp_path, pool, patience, program))
        return started[-1]

    yield start
    for server in started:
        end_group(server.process)


@pytest.fixture
def nothing_before_and_after() -> Iterator[None]:
    """No lab is up before the test; what it leaves is taken down, and is its failure."""
    if remains := traces():
        pytest.skip(f"a lab is up or was left behind: {remains}")
    yield
    left = traces()
    if left:
        run_lab("down")
    assert left == []


@pytest.fixture(autouse=True)
def log_again() -> Iterator[None]:
    """Some commands silence a part of the log for the rest of their process, which has other tests to run here."""
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    levels = [(logger, logger.level) for logger in (logging.root, *loggers)]
    yield
    logging.disable(logging.NOTSET)
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)
