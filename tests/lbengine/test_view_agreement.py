"""Turns of encrypted connections are believed only while they are as many as the balancer's requests."""

from __future__ import annotations

from slackwater.lbengine.view.agreement import REQUESTS, Agreement


def played(*steps: tuple[int, float], agreement: Agreement | None = None) -> Agreement:
    """Of one server, the sniffer's total and the requests of each look."""
    agreement = agreement or Agreement()
    for total, requests in steps:
        agreement = agreement.after({"a": (total, requests)})
    return agreement


def test_turns_count_once_as_many_were_seen_as_requests() -> None:
    assert played((0, 0), (REQUESTS - 1, REQUESTS - 1)).doubt("a")
    assert played((0, 0), (REQUESTS, REQUESTS)).doubt("a") == ""
    assert Agreement().doubt("never seen")


def test_more_or_fewer_turns_than_requests_are_no_requests() -> None:
    assert "1.30 turns" in played((0, 0), (1300, 1000)).doubt("a")
    assert "0.50 turns" in played((0, 0), (500, 1000)).doubt("a")


def test_a_server_that_goes_over_to_another_protocol_is_found_out_and_believed_again() -> None:
    agreement, total = played((0, 0)), 0
    doubts = []
    for turns_per_request in (1, 3, 1):
        for _ in range(60):
            total += 10 * turns_per_request
            agreement = agreement.after({"a": (total, 10)})
        doubts.append(agreement.doubt("a") != "")
    assert doubts == [False, True, False]


def test_a_sniffer_that_began_anew_or_was_away_starts_again() -> None:
    believed = played((0, 0), (500, 500))
    assert played((3, 10), agreement=believed).doubt("a")
    assert played((500, 0), agreement=believed.after({})).doubt("a")
