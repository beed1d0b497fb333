"""The comparison of the sniffer's turns with HAProxy's `Tr`: what is counted, and once in the real lab."""

from __future__ import annotations

import json

import pytest

from lab.stories.tls import percentiles, tr_ms, turns_ms
from tests.support.real_lab import needs_lab, run_lab


def test_lines_of_the_window_count_and_unknown_times_stay_unknown() -> None:
    lines = [
        "capturing on eth0",
        *(
            json.dumps({"time_unix_s": at, "seconds": seconds})
            for at, seconds in ((1.0, 0.5), (2.0, 0.01), (3.0, None))
        ),
        json.dumps({"error": "gone"}),
    ]
    assert turns_ms(lines, 1.5, 4.0) == [10.0, None]
    log = ["measured 2.250 7 200", "[NOTICE] measured", "measured 2.500 -1 503", "measured 9.000 8 200"]
    assert tr_ms(log, 2.0, 3.0) == [7.0]
    assert percentiles([]) == {"p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert percentiles([1.0, 2.0, 3.0])["p50_ms"] == 2.0


@pytest.mark.lab
@pytest.mark.slow
@needs_lab
@pytest.mark.usefixtures("nothing_before_and_after")
def test_over_kept_connections_there_is_a_turn_for_each_request_and_more_over_new_ones() -> None:
    done = run_lab("tls", "--seconds", "5", "--load", "0.3", "--json", "-", timeout_s=600)
    assert done.returncode == 0, done.stderr
    phases = json.loads(done.stdout)["phases"]
    assert [(phase["keep_alive"], phase["neighbour"]) for phase in phases] == [
        (True, False),
        (True, True),
        (False, False),
        (False, True),
    ]
    for phase in phases:
        assert phase["requests"] > 0
        turns_per_request = phase["turns"] / phase["requests"]
        # A handshake is a turn too.
        assert turns_per_request >= (0.9 if phase["keep_alive"] else 1.5)
    assert phases[0]["turns"] / phases[0]["requests"] < 1.3
