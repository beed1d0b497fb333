"""Packets tell of a server's requests only as far as they are as many as the balancer counts."""

from __future__ import annotations

from slackwater.lbengine.view.agreement import OTHER_WAY, REQUESTS, Agreement


def played(*steps: tuple[int, float], agreement: Agreement | None = None) -> Agreement:
    """Of one server, the sniffer's total and the requests of each look."""
    agreement = agreement or Agreement()
    for total, requests in steps:
        agreement = agreement.after({"a": (total, requests)})
    return agreement


def test_turns_count_once_as_many_were_seen_as_requests() -> None:
    assert played((0, 0), (REQUESTS - 1, REQUESTS - 1)).doubt("a", is_encrypted=True)
    assert played((0, 0), (REQUESTS, REQUESTS)).doubt("a", is_encrypted=True) == ""
    assert Agreement().doubt("never seen", is_encrypted=True)


def test_more_or_fewer_turns_than_requests_are_no_requests() -> None:
    assert "1.30 answers" in played((0, 0), (1300, 1000)).doubt("a", is_encrypted=True)
    assert "0.50 answers" in played((0, 0), (500, 1000)).doubt("a", is_encrypted=True)


def test_a_server_that_goes_over_to_another_protocol_is_found_out_and_believed_again() -> None:
    agreement, total = played((0, 0)), 0
    doubts = []
    for turns_per_request in (1, 3, 1):
        for _ in range(60):
            total += 10 * turns_per_request
            agreement = agreement.after({"a": (total, 10)})
        doubts.append(agreement.doubt("a", is_encrypted=True) != "")
    assert doubts == [False, True, False]


def test_a_sniffer_that_began_anew_or_was_away_starts_again() -> None:
    believed = played((0, 0), (500, 500))
    assert played((3, 10), agreement=believed).doubt("a", is_encrypted=True)
    assert played((500, 0), agreement=believed.after({})).doubt("a", is_encrypted=True)


def test_packets_are_complete_where_they_show_as_many_requests_as_the_balancer_counts() -> None:
    shares = {0.5: False, 0.95: True, 1.0: True, 1.05: True, 1.5: False}
    assert {share: played((0, 0), (int(200 * share), 200)).is_complete("a") for share in shares} == shares
    assert not played((0, 0), (REQUESTS - 1, REQUESTS - 1)).is_complete("a"), "too few to tell"
    assert not Agreement().is_complete("never seen")


def test_in_the_clear_only_requests_without_any_packet_are_a_reason_for_doubt() -> None:
    assert played((0, 0), (0, REQUESTS)).doubt("a", is_encrypted=False) == OTHER_WAY
    assert played((0, 0), (1, 10 * REQUESTS)).doubt("a", is_encrypted=False) == OTHER_WAY
    for share in (0.3, 1.0, 2.0):
        assert played((0, 0), (int(share * REQUESTS), REQUESTS)).doubt("a", is_encrypted=False) == ""
    assert played((0, 0), (0, REQUESTS - 1)).doubt("a", is_encrypted=False) == "", "too few to tell"
