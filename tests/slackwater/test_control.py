"""Requests of people: what is taken and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.core.control import request_of


def test_a_whole_request_is_taken() -> None:
    request = request_of({"action": "pin", "by": "anna", "target": "web1", "weight": 20, "for_s": 600})
    assert (request.action, request.target, request.weight, request.for_s) == ("pin", "web1", 20, 600)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"action": "jump", "by": "anna"}, "action"),
        ({"action": "pause"}, "`by`"),
        ({"action": "pause", "by": ""}, "by"),
        ({"action": "pause", "by": "wsengine"}, "a part of Slackwater"),
        ({"action": "pin", "by": "anna", "target": "web1"}, "`pin` needs `weight`, `for_s`"),
        ({"action": "pin", "by": "anna", "target": "web1", "weight": -1, "for_s": 1}, "weight"),
        ({"action": "pin", "by": "anna", "target": "web1", "weight": 1, "for_s": 1e9}, "for_s"),
        ({"action": "mode", "by": "anna", "mode": "drive"}, "mode"),
        ({"action": "end_episode", "by": "anna", "target": "web1; drop"}, "Expected a name of letters.*target"),
        ({"action": "end_episode", "by": "anna", "target": "web1\n"}, "Expected a name of letters.*target"),
        ({"action": "mark_episode", "by": "anna", "target": "web1"}, "needs `mark`, `since_unix_s`"),
        ({"action": "mark_episode", "by": "anna", "target": "w", "mark": "x", "since_unix_s": 1}, "mark"),
        ({"action": "mark_episode", "by": "anna", "target": "w", "mark": "deploy", "since_unix_s": -1}, "since_unix_s"),
        ({"action": "ask_samples", "by": "anna", "target": "web1"}, "`ask_samples` needs `for_s`"),
        ({"action": "ask_samples", "by": "anna", "target": "web1", "for_s": 61}, "`for_s` is 61; .* at most 60 s"),
        ({"action": "ask_samples", "by": "anna", "target": "web1", "for_s": float("nan")}, "for_s"),
        ({"action": "ask_samples", "by": "anna", "target": "web1", "for_s": 0}, "for_s"),
        ([], "object"),
    ],
)
def test_what_is_wrong_is_named(question: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        request_of(question)
