"""`slackwater governor observe`: a policy beside a pool that others set."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from governor.commands import as_line, governor
from governor.observe import POLICIES, Node
from governor.power import CURVES
from slackwater.config import GovernorSettings
from slackwater.journal.journal import Journal, journal_path
from slackwater.messages import Sample, Verdict
from slackwater.messages.sample import Cpu, Frequency, Traffic
from tests.support.pool_shown import verdict

SETTINGS = GovernorSettings(clocks_mhz=[800.0, 1600.0, 2400.0])
TARGET_MS = 100.0


def sample(
    seq: int,
    *,
    rps: float | None = 50.0,
    utilisation: float | None = 0.2,
    p95_ms: float = 20.0,
    cores: float = 4.0,
    oldest_ms: float = 10.0,
    time_unix_s: float = 1e9,
) -> Sample:
    return Sample(
        v=1,
        node="web1",
        pool="web",
        time_unix_s=time_unix_s,
        boot_id="boot",
        seq=seq,
        period_s=0.2,
        cpu=Cpu("system", utilisation=utilisation, cores=cores),
        traffic=Traffic(rps=rps, rt_p95_ms=p95_ms, rt_p99_ms=p95_ms, oldest_unanswered_ms=oldest_ms),
        frequency=Frequency(mean_mhz=2380.0),
    )


def calm(node: Node, count: int = 100, first: int = 0, judged: Verdict | None = None, p95_ms: float = 20.0) -> int:
    """So many Samples; what is in force stays. Returns the number of cores at the highest clock that it would set."""
    for seq in range(first, first + count):
        advice = node.see(sample(seq, p95_ms=p95_ms), judged)
    assert advice is not None
    assert (advice.cores, advice.clock_mhz) == (4, 2400.0)
    assert advice.would_cores is not None
    return advice.would_cores


def test_it_would_use_less_where_there_is_room_and_does_not_mistake_that_for_done() -> None:
    node = Node(SETTINGS, "slackwater", TARGET_MS)
    first = node.see(sample(0), None)
    assert first is not None
    assert (first.would_cores, first.would_clock_mhz) == (4, 2400.0), "nothing is known yet"
    for seq in range(1, 300):
        advice = node.see(sample(seq), None)
    assert advice is not None
    assert advice.watts is not None
    assert advice.would_watts is not None
    assert advice.would_cores is not None
    assert advice.would_clock_mhz is not None
    assert advice.would_watts < advice.watts
    # 0.8 cores of work at 2400 MHz: were each advice believed to be in force, it would go below that.
    assert advice.would_cores * advice.would_clock_mhz > 0.8 * 2400.0
    assert advice.busy_cores == pytest.approx(0.8)
    assert "cores of work" in as_line(advice)


def test_an_old_sample_is_not_counted_twice() -> None:
    node = Node(SETTINGS, "slackwater", TARGET_MS)
    assert node.see(sample(1), None) is not None
    assert node.see(sample(1), None) is None


def test_during_interference_it_would_lower_nothing() -> None:
    judged = verdict("web1", "interference", 0.5, None)
    assert calm(Node(SETTINGS, "slackwater", TARGET_MS), judged=judged) == 4
    assert calm(Node(SETTINGS, "slackwater", TARGET_MS), judged=verdict("web1", "calm", 0.0, None)) < 4


def test_an_old_request_would_bring_all_there_is() -> None:
    node = Node(SETTINGS, "slackwater", TARGET_MS)
    assert calm(node) < 4
    advice = node.see(sample(100, oldest_ms=250.0, p95_ms=180.0), None)
    assert advice is not None
    assert (advice.would_cores, advice.would_clock_mhz) == (4, 2400.0)


@pytest.mark.parametrize("missing", [sample(0, rps=None), sample(0, utilisation=None)])
def test_what_was_not_measured_is_not_nothing(missing: Sample) -> None:
    advice = Node(SETTINGS, "slackwater", TARGET_MS).see(missing, None)
    assert advice is not None
    assert advice.would_cores is None
    assert as_line(advice).startswith("web1: unknown: ")


def test_without_clocks_only_cores_are_chosen() -> None:
    node = Node(GovernorSettings(), "slackwater", TARGET_MS)
    for seq in range(100):
        advice = node.see(sample(seq), None)
    assert advice is not None
    assert advice.would_clock_mhz is None
    assert advice.would_cores in (1, 2, 3)


@pytest.mark.parametrize(("policy", "clock_mhz"), [("linux-ondemand", 1600.0), ("linux-schedutil", 800.0)])
def test_linux_would_choose_by_what_is_in_force(policy: str, clock_mhz: float) -> None:
    node = Node(SETTINGS, policy, TARGET_MS)
    for seq in range(3):
        advice = node.see(sample(seq), None)
        assert advice is not None
        assert (advice.would_cores, advice.would_clock_mhz) == (4, clock_mhz)


def test_the_settings_name_every_curve_and_refuse_clocks_out_of_order() -> None:
    for curve in CURVES:
        assert msgspec.convert({"curve": curve}, GovernorSettings).curve == curve
    with pytest.raises(msgspec.ValidationError, match="ascending"):
        msgspec.convert({"clocks_mhz": [2.0, 1.0]}, GovernorSettings)


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    """The configuration of a controller that has just measured something."""
    config = tmp_path / "controller.toml"
    config.write_text(
        f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbalancer = "haproxy"\nbackend = "web"\n'
        f'socket = "{tmp_path}/haproxy.sock"\n[governor]\nclocks_mhz = [800, 1600, 2400]\n'
    )
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(sample(7, time_unix_s=time.time()))
    return config


def test_the_command_reads_the_journal(controller: Path) -> None:
    words = ["observe", "--config", str(controller), "--target-ms", "100", "--for", "1.5s"]
    done = CliRunner().invoke(governor, [*words, "--json"])
    assert done.exit_code == 0, done.output
    advice = json.loads(done.output.splitlines()[0])
    assert (advice["node"], advice["policy"], advice["cores"], advice["would_cores"]) == ("web1", "slackwater", 4, 4)
    assert advice["why"]


def test_without_a_target_it_says_what_to_set(controller: Path) -> None:
    done = CliRunner().invoke(governor, ["observe", "--config", str(controller)])
    assert "target_p95_ms" in str(done.exception)


def test_every_policy_can_be_named() -> None:
    for name in POLICIES:
        assert Node(SETTINGS, name, TARGET_MS).see(sample(0), None) is not None
