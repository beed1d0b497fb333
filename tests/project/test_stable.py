"""What users rely on is still there, or renamed, or removed with a note (docs/operations/upgrading.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater import renamed
from tools import stable

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_of_the_previous_release_is_gone_without_a_word() -> None:
    release, before = stable.recorded()
    assert not stable.gone(before, stable.current()), f"gone since {release}: see docs/operations/upgrading.md"


def test_the_lists_have_what_users_know() -> None:
    now = stable.current()
    for kind, some in {
        "settings": {"controller pool.name", "controller state_dir", "node node", "node sniffer.ports"},
        "api": {"GET /api/v1/pools", "Change.applied"},
        "metrics": {"slackwater_node_state", "slackwater_node_state{state}", "slackwater_cpu_seconds_total{mode}"},
        "messages": {"Verdict.state", "State interference", "Sample.node"},
        "commands": {"slackwater pause", "slackwater pause --all", "slackwater-monitor check"},
    }.items():
        assert some <= set(now[kind]), kind
    assert not [name for name in now["commands"] if name.startswith("slackwater lab")]


OPTION = "slackwater bus config --folder"


@pytest.mark.parametrize(
    ("kind", "old", "now", "removed", "missing"),
    [
        ("metrics", "slackwater_info", ["slackwater_info"], {}, False),
        ("metrics", "slackwater_info", [], {}, True),
        ("metrics", "slackwater_info", [], {"metrics: slackwater_info": "use slackwater_version"}, False),
        ("settings", "controller pool.way", ["controller pool.weight_delivery"], {}, False),
        ("settings", "controller pool.way", [], {}, True),
        ("settings", "node pool.way", ["controller pool.weight_delivery"], {}, True),
        ("commands", OPTION, ["slackwater bus config --out"], {}, False),
        ("commands", OPTION, ["slackwater bus config"], {}, True),
        ("api", "GET /api/v1/changes?q", ["GET /api/v1/changes?text"], {}, False),
        ("api", "GET /api/v1/changes?q", ["GET /api/v1/changes"], {}, True),
    ],
)
def test_a_name_may_go_only_with_an_entry(
    kind: str, old: str, now: list[str], removed: dict[str, str], missing: bool
) -> None:
    assert stable.gone({kind: [old]}, {kind: now}, removed) == ([f"{kind}: {old}"] if missing else [])


def test_what_was_removed_is_in_the_upgrade_notes() -> None:
    notes = (ROOT / "docs/operations/upgrading.md").read_text(encoding="utf-8")
    assert not [name for name in renamed.REMOVED if f"`{name.partition(': ')[2]}`" not in notes]
