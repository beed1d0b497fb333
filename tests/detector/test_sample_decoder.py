"""The detector's own quick reading of Samples: the same values and refusals as the whole, for what it reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from slackwater.core import messages
from slackwater.core.messages import MessageError, Sample
from slackwater.detector.features.columns import reasons, row_of, table_of
from slackwater.detector.features.sample_decoder import decode
from tests.support.judges import new_judge
from tests.support.paths import EXAMPLES
from tests.support.synthetic_cluster import Cluster

FILES = sorted(EXAMPLES.glob("sample-*.json"))
BOTH_FORMS = sorted([*FILES, *EXAMPLES.glob("sample-*.msgpack")])


def whole(data: bytes) -> Sample:
    sample = messages.decode("sample", data)
    assert isinstance(sample, Sample)
    return sample


@pytest.mark.parametrize("path", BOTH_FORMS, ids=lambda path: path.name)
def test_golden_samples_give_the_same_columns_and_plain_fields(path: Path) -> None:
    quick, full = decode(path.read_bytes()), whole(path.read_bytes())
    first, second = (table_of([row_of(sample)], sample.pool).columns for sample in (quick, full))
    assert first.keys() == second.keys()
    for name, values in second.items():
        np.testing.assert_array_equal(first[name], values)
    for name in ("node", "pool", "time_unix_s", "boot_id", "seq", "samples_dropped"):
        assert getattr(quick, name) == getattr(full, name)
    assert reasons(quick.absent) == full.absent
    routes = [(route.route, route.rps, route.rt_mean_ms) for route in full.traffic.routes] if full.traffic else []
    assert (
        [(route.route, route.rps, route.rt_mean_ms) for route in quick.traffic.routes] if quick.traffic else []
    ) == routes


def test_a_judge_fed_with_it_says_the_same() -> None:
    cluster = Cluster(rich=True, routes=True)
    raw = []
    for now_s, samples in cluster.run(
        12.0, lambda at_s: setattr(cluster.hosts["host2"], "neighbour", 0.9 * (at_s > 7))
    ):
        raw.append((now_s, [messages.encode(sample) for sample in samples]))
    quick, full = (new_judge() for _ in range(2))
    for now_s, batch in raw:
        assert quick.tick(now_s, [decode(encoded) for encoded in batch]) == full.tick(now_s, [*map(whole, batch)])


@pytest.mark.parametrize("field", ["period_s", "next_within_s"])
@pytest.mark.parametrize("seconds", [math.inf, math.nan])
def test_nothing_of_infinite_length_gets_in(field: str, seconds: float) -> None:
    """JSON has no such numbers; MessagePack has."""
    data = msgspec.msgpack.encode({**json.loads(FILES[1].read_bytes()), field: seconds})
    for read in (decode, whole):
        with pytest.raises(MessageError, match=rf"\$\.{field}"):
            read(data)


def broken(change: dict[str, Any]) -> bytes:
    plain = json.loads(FILES[1].read_bytes())
    for name, value in change.items():
        section, _, field = name.partition(".")
        if field:
            plain.setdefault(section, {})[field] = value
        else:
            plain[section] = value
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"node": 7},
        {"seq": -1},
        {"cpu.utilisation": "much"},
        {"pool": "a b"},
        {"node": "n" * 129},
        {"traffic.rps": -3},
        {"cpu": []},
    ],
)
def test_what_is_read_is_refused_in_the_same_words(change: dict[str, Any]) -> None:
    with pytest.raises(MessageError) as full:
        whole(broken(change))
    with pytest.raises(MessageError) as quick:
        decode(broken(change))
    assert str(quick.value) == str(full.value)
    for data in (b"{", b'{"node": "\xff"}'):
        with pytest.raises(MessageError, match="not JSON"):
            decode(data)


def test_reasons_that_are_none_count_as_none() -> None:
    for absent in (5, {"sched": 5}, ["sched"]):
        assert reasons(decode(broken({"absent": absent})).absent) == {}


def test_it_stays_small() -> None:
    full = (EXAMPLES / "sample-full.json").read_bytes()
    assert len(msgspec.json.encode(decode(full))) < 0.75 * len(messages.encode(whole(full)))
