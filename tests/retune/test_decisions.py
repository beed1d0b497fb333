"""The second stage's decisions: knowledge base, starvation, stage, best. Nothing is touched."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.core.config import ConfigError, RetuneSettings, parse
from slackwater.core.config.node_changes import Knob
from slackwater.core.messages import Cpu, Knobs, KnobState, Sample, Sched
from slackwater.retune.best_values import BestValues, band
from slackwater.retune.cpu_starvation import FULL, CpuStarvation, is_starved, stretch_of
from slackwater.retune.knowledge import SHIPPED, KnowledgeError, Rule, load, value_for
from slackwater.retune.node import RetunedNode
from slackwater.retune.stage import RECHECK_AFTER_S, RECHECK_S, Affected, Stage, has_room
from tests.support.paths import ROOT

TIMING = RetuneSettings(long_after_s=30.0, no_room_after_s=5.0, leave_after_s=10.0)
CHILDREN = KnobState("php_fpm.max_children", 4, 4, 1, 32, reloads=True)


# --- the knowledge base


def test_the_shipped_knowledge_follows_the_papers_directions() -> None:
    rules = load()
    workers = KnobState("apache.max_request_workers", 400, 400, 16, 400)
    timeout = KnobState("apache.keepalive_timeout", 5, 5, 1, 60)
    frequency = KnobState("cpu.frequency", "schedutil", "schedutil", words=["performance", "powersave"])
    share = KnobState("cpu.share", 100, 100, 50, 400)
    cores = KnobState("cpu.cores", 1, 1, 1, 2)
    for severity in (0.2, 0.5, 0.9):
        assert value_for(rules["apache.max_request_workers"], workers, severity) < 400  # type: ignore[operator]
        assert value_for(rules["apache.keepalive_timeout"], timeout, severity) > 5  # type: ignore[operator]
        assert value_for(rules["php_fpm.max_children"], CHILDREN, severity) > 4  # type: ignore[operator]
        assert value_for(rules["cpu.frequency"], frequency, severity) == "performance"
        assert value_for(rules["cpu.share"], share, severity) > 100  # type: ignore[operator]
        assert value_for(rules["cpu.cores"], cores, severity) == 2
    assert [value_for(rules["cpu.share"], share, severity) for severity in (0.2, 0.4, 0.6)] == [125, 167, 250]
    assert value_for(rules["php_fpm.max_children"], CHILDREN, 0.1) is None


def test_values_stay_within_the_nodes_bounds_and_never_turn_the_other_way() -> None:
    rule = Rule([0.2], factor=[8.0])
    assert value_for(rule, KnobState("k", 4, 4, 1, 10), 0.5) == 10
    assert value_for(rule, KnobState("k", 20, 20, 1, 10), 0.5) is None, "its own value is above what we may ask for"
    assert value_for(rule, KnobState("k", 4, 4), 0.5) is None, "no number may be asked for"
    assert value_for(rule, KnobState("k"), 0.5) is None, "its value is not known"
    assert value_for(Rule([0.2], factor=[1.2]), KnobState("k", 1, 1, 1, 10), 0.5) == 2
    assert value_for(Rule([0.2], factor=[0.9]), KnobState("k", 1, 1, 1, 10), 0.5) is None
    assert value_for(Rule([0.2], value=["performance"]), KnobState("k", "x", "x", words=["powersave"]), 0.5) is None
    assert value_for(Rule([0.2], value=[8]), KnobState("k", 4, 4, 1, 6), 0.5) is None


@pytest.mark.parametrize(("cpus", "children"), [(None, None), (1, None), (2, 16)])
def test_a_web_server_on_one_cpu_keeps_its_children(cpus: int | None, children: int | None) -> None:
    """So does one of which it is not known."""
    node = RetunedNode("web1", TIMING, load())
    node.see_sample(Sample(1, "web1", "web", 0.0, "b", 0, 0.2, sched=Sched(cpus=cpus)), 0.0)
    node.see_knobs(Knobs(1, "web1", "web", 0.0, "kind", [CHILDREN]), 0.0, lambda _: None)
    node.stage.adopt(0.5, "words")
    assert node.target_values(0.0).get("php_fpm.max_children") == children
    assert node.known_values({"php_fpm.max_children"}, 0.5, 0.0).get("php_fpm.max_children") == children
    assert node.ranges(0.0)["php_fpm.max_children"].expected == (-1 if children is None else 1), "a search tries fewer"


def test_children_that_are_turned_stay_so_for_the_episode_whatever_becomes_of_the_cpus() -> None:
    node = RetunedNode("web1", TIMING, load())
    node.see_sample(Sample(1, "web1", "web", 0.0, "b", 0, 0.2, sched=Sched(cpus=2)), 0.0)
    node.see_knobs(Knobs(1, "web1", "web", 0.0, "kind", [CHILDREN]), 0.0, lambda _: None)
    node.stage.adopt(0.5, "words")
    node.hold(CHILDREN.name, 16, "o1", 0.0)
    node.see_sample(Sample(1, "web1", "web", 0.0, "b", 0, 0.2, sched=Sched(cpus=1)), 1.0)
    assert node.target_values(1.0) == {CHILDREN.name: 16}


def test_children_of_the_run_before_stay_until_the_cpus_are_known() -> None:
    node = RetunedNode("web1", TIMING, load())
    held = msgspec.structs.replace(CHILDREN, value=16, order="o1", by="retune")
    node.see_knobs(Knobs(1, "web1", "web", 0.0, "kind", [held]), 0.0, lambda _: -math.inf)
    assert node.target_values(0.0) == {CHILDREN.name: 16}


@settings(deadline=None)
@given(st.floats(0.01, 100.0), st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000), st.floats(0.0, 1.0))
def test_a_value_is_always_one_that_the_node_takes(
    factor: float, own: int, limit: int, other_limit: int, severity: float
) -> None:
    lowest, highest = sorted((limit, other_limit))
    value = value_for(Rule([0.2], factor=[factor]), KnobState("k", own, own, lowest, highest), severity)
    assert value is None or (lowest <= int(value) <= highest and value != own and severity >= 0.2)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('["k"]\nseverity = [0.2]\n', "expected `severity` and either `factor` or `value`"),
        ('["k"]\nseverity = [0.2, 0.4]\nfactor = [2.0]\n', "of the same length"),
        ('["k"]\nseverity = [0.4, 0.2]\nfactor = [2.0, 3.0]\n', "`severity` must rise"),
        ('["k"]\nseverity = [0.2]\nfactor = [0.0]\n', "a `factor` must be more than 0"),
        ('["k"]\nseverity = [0.2]\nfactors = [2.0]\n', "factors"),
        ("k", "not TOML"),
    ],
)
def test_a_knowledge_base_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(KnowledgeError, match=str(file)) as refused:
        load(str(file))
    assert match in str(refused.value)


def test_every_row_of_the_shipped_file_is_explained_in_it() -> None:
    assert all(word in SHIPPED.read_text() for word in ("severity", "factor", "value", "ICE"))


def test_the_shipped_knowledge_has_a_row_for_each_knob_but_one_that_documents_why_not() -> None:
    table = (ROOT / "wsengine/src/knobs/mod.rs").read_text()
    knobs = set(re.findall(r'(?:KnobKind \{\s*name: |kind!\()"([a-z_.]+)"', table))
    assert len(knobs) > 7, "the table is read"
    without = knobs - load().keys()
    governors = {"batch.cores", "batch.running", "cpu.core_frequency", "cpu.policy", "cpu.quota", "cpu.uclamp_min"}
    assert without == {"apache.keepalive", *governors}
    page = (ROOT / "docs/how-it-works/second-stage.md").read_text()
    assert "`apache.keepalive` has no row" in page
    assert all(f"`{knob}`" in page for knob in without)
    assert knobs == set(get_args(Knob)), "a site can have each of them left alone"


# --- CPU starvation


def sample(used: float, waiting_s: float, cores: float = 1.0, steal: float = 0.0) -> Sample:
    return Sample(
        1, "web1", "web", 0.0, "b", 0, 0.2, None, Cpu("system", used, steal, cores), Sched(run_delay_s_per_s=waiting_s)
    )


def after(*samples: Sample) -> CpuStarvation:
    starvation = CpuStarvation()
    for look in samples:
        starvation.see(look)
    return starvation


def test_waiting_for_a_cpu_that_is_not_full_is_starvation_and_for_a_full_one_is_not() -> None:
    """The lab's numbers: 0.4 core, calm and full, and beside a neighbour."""
    assert not after(*[sample(1.0, 3.5, 0.4)] * 30).starved
    assert not after(*[sample(0.35, 0.15, 0.4)] * 30).starved
    starvation = after(*[sample(0.42, 4.3, 0.4)] * 30)
    assert starvation.starved
    assert starvation.severity == pytest.approx(0.58)


