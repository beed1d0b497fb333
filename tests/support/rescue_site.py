"""A real HAProxy with the rescue's lines before three servers that keep requests while a test wants it."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab.played_verdict import verdict
from lbengine.backends.haproxy import rescue
from lbengine.backends.haproxy.settings import HAProxyPool
from lbengine.engine import Engine
from slackwater.config import LbengineSettings
from slackwater.journal.journal import Journal, journal_path
from slackwater.messages import Change, State
from tests.support.real_haproxy import RealHAProxy, haproxy, haproxy_program, servers_of, until

PROGRAMS = ("haproxy-3", "haproxy-3.2")
has_programs = all(haproxy_program(name) for name in PROGRAMS)
HOSTS = ("host1", "host2", "host3")
SETTINGS = LbengineSettings(socket_timeout_s=20.0)
AFTER_MS = 1500
"""Long: a quick server on a busy machine is not to be taken for a slow one."""
QUICK = "/quick"
"""A path that is always answered at once, and not noted."""
PAUSES = "/pauses"
"""A path whose body pauses after its first byte, until the server's `go_on` is set."""
WAITS = "    timeout server 110s"
"""Of the backend: long, or a busy machine would end what a server keeps before the test has seen it."""


class _Answers(BaseHTTPRequestHandler):
    """Answers while the server's `answers` is set, else waits for that; or hangs up."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: KeepingServer

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        if self.path != QUICK:
            self.server.asked.append(self.command)
            if self.server.hangs_up:
                self.close_connection = True
                return
            self.server.answers.wait(120.0)
        self.send_response(200)
        self.send_header("Content-Length", "2" if self.path.startswith(PAUSES) else "0")
        self.end_headers()
        if self.path.startswith(PAUSES):
            self.wfile.write(b"a")
            self.server.go_on.wait(120.0)
            self.wfile.write(b"b")

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


class KeepingServer(ThreadingHTTPServer):
    """A web server on a free port of loopback."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.answers = threading.Event()
        self.answers.set()
        self.go_on = threading.Event()
        self.hangs_up = False
        """It closes each connection without an answer."""
        self.asked: list[str] = []
        """Methods, in their order."""

    def handle_error(self, *_: object) -> None:
        """A connection that HAProxy dropped is no news."""


class RescueSite:
    """HAProxy, the servers host1 to host3, and an engine whose clock only the test moves."""

    def __init__(self, balancer: RealHAProxy, servers: list[KeepingServer], folder: Path) -> None:
        self.balancer, self.servers, self.folder = balancer, servers, folder
        self.now_s = 1000.0
        self.journal = Journal.open(journal_path(folder))
        self.engine = self.start()

    def pool(self, **others: object) -> HAProxyPool:
        chosen = {"mode": "act", "rescue": True, "rescue_min_timeout_ms": AFTER_MS, **others}
        return HAProxyPool(name="web", backend="web", socket=self.balancer.socket, **chosen)  # type: ignore[arg-type]

    def start(self, **others: object) -> Engine:
        self.engine = Engine(self.pool(**others), SETTINGS, self.folder, self.journal)
        return self.engine

    def cycle(self, after_s: float = 0.2, **states: State) -> str:
        """Time passes, all nodes speak (calm, but for the ones named), the engine turns."""
        self.now_s += after_s
        for host in HOSTS:
            said = verdict(host, states.get(host, "calm"), cpu=0.3, rt_p95_ms=5.0)
            self.engine.inbox.put(said, self.now_s)
        return self.engine.cycle(self.now_s)

    def arm(self) -> None:
        """A calm turn, then an episode of host1, which still gets its third of the requests here."""
        self.cycle()
        self.cycle(host1="interference")
        assert self.armed_ms() == AFTER_MS
        self.even()

    def even(self) -> None:
        for host in HOSTS:
            self.balancer.send(f"set server web/{host} weight 100")

    def ask(self, method: str = "GET", body: bytes | Iterable[bytes] | None = None, path: str = "/") -> int:
        """One request; the status of its answer. A body in pieces is sent with `Transfer-Encoding: chunked`."""
        connection = self.balancer.connection()
        connection.timeout = 120.0
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def warm_up(self) -> None:
        """Requests that all answer at once: 2% of them are a few, for the next second."""
        connection = self.balancer.connection()
        for _ in range(150):
            connection.request("GET", QUICK)
            connection.getresponse().read()
        connection.close()

    def keep(self, *hosts: str) -> None:
        """These answer nothing until `release`."""
        for host in hosts:
            self.servers[HOSTS.index(host)].answers.clear()

    def hang_up(self, host: str) -> None:
        """It closes each connection without an answer from now on."""
        self.servers[HOSTS.index(host)].hangs_up = True

    def release(self) -> None:
        for server in self.servers:
            server.answers.set()
            server.go_on.set()

    def asked(self, host: str) -> list[str]:
        return self.servers[HOSTS.index(host)].asked

    def armed_ms(self) -> int:
        """In HAProxy, past the code under test."""
        return self._in_table("web", "gpt0")

    def open(self) -> int:
        """Requests in flight that may still be sent twice."""
        return self._in_table("web.sent", "conn_cur")

    def counted(self) -> int:
        """Further attempts that the budget knows of."""
        return self._in_table("web.sent", "gpc0")

    def _in_table(self, key: str, field: str) -> int:
        rows = self.balancer.send(f"show table {rescue.TABLE}").splitlines()
        return next((int(row.split(f"{field}=")[1].split()[0]) for row in rows if f"key={key} " in row), 0)

    def threads(self) -> int:
        """Of HAProxy: each may take the last of the budget at the same moment."""
        rows = self.balancer.send("show info").splitlines()
        return next(int(row.split()[1]) for row in rows if row.startswith("Nbthread: "))

    def stat(self, column: str, name: str = "BACKEND") -> int:
        """Of the whole backend, or of one server."""
        rows = csv.DictReader(io.StringIO(self.balancer.send("show stat web 6 -1").removeprefix("# ")))
        return next(int(row[column]) for row in rows if row["svname"] == name)

    def changes(self) -> list[Change]:
        """The rescue's, oldest first."""
        return [made for made in reversed(self.journal.changes("web")) if made.what == "rescue"]


def sections(ports: list[int], more: tuple[str, ...] = tuple(rescue.lines("web"))) -> str:
    return "\n".join([*more, WAITS, "    balance roundrobin", servers_of(ports), ""])


@contextmanager
def rescue_site(folder: Path, lines: tuple[str, ...] = tuple(rescue.lines("web"))) -> Iterator[RescueSite]:
    with ExitStack() as stack:
        servers = [stack.enter_context(KeepingServer()) for _ in HOSTS]
        for server in servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(server.shutdown)
        balancer = stack.enter_context(haproxy(sections([server.server_address[1] for server in servers], lines)))
        site = RescueSite(balancer, servers, folder)
        stack.callback(site.release)
        until(lambda: site.ask() == 200, "HAProxy passes requests on")
        for server in servers:
            server.asked.clear()
        yield site
