"""The story of an episode, as the journal has it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, ChangeCause, Resource, State, Verdict
from slackwater.views.change_lines import change_lines
from slackwater.views.reasons import of_change
from slackwater.views.why import Episode, as_text, episode_of

NOW = time.time()
OUTCOME = "p95 38.8 -> 4.9 ms (expected 5.1): 10 s after the weight went from 100 to 0"


def verdict(state: State, since_s: float, at_s: float, severity: float = 0.0, node: str = "web1") -> Verdict:
    path = ["run delay 14.2x its calm baseline", "peers calm"] if state != "calm" else []
    resource: Resource | None = ("unclear" if severity < 0.8 else "cpu") if state == "interference" else None
    return Verdict(1, node, "web", NOW + at_s, state, NOW + since_s, severity, path, "start", resource)


def change(
    what: str, before: float, after: float, at_s: float, why: str, target: str = "host1", applied: bool = True
) -> Change:
    return Change(1, f"{what}{at_s}", "web", NOW + at_s, what, target, before, after, why, "lbengine", applied)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal.open(journal_path(tmp_path))
    made.record(
        verdict("interference", -400.0, -390.0, 0.5),
        verdict("calm", -390.0, -100.0),
        verdict("interference", -100.0, -99.0, 0.7),
        verdict("interference", -100.0, -80.0, 0.82),
        verdict("overload", -100.0, -80.0, 0.1, node="web2"),
        verdict("calm", -80.0, -1.0),
        change("weight", 100, 0, -399.0, "an earlier one"),
        msgspec.structs.replace(
            change("weight", 100, 0, -99.9, "it gets no requests: the others can carry all 240 requests/s"),
            cause="interference",
            rt_p95_ms=38.8,
            rt_p95_predicted_ms=5.1,
        ),
        change("weight", 100, 50, -99.0, "of another", target="host2"),
        change("outcome", 38.8, 4.9, -89.0, OUTCOME),
        msgspec.structs.replace(change("weight", 0, 100, -79.0, "calm"), cause="calm"),
        change("weight", 100, 90, -5.0, "much later"),
    )
    return made


def story_of(journal: Journal) -> Episode:
    episode = episode_of(journal, "web", "web1", {"host1": "web1", "host2": "web2"}, NOW)
    assert episode is not None
    return episode


def test_the_last_episode_with_its_changes_and_nothing_else(journal: Journal) -> None:
    episode = story_of(journal)
    assert episode.state == "interference"
    assert episode.since_unix_s == pytest.approx(NOW - 100.0)
    assert episode.until_unix_s == pytest.approx(NOW - 80.0)
    assert episode.severity == 0.82
    assert episode.resource == "cpu", "unclear at first"
    assert [made.after for made in episode.changes] == [0, 4.9, 100]


def test_an_episode_that_goes_on_says_what_holds_it_now(journal: Journal) -> None:
    began = verdict("interference", -3.0, -3.0, 0.9)
    held = msgspec.structs.replace(
        began, time_unix_s=NOW - 0.5, path=["held: looks calm for 1.2 of 3.0 s", "before: run delay 14.2x"], shown=False
    )
    journal.record(began, held)
    episode = story_of(journal)
    assert episode.path == began.path
    assert episode.now == "held: looks calm for 1.2 of 3.0 s"
    lines = as_text(episode).splitlines()
    assert lines[1:3] == [f"  because {began.path[0]}", "  now: held: looks calm for 1.2 of 3.0 s"]


def test_the_text_shows_it_in_order_and_each_reason_in_a_sentence(journal: Journal) -> None:
    lines = as_text(story_of(journal)).splitlines()
    assert lines[0].startswith("web1 (web): interference (cpu) since ")
    assert "20.0 s; it lost at most 82% of its capacity" in lines[0]
    assert lines[1] == "  because run delay 14.2x its calm baseline", "the numbers behind it are in --json"
    done = "weight of host1: 100 → 0, by Slackwater: it gets no requests: the others can carry all 240 requests/s"
    assert f"{done}; expected p95 5.1 ms instead of 39 ms" in lines[2]
    assert lines[3].endswith(OUTCOME)
    assert lines[4].endswith("weight of host1: 0 → 100, by Slackwater: it is calm again and gets its full weight")
    assert len(lines) == 5


def test_what_costs_nothing_is_said_to_cost_nothing(journal: Journal) -> None:
    journal.record(verdict("all_slow", -3.0, -2.0))
    assert as_text(story_of(journal)).splitlines()[0].endswith("; it lost no capacity")


def test_a_server_that_fails_loses_requests_and_no_capacity(tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path)) as made:
        made.record(verdict("errors", -10.0, -1.0, 0.9))
        episode = episode_of(made, "web", "web1", {}, NOW)
    assert episode is not None
    assert as_text(episode).splitlines()[0].endswith("it goes on; up to 90% of its requests failed")


def test_an_episode_that_goes_on_has_no_end(tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path)) as made:
        made.record(verdict("interference", -10.0, -1.0, 0.5))
        made.record(change("weight", 100, 0, -9.0, "because", target="web1", applied=False))
        episode = episode_of(made, "web", "web1", {}, NOW)
    assert episode is not None
    assert episode.until_unix_s is None
    assert "it goes on" in as_text(episode)
    assert "would have been: weight of web1: 100 → 0" in as_text(episode)


def test_a_time_of_silence_ends_no_episode_that_went_on_after_it(tmp_path: Path) -> None:
    journal = Journal.open(journal_path(tmp_path))
    journal.record(verdict("interference", -60.0, -40.0), verdict("unknown", -40.0, -35.0))
    assert story_of(journal).until_unix_s == pytest.approx(NOW - 40.0), "until it is heard of again"
    journal.record(verdict("interference", -60.0, -30.0))
    assert story_of(journal).until_unix_s is None
    journal.record(verdict("calm", -20.0, -1.0))
    assert story_of(journal).until_unix_s == pytest.approx(NOW - 20.0)


def test_a_monitor_that_joins_a_slow_server_goes_on_with_its_episode(tmp_path: Path) -> None:
    journal = Journal.open(journal_path(tmp_path))
    journal.record(verdict("slow", -60.0, -40.0), verdict("interference", -40.0, -30.0), verdict("calm", -20.0, -1.0))
    episode = story_of(journal)
    assert episode.since_unix_s == pytest.approx(NOW - 60.0)
    assert episode.until_unix_s == pytest.approx(NOW - 20.0)
    assert [part.state for part in episode.parts] == ["slow", "interference"]


def test_without_an_episode_there_is_no_story(journal: Journal) -> None:
    assert episode_of(journal, "web", "web9", {}, NOW) is None


def test_the_command_shows_it_by_the_name_of_the_node_or_of_its_server(journal: Journal, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/none"\n'
        'servers = { host1 = "web1" }\n'
    )
    journal.close()

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "slackwater.controller.cli.main", "why", *arguments, "--config", str(config)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "weight of host1: 100 → 0" in run("web1")
    assert run("host1") == run("web1")
    assert json.loads(run("web1", "--json"))["severity"] == 0.82
    assert run("web9") == "web9 (web): no episode within a week\n"
    assert run("web9", "--json") == "null\n"


def test_orders_are_reported_by_what_came_of_them_and_renewals_are_counted(journal: Journal) -> None:
    def of_retune(id_: str, at_s: float, what: str, why: str, by: str, cause: ChangeCause, follows: str = "") -> Change:
        return Change(1, id_, "web", NOW + at_s, what, "web1", 4, 16, why, by, True, follows=follows, cause=cause)

    journal.record(
        of_retune("o1", -70.0, "order php_fpm.max_children", "for 60 s: run delay", "retune", "second_stage"),
        of_retune("c1", -69.0, "php_fpm.max_children", "run delay; 16 processes", "wsengine", "ordered", "o1"),
        of_retune("o2", -50.0, "order php_fpm.max_children", "for 60 s: once more: run delay", "retune", "renewed"),
        of_retune("o3", -45.0, "order cpu.frequency", "for 60 s: run delay", "retune", "second_stage"),
    )
    text = as_text(story_of(journal))
    assert "php_fpm.max_children of web1: 4 → 16, by Slackwater: run delay; 16 processes" in text
    assert text.count("php_fpm.max_children") == 1
    assert "order cpu.frequency of web1" in text, "an Order that nobody answered is told"
    assert text.endswith("Orders were renewed once")


def test_an_earlier_episode_is_found_by_its_time(journal: Journal) -> None:
    servers = {"host1": "web1", "host2": "web2"}
    episode = episode_of(journal, "web", "web1", servers, NOW, NOW - 395)
    assert episode is not None
    assert episode.since_unix_s == pytest.approx(NOW - 400)
    named = episode_of(journal, "web", "web1", servers, NOW, NOW - 430)
    assert named is not None, "it began within that minute"
    assert named.since_unix_s == episode.since_unix_s
    assert episode_of(journal, "web", "web1", servers, NOW, NOW - 200) is None


def test_what_happened_after_an_episode_is_none_of_its_changes_but_for_the_way_back(journal: Journal) -> None:
    away = msgspec.structs.replace(change("weight", 100, 13, -75.0, "down"), cause="away")
    theirs = msgspec.structs.replace(change("weight", 13, 40, -74.0, ""), cause="someone_else", by="someone else")
    pin = msgspec.structs.replace(change("pin", 0, 40, -72.0, ""), before=None, by="anna")
    journal.record(away, theirs, pin, change("pause", 0, 0, -73.0, "", target="web"))
    assert [made.after for made in story_of(journal).changes] == [0, 4.9, 100]
    resumed = msgspec.structs.replace(change("resume", 0, 0, -90.0, "", target="web"), before=None, after=None)
    journal.record(resumed)
    assert any(line.endswith("  resume, by Slackwater") for line in as_text(story_of(journal)).splitlines())


def test_what_people_said_it_was_is_told(journal: Journal) -> None:
    mark = msgspec.structs.replace(change("mark_episode", 0, 0, -10.0, "release 14", "web1"), by="anna")
    mark = msgspec.structs.replace(mark, before=None, after="deploy", since_unix_s=NOW - 100)
    journal.record(mark)
    episode = story_of(journal)
    assert episode.marked is not None
    assert episode.marked.mark == "deploy"
    assert "it was a deploy, says anna: release 14" in as_text(episode)
    assert "mark_episode" not in as_text(episode), "told once"


def test_many_trials_of_a_server_are_one_line(journal: Journal) -> None:
    """A server without a monitor is tried with a few requests every few seconds, however long its episode lasts."""
    trials = [
        msgspec.structs.replace(change("weight", before, after, at_s, "requests show it"), cause="tried")
        for number in range(30)
        for before, after, at_s in ((0, 10, number / 2 - 97.0), (10, 0, number / 2 - 96.8))
    ]
    journal.record(*trials)
    text = as_text(story_of(journal))
    (line,) = [line for line in text.splitlines() if "tried" in line]
    assert "host1 tried with a few requests, 30 times, by Slackwater: it gets a few requests now and then" in line
    assert text.index("100 → 0") < text.index(line) < text.index("0 → 100")
    newest_first = [line.what for line in change_lines(reversed([*trials, change("weight", 0, 100, -70.0, "calm")]))]
    assert newest_first == ["weight of host1: 0 → 100", "host1 tried with a few requests, 30 times"]
    assert len(change_lines(trials, each=True)) == 60


@pytest.mark.parametrize("cause", ["not_shown", "no_gain", "peer_fails"])
def test_no_neighbour_is_claimed_where_a_server_is_slow_by_itself_and_keeps_its_weight(cause: ChangeCause) -> None:
    """These causes are also those of a server without a monitor."""
    made = Change(1, "id", "web", 1.0, "weight", "web1", 0, 100, "why", "lbengine", True, cause=cause)
    assert "neighbour" not in of_change(made)