def test_stolen_time_is_what_somebody_else_took() -> None:
    starvation = after(*[sample(1.0, 8.0, steal=0.6)] * 30)
    assert starvation.starved
    assert starvation.severity == pytest.approx(0.6)


def test_one_odd_sample_is_no_starvation_and_absence_changes_nothing() -> None:
    starvation = after(*[sample(1.0, 3.0)] * 30, sample(0.1, 20.0))
    assert not starvation.starved
    before = starvation.used
    starvation.see(Sample(1, "web1", "web", 0.0, "b", 1, 0.2, absent={"cpu": "no", "sched": "no"}))
    assert starvation.used == before


@settings(deadline=None)
@given(st.floats(FULL + 0.001, 2.0), st.floats(0.0, 1000.0))
def test_a_full_node_is_never_starved(used: float, waiting: float) -> None:
    assert not is_starved(used, stretch_of(used, waiting), 1.0, FULL)


# --- the stage


def play(stage: Stage, until_s: float, affected: Affected | None, room: bool = True, from_s: float = 0.0) -> float:
    """Turns each half second; when it entered or left, or -1."""
    at_s = from_s
    while at_s <= until_s:
        if stage.step(at_s, affected, room):
            return at_s
        at_s += 0.5
    return -1.0


LOUD = Affected(0.6, "run delay")


