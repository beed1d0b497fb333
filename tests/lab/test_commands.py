"""`slackwater lab` without a lab: what is missing is named, wrong options are refused."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from click.testing import CliRunner

from slackwater.core.messages import Change
from slackwater_lab.cluster import lab as labs
from slackwater_lab.cluster.applications import APPLICATIONS, MEDIAWIKI, WORDS, events_data, wiki_page
from slackwater_lab.cluster.machine import cpu_model
from slackwater_lab.cluster.paths import LabError, missing_privileges
from slackwater_lab.commands import lab as group
from slackwater_lab.experiment.measures import Figures
from slackwater_lab.stories.demo import Act, judge, worth_showing

ALL = "CapEff:\t000001ffffffffff\n"
NO_NET_ADMIN = "CapEff:\t000001ffffffefff\n"


def test_without_root_it_says_what_root_is_for() -> None:
    assert missing_privileges(1000, ALL) == ["root (for network namespaces, veth pairs, cgroups and packet capture)"]


def test_root_without_a_capability_learns_its_name() -> None:
    assert missing_privileges(0, NO_NET_ADMIN) == ["CAP_NET_ADMIN (for network namespaces and veth pairs)"]
    assert missing_privileges(0, ALL) == []


def test_a_lab_that_cannot_run_here_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs, "missing", lambda: ["root (for this)", "`ip` is not on this machine"])
    with (
        pytest.raises(LabError, match=r"cannot run here; missing: root \(for this\); `ip` is not"),
        labs.Lab(labs.LabSettings()),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"app": "shop"}, "no application `shop`"), ({"hosts": 1}, "1 hosts"), ({"mpm": "itk"}, "no MPM `itk`")],
)
def test_settings_that_make_no_lab_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(LabError, match=says):
        labs.Lab(labs.LabSettings(**settings))  # type: ignore[arg-type]


def test_every_command_has_help_with_an_example() -> None:
    for name in ("", *group.commands):
        done = CliRunner().invoke(group, [*name.split(), "--help"])
        assert done.exit_code == 0
        assert "Example: slackwater lab" in done.output, name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["record", "--out", "x", "--intensity", "0"], "0.0 is not in the range"),
        (["demo", "--balance", "first"], "'first' is not one of"),
        (["second-stage", "--hosts", "uml"], "expected `--scenario search`, or another --knob"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == 2
    assert says in done.output


def figures(p95_ms: float | None, errors: int = 0) -> Figures:
    return Figures(
        requests=100,
        errors=errors,
        errors_share=errors / 100,
        rps=10.0,
        second_means_median_ms=1.0,
        mean_ms=1.0,
        p50_ms=1.0,
        p95_ms=p95_ms,
        p99_ms=9.0,
        noisy_share=0.3,
    )


def test_the_demo_is_judged_by_half_of_the_static_p95() -> None:
    assert judge(Act("2", figures(40.0)), Act("3", figures(19.9))) is None
    assert judge(Act("2", figures(40.0)), Act("alone", figures(9.0)), Act("monitors", figures(20.0))) == (
        "p95 is 20.0 ms in the act `monitors`, not below half of 40.0 ms without Slackwater"
    )
    assert judge(Act("2", figures(None)), Act("3", figures(1.0))) is not None


def change(before: int, after: int) -> Change:
    return Change(1, f"{before}-{after}", "web", 1.0, "weight", "host1", before, after, "because", "lbengine", True)


def test_of_a_ramp_the_first_step_and_the_last_are_reported() -> None:
    last: dict[tuple[str, str], int] = {}
    steps = [change(100, 40), change(40, 0), change(0, 5), change(5, 10), change(95, 100), change(100, 0)]
    assert [worth_showing(step, last) for step in steps] == [True, False, True, False, True, True]


def test_a_fall_is_reported_also_after_an_outcome_of_the_same_server() -> None:
    """An outcome has the p95 before and after as numbers: lower ones, as of a weight that falls."""
    last: dict[tuple[str, str], int] = {}
    outcome = msgspec.structs.replace(change(0, 0), what="outcome", before=4.4, after=1.2)
    assert [worth_showing(step, last) for step in (change(0, 100), outcome, change(100, 0))] == [True, True, True]


def test_trials_with_a_few_requests_are_not_reported() -> None:
    last: dict[tuple[str, str], int] = {}
    trial = [msgspec.structs.replace(step, cause="tried") for step in (change(0, 10), change(10, 0))]
    assert [worth_showing(step, last) for step in (change(100, 0), *trial, change(0, 100))] == [
        True,
        False,
        False,
        True,
    ]


def test_the_processor_is_named() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: A Processor\nflags: x\n") == "A Processor"
    assert cpu_model("processor: 0\n") == "unknown"


def test_applications_are_laid_out_the_same_each_time() -> None:
    assert events_data() == events_data()
    assert wiki_page(3) == wiki_page(3)
    assert wiki_page(3) != wiki_page(4)
    assert wiki_page(3, MEDIAWIKI) == wiki_page(3, MEDIAWIKI)
    assert set(APPLICATIONS) == {"events", "search", "dokuwiki", "mediawiki"}


def test_every_wiki_has_the_same_words() -> None:
    def words(page: str) -> list[str]:
        return [word for word in re.findall("[A-Za-z]+", page) if word.lower() in WORDS]

    assert words(wiki_page(3, MEDIAWIKI)) == words(wiki_page(3))


def test_status_says_that_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater_lab.commands.traces", list)
    done = CliRunner().invoke(group, ["status"])
    assert (done.exit_code, done.output) == (1, "no lab on this machine\n")
    as_json = json.loads(CliRunner().invoke(group, ["status", "--json"]).output)
    assert as_json["traces"] == []
