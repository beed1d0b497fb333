"""The policies that run on nodes: wsengine's tests read what Python's decide."""

from __future__ import annotations

import json

from tests.support import fast_policies


def test_wsengine_is_tested_with_what_these_policies_decide() -> None:
    assert fast_policies.RECORDED.read_text() == fast_policies.written(), "run python -m tests.support.fast_policies"


def test_each_state_and_each_rung_is_among_them() -> None:
    cases = json.loads(fast_policies.written())
    for case in cases["hurry_up"]:
        assert {clock for step in case["steps"] for clock in step["clocks"]} >= {case["clocks"][0], case["clocks"][-1]}
    seen = {(case["cores"], step["cores"]) for case in cases["pareto"] for step in case["steps"]}
    assert any(cores < most for most, cores in seen), "cores are taken away"
