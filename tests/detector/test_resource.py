"""Which resource a neighbour takes: a pure function of the features, by its stated rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.detector.classify.resource import RESOURCES, resource_of
from slackwater.detector.features.signals import INDEX, SIGNALS
from tests.support.detector_frames import frame


def resource_shown(**signals: float) -> str:
    """The resource of a node whose signals are so many times their calm baseline and their peers'."""
    return RESOURCES[int(resource_of(frame([80.0], [0.3], **signals))[0])]


@pytest.mark.parametrize(
    ("signals", "resource"),
    [
        ({"run_delay_per_cpu": 9.0}, "cpu"),
        ({"steal": 6.0}, "cpu"),
        ({"late": 20.0}, "cpu"),
        ({"cache_miss_rate": 3.0, "cpi": 2.0}, "cache"),
        ({"probe_misses": 3.0, "probe_cycles": 5.0}, "cache"),
        ({"cpi": 3.0, "cache_miss_rate": 1.1}, "memory bandwidth"),
        ({"probe_cycles": 3.0}, "memory bandwidth"),
        ({"io_pressure": 9.0, "disk_wait": 20.0}, "disk"),
        ({"net_drops": 40.0, "retransmits": 20.0}, "network"),
        ({"run_delay_per_cpu": 1.2, "cpi": 1.1, "io_pressure": 1.0}, "unclear"),
        ({"run_delay_per_cpu": 5.0, "io_pressure": 4.0}, "unclear"),
        ({}, "unclear"),
    ],
)
def test_the_loudest_resource_is_reported_if_it_is_clear(signals: dict[str, float], resource: str) -> None:
    assert resource_shown(**signals) == resource


def test_what_the_peers_show_too_is_no_answer_and_one_side_is_enough_where_the_other_is_unknown() -> None:
    loud = frame([80.0], [0.3], run_delay_per_cpu=9.0)
    loud.peers[:, INDEX["run_delay_per_cpu"]] = 1.0
    assert RESOURCES[int(resource_of(loud)[0])] == "unclear"
    loud.peers[:, INDEX["run_delay_per_cpu"]] = np.nan
    assert RESOURCES[int(resource_of(loud)[0])] == "cpu"
    loud.own[:], loud.peers[:, INDEX["run_delay_per_cpu"]] = np.nan, 9.0
    assert RESOURCES[int(resource_of(loud)[0])] == "cpu"


def test_every_signal_that_speaks_is_one_that_there_is_and_every_resource_has_one() -> None:
    assert {signal.resource for signal in SIGNALS} - {None} == {*RESOURCES} - {"unclear", "own limit"}
    assert all((signal.resource is None) == math.isinf(signal.resource_limit) for signal in SIGNALS)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(set(INDEX) - {"utilisation"})), st.one_of(st.floats(0, 100), st.just(float("nan")))
    )
)
def test_any_features_give_one_of_the_resources(signals: dict[str, float]) -> None:
    assert resource_shown(**signals) in RESOURCES
