"""HAProxy: its runtime API over a Unix socket (Management Guide, section 9.3 "Unix Socket commands").

One connection carries all commands of a call, joined by `;` to lines; each answer ends with an empty line. Several
lines are sent in the interactive mode (`prompt`), since otherwise HAProxy reads only one line of a connection.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slackwater.core.config import host_and_port
from slackwater.core.messages import is_name, is_server_name, plain_text
from slackwater.lbengine.backends.haproxy.answers import backend_id, facts_of, is_of, parse, states
from slackwater.lbengine.backends.haproxy.replies import Replies
from slackwater.lbengine.backends.haproxy.settings import TCP
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Snapshot

MOST_BYTES = 8000
"""Longest line that is sent: HAProxy's buffer (tune.bufsize) is 16384 unless the site made it smaller."""
LONGEST_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""
NO_SOCKET = "not a socket; expected HAProxy's admin socket"
MOST_REFUSAL = 200
"""The most characters of HAProxy's refusal that are shown."""
MOST_CONNECTIONS = 1_000_000
"""The highest `maxconn` that is sent; no server takes more."""
ADVICE = {
    "No such server": "it is not in this backend; was it removed by a reload?",
    "No such backend": "was it renamed? `backend` in the pool's settings names it",
    "Permission denied": "the socket needs `level admin`",
    "Backend is using a static LB algorithm": "use `balance roundrobin`, or add `hash-type consistent` to a hash",
    "Unknown command": "this HAProxy is older than 2.2, or its socket has a lower level than admin",
}
"""Begin of a refusal of HAProxy -> its meaning for the site."""


