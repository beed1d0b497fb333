"""The real load generator against a small server: what is counted, and when requests were due."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from slackwater_lab.cluster.load import Demand, Load, Requests
from slackwater_lab.cluster.paths import BIN, LabError

pytestmark = pytest.mark.skipif(not (BIN / "oha").exists(), reason="oha is missing: run `make setup`")


@dataclass
class Asked:
    """A running server: its URL, and what it was asked. Rates and counts are held against this, not against the clock:
    a busy machine may stop the generator for a while."""

    url: str = ""
    requests: int = 0
    special: int = 0
    now: int = 0
    """Requests under way."""
    most: int = 0
    """Most requests at a time."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def server(every: int = 0, fault: str = "", stall_s: float = 0.0, once: bool = False) -> Iterator[Asked]:
    """A server that treats each `every`th request, or only the first of these, specially: `fail` with 500, `drop` it,
    or `stall`."""
    count = itertools.count(1)
    asked = Asked()

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = next(count)
            special = bool(every) and (number == every if once else number % every == 0)
            with asked.lock:
                asked.requests += 1
                asked.special += special
                asked.now += 1
                asked.most = max(asked.most, asked.now)
            try:
                self.answer(special)
            finally:
                with asked.lock:
                    asked.now -= 1

        def answer(self, special: bool) -> None:
            if special and fault == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if special and fault == "stall":
                time.sleep(stall_s)
            self.send_response(500 if special and fault == "fail" else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # a connection that does not fit comes again after a second only

        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Page) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        asked.url = f"http://127.0.0.1:{running.server_port}/"
        yield asked
        running.shutdown()


def load(url: str, folder: Path, demand: Demand, seconds: float) -> Load:
    return Load([str(BIN / "oha")], folder, [url], demand, seconds)


def test_an_open_loop_asks_at_its_rate_and_says_when_each_request_was_due(tmp_path: Path) -> None:
    with server() as asked:
        running = load(asked.url, tmp_path, Demand(rate_rps=50), 2.0)
        requests = running.finish()
    assert len(requests.seconds) == pytest.approx(asked.requests, abs=3)
    assert requests.lost == {}
    due = requests.due_mono_s - running.begin_mono_s
    assert (due[1:] >= due[:-1]).all()
    assert -0.1 < due[0] < 2.5, "counted from its start"
    assert len(requests.seconds) <= 103
    assert len(requests.seconds) == pytest.approx(1 + 50 * (due[-1] - due[0]), abs=10), "50 a second"


def test_what_was_answered_with_an_error_is_there_with_its_status(tmp_path: Path) -> None:
    with server(every=5, fault="fail") as asked:
        requests = load(asked.url, tmp_path, Demand(rate_rps=50), 1.0).finish()
    assert int((requests.status == 500).sum()) == pytest.approx(asked.special, abs=1)
    assert int((requests.status == 200).sum()) == pytest.approx(asked.requests - asked.special, abs=3)


def test_what_was_never_answered_is_counted_as_lost(tmp_path: Path) -> None:
    with server(every=10, fault="drop") as asked:
        requests = load(asked.url, tmp_path, Demand(rate_rps=50), 1.0).finish()
    assert requests.lost_count >= asked.special - 2
    assert requests.lost_count + len(requests.seconds) == pytest.approx(asked.requests, abs=3)


def test_a_stall_is_charged_to_all_requests_that_were_due_in_it(tmp_path: Path) -> None:
    """One client only, and a server that stalls once for 0.5 s: without correction one request would be slow."""
    with server(every=5, fault="stall", stall_s=0.5, once=True) as asked:
        requests = Load([str(BIN / "oha")], tmp_path, [asked.url], OneConnection(rate_rps=39), 1.0).finish()
    assert int((requests.seconds > 0.1).sum()) >= 5


def test_a_request_that_found_no_connection_free_says_nothing_of_the_generator() -> None:
    due_s = np.arange(0.0, 10.0, 0.01)
    late_s = np.full(len(due_s), 0.002)
    requests = Requests(due_s, late_s + 0.001, np.full(len(due_s), 200), {}, late_s)
    assert requests.generator_late_ms(connections=1) == pytest.approx(2.0)
    waits = (due_s > 3.0) & (due_s < 7.0)
    late_s[waits] = 7.0 - due_s[waits]
    slow = Requests(due_s, late_s + 0.001, requests.status, {}, late_s)
    seconds = np.where(due_s == due_s[300], 4.0, slow.seconds)
    held = Requests(due_s, seconds, requests.status, {}, late_s)
    assert held.generator_late_ms(connections=1) == pytest.approx(2.0), "one request held the connection meanwhile"
    assert slow.generator_late_ms(connections=1) > 3000.0, "the connection was free"


class OneConnection(Demand):
    @property
    def connections(self) -> int:
        return 1


def test_a_closed_loop_keeps_its_clients_busy(tmp_path: Path) -> None:
    with server(every=1, fault="stall", stall_s=0.05) as asked:
        requests = load(asked.url, tmp_path, Demand(clients=4), 1.0).finish()
    assert asked.most == 4
    assert len(requests.seconds) <= 88, "at most 4 clients x 20 a second, and those under way at the end"
    assert len(requests.seconds) == pytest.approx(asked.requests, abs=4)


def test_a_generator_that_cannot_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="oha ended with status"):
        load("no such url", tmp_path, Demand(clients=1), 1.0).finish()


def test_a_demand_is_open_closed_or_closed_with_a_highest_rate() -> None:
    with pytest.raises(LabError, match="expected a rate or a number of clients"):
        Demand()
    assert Demand(rate_rps=50.0).arguments() == ["-q", "50", "--latency-correction", "-c", "64"]
    assert Demand(clients=7).arguments() == ["-c", "7"]
    assert Demand(rate_rps=50.0, clients=7).arguments() == ["-q", "50", "-c", "7"]


def test_nothing_is_left_of_a_finished_run(tmp_path: Path) -> None:
    with server() as asked:
        load(asked.url, tmp_path, Demand(rate_rps=20), 0.5).finish()
    assert list(tmp_path.iterdir()) == []
