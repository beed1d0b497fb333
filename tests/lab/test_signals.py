"""What a neighbour does to each signal."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.core.messages import Sample
from slackwater_lab.stories.signals import compared


def sample(node: str = "host1", **parts: object) -> Sample:
    message = {"v": 1, "node": node, "pool": "web", "time_unix_s": 1.0, "boot_id": "b", "seq": 1, "period_s": 0.2}
    return msgspec.convert(message | parts, Sample)


def test_medians_and_ratios_of_what_both_have() -> None:
    calm = [sample(cpu={"scope": "system", "utilisation": 0.2, "steal": 0.0}) for _ in range(5)]
    beside = [
        sample(cpu={"scope": "system", "utilisation": value, "steal": 0.3, "cores": 1.0}) for value in (0.2, 0.4, 0.8)
    ]
    rows = {row["signal"]: row for row in compared(calm, beside)}
    assert rows.keys() == {"cpu.utilisation", "cpu.steal"}, "neither the message's own fields nor what one side lacks"
    assert (rows["cpu.utilisation"]["ratio"], rows["cpu.utilisation"]["samples"]) == (pytest.approx(2.0), 3)
    assert rows["cpu.utilisation"]["ratio_low"] < 2.0 < rows["cpu.utilisation"]["ratio_high"]
    assert rows["cpu.steal"]["ratio"] is None
    assert rows["cpu.steal"]["beside"] == 0.3
