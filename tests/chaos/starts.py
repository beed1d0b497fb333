"""Faults of a start and of a takeover: in an episode the controller is killed, and then it cannot start, or not with
everything; or a copy of it takes over. No unit sets the baseline weights after it here, as without systemd."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from slackwater_lab.cluster.balancer import BASE_WEIGHT, ask, configuration, free_port, parse_stat
from slackwater_lab.cluster.paths import LAB_DIR, LabError, program
from slackwater_lab.cluster.spawn import Program, wait_until
from tests.chaos.schedule import Injection
from tests.chaos.site import BUS, CONTROLLER, SECOND, STATE_DIR, Site

Undo = Callable[[], None]

CONTROLLER_FILE = LAB_DIR / "lb1/controller.toml"
SECOND_FOLDER = LAB_DIR / "lb2/slackwater"
LOOK_S = 0.1
ENDS_WITHIN_S = 20.0


def in_episode(site: Site, injection: Injection, act: Callable[[], Undo]) -> Undo:
    """A neighbour beside a host, and as soon as a weight is lowered `act`; what it gives undoes it at the end."""
    noises = site.lab.noise_in([site.lab.hosts[-1]], "llcprobe", 1.0, injection.seconds + 5.0)
    over, undo, trouble = threading.Event(), list[Undo](), list[Exception]()

    def run() -> None:
        while not over.wait(LOOK_S):
            if is_lowered(site):
                try:
                    undo.append(act())
                except Exception as error:  # told at the end
                    trouble.append(error)
                return

    thread = threading.Thread(target=run, name=injection.kind, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()
        for each in undo:
            each()
        for noise in noises:
            noise.stop()
        if trouble:
            raise trouble[0]

    return end


def is_lowered(site: Site) -> bool:
    with contextlib.suppress(LabError, KeyError, ValueError):
        shown = parse_stat(ask(site.lab.balancer.admin_socket, "show stat"), 0.0)
        return any(weight < BASE_WEIGHT for weight in shown.weight.values())
    return False


def kill_controller(site: Site, meanwhile: Callable[[], Undo]) -> Undo:
    """All of it at once; `meanwhile` is done while it is down. The unit starts it again and again, and does no more."""
    unit = site.units[CONTROLLER]
    after, unit.after, unit.wanted = unit.after, [], False
    ends = unit.restarts + 1
    unit.kill()
    undo: Undo = lambda: None  # noqa: E731
    try:
        wait_until(lambda: unit.restarts >= ends or unit.pid is None, "the controller's end", ENDS_WITHIN_S)
        undo = meanwhile()
    finally:
        unit.up()

    def end() -> None:
        undo()
        unit.after = after

    return end


# --- a start that fails


def wrong_settings() -> Undo:
    return _with_more(CONTROLLER_FILE, "\nnonsense = [\n")


def wrong_nodes() -> Undo:
    return _with_more(STATE_DIR / "bus/nodes", "four words in line\n")


def taken_port() -> Undo:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    until_s = time.monotonic() + ENDS_WITHIN_S
    while True:
        try:
            taken.bind(BUS)
        except OSError:  # the last nats-server has not ended yet
            if time.monotonic() > until_s:
                raise
            time.sleep(LOOK_S)
        else:
            break
    taken.listen()
    return taken.close


def no_folder(name: str) -> Undo:
    """A file stands in its place."""
    return _in_place_of(STATE_DIR / name, Path.touch)


def no_lock() -> Undo:
    return _in_place_of(STATE_DIR / "serve.lock", Path.mkdir)


WAYS: dict[str, Callable[[], Undo]] = {
    "settings": wrong_settings,
    "nodes": wrong_nodes,
    "port": taken_port,
    "bus folder": partial(no_folder, "bus"),
    "bus store": partial(no_folder, "jetstream"),
    "lock": no_lock,
}
"""Why the controller cannot start."""


def failed_start(site: Site, injection: Injection) -> Undo:
    return in_episode(site, injection, lambda: kill_controller(site, WAYS[str(injection.value)]))


def _with_more(path: Path, more: str) -> Undo:
    before = path.read_text()
    path.write_text(before + more)

    def undo() -> None:
        path.write_text(before)

    return undo


def _in_place_of(path: Path, make: Callable[[Path], None]) -> Undo:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    make(path)

    def undo() -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)

    return undo


# --- with a copy, or without one of two balancers


def cloned_controller(site: Site, injection: Injection) -> Undo:
    """The second controller on a copy of the first one's state folder; the first one's lbengine is killed."""
    shutil.rmtree(SECOND_FOLDER, ignore_errors=True)
    SECOND_FOLDER.mkdir(parents=True)
    for name in ("id", "baseline"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _copy(STATE_DIR / name, SECOND_FOLDER / name)
    unit = site.units[SECOND]
    unit.up()

    def kill() -> Undo:
        site.signal("lbengine", signal.SIGKILL)
        return lambda: None

    end_episode = in_episode(site, injection, kill)

    def end() -> None:
        end_episode()
        unit.wanted = False
        unit.send(signal.SIGTERM)

    return end


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to)
    else:
        shutil.copy(path, to)


def one_of_two_away(site: Site, injection: Injection) -> Undo:
    """The pool gets a second HAProxy; in an episode that one is gone, and the controller is killed."""
    second = SecondHAProxy(site)
    line = f'sockets = ["{second.admin_socket}"]\n'
    before = CONTROLLER_FILE.read_text().replace(line, "")
    second.start()
    CONTROLLER_FILE.write_text(before.replace('mode = "act"', f'{line}mode = "act"', 1))
    site.signal(CONTROLLER, signal.SIGHUP)

    def lose() -> Undo:
        return kill_controller(site, second.stop)

    end_episode = in_episode(site, injection, lose)

    def end() -> None:
        """The second one is back before nobody asks for it any more, and stays until the lab's end."""
        second.start()
        CONTROLLER_FILE.write_text(before)
        end_episode()
        site.signal(CONTROLLER, signal.SIGHUP)

    return end


class SecondHAProxy:
    """Beside the first one, with the same backend, and without requests."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._folder = LAB_DIR / "haproxy2"
        self._folder.mkdir(exist_ok=True)
        self.admin_socket = self._folder / "haproxy.sock"
        self._config = self._folder / "haproxy.cfg"
        first = site.lab.balancer
        self._config.write_text(configuration(first.members, first.balance, free_port(0), self.admin_socket))
        self._program: Program | None = None

    def start(self) -> None:
        if self._program is not None:
            return
        argv = self._site.lab.in_front([program("haproxy"), "-db", "-f", str(self._config)])
        self._program = self._site.lab.add(Program.start("haproxy2", argv, self._folder / "haproxy.log"))
        wait_until(lambda: self._answers, "the second HAProxy", ENDS_WITHIN_S, watch=[self._program])

    @property
    def _answers(self) -> bool:
        with contextlib.suppress(LabError):
            return "Pid:" in ask(self.admin_socket, "show info")
        return False

    def stop(self) -> Undo:
        """Until `start`."""
        if self._program is not None:
            self._program.stop()
            self._site.lab.programs.remove(self._program)
            self._program = None
        self.admin_socket.unlink(missing_ok=True)
        return lambda: None
