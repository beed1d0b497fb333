"""The real load generator against a small server: what is counted, and when requests were due."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.load import Demand, Load
from lab.paths import BIN, LabError

pytestmark = pytest.mark.skipif(not (BIN / "oha").exists(), reason="oha is missing: run `make setup`")


@contextmanager
def server(every: int = 0, what: str = "", stall_s: float = 0.0) -> Iterator[str]:
    """A server that treats each `every`th request specially: `fail` with 500, `drop` it, or `stall`."""
    count = itertools.count(1)

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            special = every and next(count) % every == 0
            if special and what == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if special and what == "stall":
                time.sleep(stall_s)
            self.send_response(500 if special and what == "fail" else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Page) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


def load(url: str, folder: Path, demand: Demand, seconds: float) -> Load:
    return Load([str(BIN / "oha")], folder, [url], demand, seconds)


def test_an_open_loop_asks_at_its_rate_and_says_when_each_request_was_due(tmp_path: Path) -> None:
    with server() as url:
        running = load(url, tmp_path, Demand(rate_rps=50), 2.0)
        found = running.finish()
    assert len(found.seconds) == pytest.approx(100, abs=3)
    assert found.lost == {}
    due = found.due_mono_s - running.begin_mono_s
    assert (due[1:] >= due[:-1]).all()
    assert -0.1 < due[0] < 1.0
    assert due[-1] - due[0] == pytest.approx(1.98, abs=0.2)


def test_what_was_answered_with_an_error_is_there_with_its_status(tmp_path: Path) -> None:
    with server(every=5, what="fail") as url:
        found = load(url, tmp_path, Demand(rate_rps=50), 1.0).finish()
    assert int((found.status == 500).sum()) == pytest.approx(10, abs=1)


def test_what_was_never_answered_is_counted_as_lost(tmp_path: Path) -> None:
    with server(every=10, what="drop") as url:
        found = load(url, tmp_path, Demand(rate_rps=50), 1.0).finish()
    assert found.lost_count >= 3
    assert found.lost_count + len(found.seconds) == pytest.approx(50, abs=3)


def test_a_stall_is_charged_to_all_requests_that_were_due_in_it(tmp_path: Path) -> None:
    """One client only, and a server that stalls once for 0.5 s: without correction one request would be slow."""
    with server(every=20, what="stall", stall_s=0.5) as url:
        running = Load([str(BIN / "oha")], tmp_path, [url], OneConnection(rate_rps=39), 1.0)
        found = running.finish()
    assert int((found.seconds > 0.1).sum()) >= 5


class OneConnection(Demand):
    @property
    def connections(self) -> int:
        return 1


def test_a_closed_loop_keeps_its_clients_busy(tmp_path: Path) -> None:
    with server(every=1, what="stall", stall_s=0.05) as url:
        found = load(url, tmp_path, Demand(clients=4), 1.0).finish()
    assert 20 <= len(found.seconds) <= 88, "at most 4 clients x 20 a second, and those under way at the end"


def test_a_generator_that_cannot_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="oha ended with status"):
        load("no such url", tmp_path, Demand(clients=1), 1.0).finish()


def test_a_demand_is_open_closed_or_closed_with_a_highest_rate() -> None:
    with pytest.raises(LabError, match="expected a rate or a number of clients"):
        Demand()
    assert Demand(rate_rps=50.0).arguments() == ["-q", "50", "--latency-correction", "-c", "64"]
    assert Demand(clients=7).arguments() == ["-c", "7"]
    assert Demand(rate_rps=50.0, clients=7).arguments() == ["-q", "50", "-c", "7"]


def test_nothing_is_left_of_a_finished_run(tmp_path: Path) -> None:
    with server() as url:
        load(url, tmp_path, Demand(rate_rps=20), 0.5).finish()
    assert list(tmp_path.iterdir()) == []
