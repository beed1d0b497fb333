"""The page about what makes one server worse than its peers: two printed pages, and each name on it is one of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from slackwater.core.messages import ChangeCause
from slackwater.core.messages.causes import Switchable
from slackwater.views import headline, reasons
from slackwater.web.metric_values import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations/worse-servers.md").read_text(encoding="utf-8")
ALERTS = (ROOT / "web/monitoring/alerts.yml").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
MOST_WORDS = 1200
KINDS = ("errors", "own limit", "chronic machine", "warm-up", "unequal servers")


def cells(kind: str) -> list[str]:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {kind} |"))
    return row.strip("| ").split(" | ")


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


def test_it_is_at_most_two_printed_pages() -> None:
    assert len(PAGE.split()) <= MOST_WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_setting_cause_metric_and_alert(kind: str) -> None:
    _, setting, cause, metrics, alerts = cells(kind)
    if switched := re.search(r'causes_off = \["(.*)"\]', setting):
        assert switched[1] in get_args(Switchable)
    else:
        assert f"`{names(setting)[-1]}`" in SETTINGS
    assert set(names(cause)) <= set(get_args(ChangeCause))
    assert names(cause)
    assert set(names(metrics)) <= {name for name, *_ in METRICS}
    assert names(metrics)
    assert all(f"alert: {name}\n" in ALERTS for name in names(alerts))
    assert names(alerts)


def test_the_words_are_those_of_the_page_and_of_status() -> None:
    assert f"`{headline.fails(0.37, 0.0)}`" in PAGE
    assert f"`{headline.of_limit(0.4)}`" in PAGE
    assert f"`{reasons.DECISIONS['warm_up']}`" in PAGE