def test_an_episode_enters_when_it_lasts_and_at_once_when_there_is_no_room() -> None:
    assert play(Stage(TIMING), 100.0, LOUD) == 30.0
    stage = Stage(TIMING)
    assert play(stage, 100.0, LOUD, room=False) == 5.0
    assert stage.why == "run delay, and the rest of the pool has no room"


def test_a_restarted_controller_counts_from_the_episodes_beginning() -> None:
    assert play(Stage(TIMING), 100.0, Affected(0.6, "x", since_s=-25.0)) == 5.0


def test_a_flicker_of_calm_begins_the_count_anew_but_does_not_end_the_stage() -> None:
    stage = Stage(TIMING)
    assert play(stage, 29.0, LOUD) == -1.0
    stage.step(29.5, None, True)
    assert play(stage, 100.0, LOUD, from_s=30.0) == 60.0
    assert play(stage, 69.0, None, from_s=60.5) == -1.0
    assert stage.entered
    stage.step(69.5, LOUD, True)
    assert play(stage, 79.0, None, from_s=70.0) == -1.0
    assert play(stage, 90.0, None, from_s=79.5) == 80.0
    assert not stage.entered


def test_severity_rises_within_an_episode_and_never_falls() -> None:
    stage = Stage(TIMING)
    play(stage, 30.0, LOUD)
    stage.step(31.0, Affected(0.8, "x"), True)
    stage.step(32.0, Affected(0.3, "x"), True)
    assert stage.severity == 0.8


def test_who_comes_back_soon_must_look_well_for_longer() -> None:
    stage = Stage(TIMING)
    play(stage, 30.0, LOUD)
    assert play(stage, 100.0, None, from_s=31.0) == 41.0
    assert play(stage, 100.0, LOUD, from_s=42.0) == 72.0
    assert play(stage, 200.0, None, from_s=73.0) == 93.0


def test_a_node_that_still_looks_affected_gets_its_own_values_back_for_a_recheck() -> None:
    """Its new values may make requests as dear as a neighbour does, so its signs prove nothing for ever."""
    stage = Stage(TIMING)
    lasting = Affected(0.6, "run delay", since_s=0.0)
    assert play(stage, 100.0, lasting) == 30.0
    assert play(stage, 1000.0, lasting, from_s=30.5) == 30.0 + RECHECK_AFTER_S
    assert stage.on_recheck
    assert play(stage, 1000.0, None, from_s=151.0) == -1.0, "the neighbour has gone"
    assert not stage.on_recheck
    stage = Stage(TIMING)
    play(stage, 30.0, lasting)
    left_s = play(stage, 1000.0, lasting, from_s=30.5)
    entered_s = play(stage, 1000.0, lasting, from_s=left_s + 0.5)
    assert entered_s == left_s + RECHECK_S + TIMING.long_after_s, "it is still there: counted from its own values on"
    assert not stage.on_recheck
    assert play(stage, 1000.0, lasting, from_s=entered_s + 0.5) == entered_s + 2 * RECHECK_AFTER_S


def test_a_search_tries_values_itself() -> None:
    stage = Stage(msgspec.structs.replace(TIMING, policy="search"))
    play(stage, 30.0, LOUD)
    assert play(stage, 1000.0, LOUD, from_s=30.5) == -1.0


def test_room_is_what_the_servers_that_are_well_can_carry() -> None:
    assert has_room(400.0, [300.0, 300.0], 0.8)
    assert not has_room(500.0, [300.0, 300.0], 0.8)
    assert not has_room(1.0, [], 0.8)
    assert has_room(None, [300.0], 0.8)
    assert has_room(500.0, [300.0, None], 0.8)


# --- memory


def test_what_was_good_is_remembered_by_kind_and_severity_over_a_restart(tmp_path: Path) -> None:
    BestValues(tmp_path).put("small", 0.55, {"php_fpm.max_children": 12})
    best = BestValues(tmp_path)
    assert best.get("small", 0.41) == {"php_fpm.max_children": 12}
    assert best.get("small", 0.61) is None
    assert best.get("large", 0.55) is None
    (tmp_path / "retune.json").write_text("{")
    assert BestValues(tmp_path).get("small", 0.41) is None
    assert [band(severity) for severity in (0.0, 0.2, 0.599, 0.6, 1.0)] == [
        "0.0-0.2",
        "0.2-0.4",
        "0.4-0.6",
        "0.6-0.8",
        "0.8-1.0",
    ]


# --- settings


def test_to_act_a_key_is_needed() -> None:
    pool = '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n'
    assert parse(pool, "c.toml").retune.mode == "off"
    with pytest.raises(ConfigError, match="`order_key` is missing"):
        parse(pool + '[retune]\nmode = "act"\n', "c.toml")
    assert parse(pool + '[retune]\nmode = "act"\norder_key = "/k"\n', "c.toml").retune.mode == "act"