class HAProxy(Balancer):
    """A backend of the HAProxy behind an admin socket: a path, or `tcp://HOST:PORT`.

    It opens a connection for each call and keeps none. A kept connection would take one of the few that HAProxy allows,
    and after a reload it would still reach the process that ends.
    """

    def __init__(self, path: str, backend: str, timeout_s: float) -> None:
        if not is_name(backend):
            raise BalancerError(f"{path}: {backend!r} is no safe name of a backend (letters, digits, `_-:.` expected)")
        self.path = path
        self.backend = backend
        self.timeout_s = timeout_s
        self._show_state = f"show servers state {backend}"
        self.proxy = backend
        """The backend's key for `show stat`: its name, or its number where another proxy has the name."""
        self._read_pid: int | None = None
        """Pid of the process that answered `read` last."""

    def read(self) -> Snapshot:
        """The process, the algorithm and all servers at one moment. Raises BalancerError."""
        info, stat, state = self._ask_and_look()
        snapshot = parse(info, stat, state, f"{self.path}: backend `{self.backend}`")
        self._read_pid = snapshot.pid
        return snapshot

    def _ask_and_look(self, *commands: str) -> list[str]:
        """The answers to `commands`, then to `show info`, the backend's `show stat` and its `show servers state`."""
        *answers, info, stat, state = self.ask(*commands, *self._show)
        number = backend_id(state)
        if number and not is_of(stat, number):
            self.proxy = number
            info, stat, state = self.ask(*self._show)
        return [*answers, info, stat, state]

    @property
    def _show(self) -> tuple[str, ...]:
        return ("show info", f"show stat {self.proxy} 6 -1", self._show_state)

    def expect(self, weights: Mapping[str, int]) -> None:
        """Announces weights that HAProxy will show soon. Nothing needs to be remembered here."""

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights (0..256) and reads them back.

        Raises BalancerError before anything is sent when a name or a weight is not safe. It is raised afterwards when
        HAProxy refused a weight (the others are set then), shows another weight than the one set, or answered from
        another process than the one that was read.
        """
        self._check(weights, 0, 256, "weight")
        commands = [f"set server {self.backend}/{server} weight {weight}" for server, weight in weights.items()]
        *answers, info, state = self.ask(*commands, "show info", self._show_state)
        self._check_process(info)
        self._raise_refused(weights, answers)
        shown = {row.name: row.weight for row in states(state, self.path)[0]}
        self._raise_different(weights, shown)

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """As `set_weights`, for the most requests that a server gets at a time; never 0, which means no limit."""
        self._check(maxconns, 1, MOST_CONNECTIONS, "maxconn")
        commands = [f"set maxconn server {self.backend}/{server} {maxconn}" for server, maxconn in maxconns.items()]
        *answers, info, stat, state = self._ask_and_look(*commands)
        self._check_process(info)
        self._raise_refused(maxconns, answers)
        snapshot = parse(info, stat, state, f"{self.path}: backend `{self.backend}`")
        self._raise_different(maxconns, {server.name: server.maxconn for server in snapshot.servers})

    def _check(self, values: Mapping[str, int], least: int, most: int, setting: str) -> None:
        for server, value in values.items():
            if not is_server_name(server):
                raise BalancerError(
                    f"{self.path}: {server!r} is no safe name of a server (letters, digits, `_-:.` expected); not sent"
                )
            if not least <= value <= most:
                raise BalancerError(f"{self.path}: {setting} {value} for {server}: expected {least}..{most}; not sent")

    def _check_process(self, info: str) -> None:
        """Raises BalancerUnreachable when another process answers than the one that was read.

        During a reload both answer for a moment, and neither knows the weights that the other was given.
        """
        pid, read_pid = int(facts_of(info, self.path)["Pid"]), self._read_pid
        if read_pid not in (None, pid):
            self._read_pid = None
            raise BalancerUnreachable(
                f"{self.path}: process {pid} answers now, and process {read_pid} did before; is HAProxy restarting?"
            )

    def _raise_refused(self, values: Mapping[str, int], answers: Sequence[str]) -> None:
        refused = [
            f"{server}: {in_words(answer)}" for server, answer in zip(values, answers, strict=True) if answer.strip()
        ]
        if refused:
            raise BalancerError(f"{self.path}: backend `{self.backend}` refused: {'; '.join(refused)}")

    def _raise_different(self, values: Mapping[str, int], shown: Mapping[str, int | None]) -> None:
        wrong = [
            f"{server} shows {shown.get(server, 'nothing')} instead of {value}"
            for server, value in values.items()
            if shown.get(server) != value
        ]
        if wrong:
            raise BalancerError(f"{self.path}: backend `{self.backend}` did not take what was set: {', '.join(wrong)}")

    def ask(self, *commands: str) -> list[str]:
        """Sends commands over one connection and returns their answers, without the empty lines that end them.

        Raises BalancerUnreachable when HAProxy doesn't answer all of them within the timeout, BalancerError when a
        command is more than one.
        """
        for command in commands:
            if not command.isprintable() or ";" in command:
                raise BalancerError(f"{self.path}: {command!r} is not one command; not sent")
        batches: list[list[str]] = []
        room = 0
        for command in commands:
            if (room := room - len(command) - 1) < 0:
                batches.append([])
                room = MOST_BYTES - len(command) - 1
            batches[-1].append(command)
        if not batches:
            return []
        try:
            with self._connect() as connection:
                answers = self._converse(connection, batches)
        except TimeoutError:
            raise BalancerUnreachable(
                f"{self.path}: HAProxy did not answer within {self.timeout_s:g} s; is it stuck, are all connections"
                " of its admin socket taken (`stats maxconn`, 10 by default), or is this its master's (`haproxy -S`)?"
            ) from None
        except OSError as error:
            raise BalancerUnreachable(f"{self.path}: {self._why_not(error)}") from None
        except UnicodeError:
            raise BalancerUnreachable(f"{self.path}: that is no name of a host") from None
        if len(answers) != len(commands):
            raise BalancerUnreachable(
                f"{self.path}: {len(answers)} of {len(commands)} answers came, then HAProxy closed the connection;"
                " is it restarting?"
            )
        return answers

    def _connect(self) -> socket.socket:
        if self.path.startswith(TCP):
            return socket.create_connection(host_and_port(self.path.removeprefix(TCP)), self.timeout_s)
        if (length := len(os.fsencode(self.path))) > LONGEST_PATH_BYTES:
            raise BalancerError(
                f"{self.path}: the path has {length} bytes, and that of a Unix socket at most {LONGEST_PATH_BYTES}"
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout_s)
            connection.connect(self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _why_not(self, error: OSError) -> str:
        if self.path.startswith(TCP):
            return f"{error.strerror or error}; expected HAProxy's `stats socket` on this address, with `level admin`"
        if isinstance(error, FileNotFoundError):
            return f"no such socket; expected HAProxy's `stats socket {self.path} level admin`"
        if isinstance(error, PermissionError):
            return (
                "no permission to connect; expected a socket that this user may write to"
                " (`stats socket PATH user USER mode 600 level admin`)"
            )
        if isinstance(error, ConnectionRefusedError):
            if not Path(self.path).is_socket():
                return NO_SOCKET
            return "nobody listens there; expected a running HAProxy's admin socket"
        return f"{error.strerror or error}; is HAProxy restarting?"

    def _converse(self, connection: socket.socket, batches: Sequence[Sequence[str]]) -> list[str]:
        """The answers that came before all had come or HAProxy hung up. Raises OSError, BalancerUnreachable."""
        until_s = time.monotonic() + self.timeout_s
        interactive = len(batches) > 1
        lines = [["prompt"], *batches] if interactive else batches
        answers: list[str] = []
        for line in lines:
            connection.settimeout(max(until_s - time.monotonic(), 0.001))
            connection.sendall(";".join(line).encode() + b"\n")
            replies = Replies(len(line), self.path)
            while not interactive or not replies.is_prompted:
                connection.settimeout(max(until_s - time.monotonic(), 0.001))
                if not (chunk := connection.recv(65536)):
                    break
                replies.take(chunk)
            answers += replies.answers
            if interactive and not replies.is_prompted:
                break
        return answers[1:] if interactive else answers


def in_words(answer: str) -> str:
    """HAProxy's refusal, with its remedy where that is known."""
    text = plain_text(answer.strip().splitlines()[0][:MOST_REFUSAL]) if answer.strip() else ""
    return next((f"{text} ({words})" for start, words in ADVICE.items() if text.startswith(start)), text)
