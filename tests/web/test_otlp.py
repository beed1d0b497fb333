"""OpenTelemetry: metrics and episodes at a collector of the test's own, and a controller whose collector is silent."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.core import state_dir
from slackwater.core.config import ControllerSettings, OtlpSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, ResponseTimes, Sample, Traffic, Verdict
from slackwater.core.otlp_collector import Collector, OtlpError, headers_in
from slackwater.web import create_app
from slackwater.web.otlp import sender
from slackwater.web.otlp.convert import MOST_CHANGES
from slackwater.web.otlp.sender import Sender
from slackwater.web.reader import JournalReader
from tests.support.otlp_receiver import Receiver, receiver
from tests.support.paths import ROOT
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.real_processes import free_address
from tests.support.served_site import Site, until
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, Clock, story

END = T0 + 5.0


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def settings(folder: Path, url: str, headers_file: str = "") -> ControllerSettings:
    otlp = OtlpSettings(endpoint=url, headers_file=headers_file, timeout_s=2.0)
    return ControllerSettings(pool=settings_in(folder).pool, state_dir=str(folder), otlp=otlp)


def sending(folder: Path, url: str, clock: Clock, headers_file: str = "") -> Sender:
    ours = settings(folder, url, headers_file)
    return Sender(JournalReader(ours, clock), Collector.of(ours.otlp))


def calm(node: str, since_unix_s: float) -> Verdict:
    return Verdict(1, node, "web", since_unix_s, "calm", since_unix_s, 0.0, ["quiet"], "start")


def record(folder: Path, *more: Change | Verdict) -> None:
    with Journal.open(journal_path(folder)) as journal:
        journal.record(*story(), *more)


def text(span: object, key: str) -> str:
    attributes = {attribute.key: attribute.value for attribute in span.attributes}  # type: ignore[attr-defined]
    return str(attributes[key].string_value)


# --- metrics


def test_the_collector_gets_the_metrics_of_the_page(tmp_path: Path, collector: Receiver) -> None:
    clock = Clock()
    record(tmp_path)
    sending(tmp_path, collector.url, clock).send_metrics()
    page = create_app(settings_in(tmp_path), clock=clock).test_client().get("/metrics").text
    shown = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("slackwater_")
    }
    assert len(shown) > 20
    assert collector.values() == shown
    (resource,) = collector.metrics[-1].resource_metrics
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert named["service.name"] == "slackwater"
    counters = [metric for metric in resource.scope_metrics[0].metrics if metric.HasField("sum")]
    assert {metric.name for metric in counters} == {"slackwater_changes_total"}
    assert all(metric.sum.is_monotonic for metric in counters)


def test_the_collector_gets_a_histogram_of_each_servers_response_times(tmp_path: Path, collector: Receiver) -> None:
    clock = Clock()
    traffic = Traffic(times=ResponseTimes("web1", 12.5, [(15, 3), (16, 2), (240, 1)]))
    record(tmp_path)
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        journal.record(Sample(1, "web1", "web", T0, "boot", 0, 0.2, source="balancer", traffic=traffic))
    sending(tmp_path, collector.url, clock).send_metrics()
    metrics = collector.metrics[-1].resource_metrics[0].scope_metrics[0].metrics
    (metric,) = [metric for metric in metrics if metric.HasField("histogram")]
    (point,) = metric.histogram.data_points
    assert (metric.name, point.count, point.sum) == ("slackwater_server_response_seconds", 6, 12.5)
    assert list(point.bucket_counts) == [3, 2, *[0] * 13, 1]
    assert (point.explicit_bounds[0], point.explicit_bounds[-1], point.max) == (0.00025, 10.0, 12.5)
    assert {attribute.key: attribute.value.string_value for attribute in point.attributes}["server"] == "web1"


# --- episodes


def test_an_episode_is_one_trace_with_its_changes_as_spans(tmp_path: Path, collector: Receiver) -> None:
    clock = Clock()
    secret = tmp_path / "headers"
    secret.write_text("# of the collector\nAuthorization: Bearer a b\n")
    secret.chmod(0o600)
    ours = sending(tmp_path, collector.url, clock, str(secret))
    back = Change(1, "c2", "web", END + 3.0, "weight", "web1", 0, 100, "web1 is calm", "lbengine", True, cause="calm")
    record(tmp_path, calm("web1", END), back)
    clock.now_unix_s = END + 59.0
    ours.send_episodes()
    assert not collector.traces, "its last changes may still come"
    clock.now_unix_s = END + 61.0
    ours.send_episodes()
    root, lowered, raised = collector.spans()
    assert (root.name, lowered.name, raised.name) == ("episode", "change weight", "change weight")
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (round((T0 - 42) * 1e9), round(END * 1e9))
    assert not root.parent_span_id
    assert {lowered.parent_span_id, raised.parent_span_id} == {root.span_id}
    assert len({span.trace_id for span in (root, lowered, raised)}) == 1
    assert len({span.span_id for span in (root, lowered, raised)}) == 3
    assert lowered.start_time_unix_nano == lowered.end_time_unix_nano == round((T0 - 42) * 1e9)
    assert (text(root, "slackwater.node"), text(root, "slackwater.state")) == ("web1", "interference")
    assert text(lowered, "slackwater.change.why") == "interference: run delay 14x"
    assert (text(raised, "slackwater.change.cause"), text(raised, "slackwater.change.by")) == ("calm", "lbengine")
    assert collector.headers[0]["authorization"] == "Bearer a b"

    ours.send_episodes()
    clock.now_unix_s += 30.0
    sending(tmp_path, collector.url, clock).send_episodes()
    assert len(collector.traces) == 1, "nothing is sent twice, also after a restart"


def test_what_a_collector_did_not_take_is_sent_when_it_does_and_logged_once(
    tmp_path: Path, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ours = sending(tmp_path, collector.url, clock)
    record(tmp_path, calm("web1", END))
    clock.now_unix_s = END + 70.0
    collector.status = 400
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            ours.send_episodes()
            ours.send_metrics()
        collector.status = 200
        sending(tmp_path, collector.url, clock).send_episodes()
        ours.send_metrics()
    assert [span.name for span in collector.spans()] == ["episode", "change weight"]
    messages = [record.getMessage() for record in caplog.records if record.name == "slackwater.otlp"]
    assert [line for line in messages if line.startswith("episodes were not taken")] == messages[:1]
    assert [line.partition(" by ")[0] for line in messages[1:]] == ["metrics were not taken", "metrics are taken again"]


def test_more_episodes_than_go_at_once_are_sent_in_several_turns(
    tmp_path: Path, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "AT_ONCE", 3)
    clock = Clock()
    ours = sending(tmp_path, collector.url, clock)
    nodes = [f"web{number}" for number in range(10, 18)]
    began = [Verdict(1, node, "web", T0, "interference", T0, 0.5, ["steal"], "start") for node in nodes]
    ended = [calm(node, END + number // 2) for number, node in enumerate(nodes)]
    record(tmp_path, *began, *ended)
    clock.now_unix_s = END + 100.0
    for _ in range(4):
        ours.send_episodes()
    counts = [len(message.resource_spans[0].scope_spans[0].spans) for message in collector.traces]
    assert sorted(text(span, "slackwater.node") for span in collector.spans() if span.name == "episode") == nodes
    assert len(counts) > 1
    assert len({span.trace_id for span in collector.spans()}) == len(nodes)


def test_an_episode_with_very_many_changes_says_how_many_were_left_out(tmp_path: Path, collector: Receiver) -> None:
    clock = Clock()
    ours = sending(tmp_path, collector.url, clock)
    steps = [
        Change(1, f"s{number}", "web", T0 + number * 1e-3, "weight", "web1", 1, 2, "a step", "lbengine", True)
        for number in range(MOST_CHANGES + 4)
    ]
    record(tmp_path, *steps, calm("web1", END))
    clock.now_unix_s = END + 61.0
    ours.send_episodes()
    root, *changes = collector.spans()
    assert len(changes) == MOST_CHANGES
    (left_out,) = [
        attribute.value.int_value for attribute in root.attributes if attribute.key == "slackwater.changes_left_out"
    ]
    assert left_out == 5


def test_what_ended_too_long_ago_is_given_up_in_words(
    tmp_path: Path, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ours = sending(tmp_path, collector.url, clock)
    record(tmp_path, calm("web1", END))
    clock.now_unix_s = END + sender.LOOK_BACK_S + 1.0
    ours.send_episodes()
    assert not collector.traces
    assert "ended over 24 h ago were not taken" in caplog.text


# --- settings


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        ("Authorization: x", 0o644, "chmod 0640"),
        ("# all\nAuthorization", 0o600, ":2: expected NAME: VALUE"),
        ("A b: c", 0o600, ":1: expected NAME: VALUE"),
        ("Name: é", 0o600, "ASCII"),
    ],
)
def test_a_headers_file_that_cannot_be_used_is_refused_without_its_secret(
    tmp_path: Path, content: str, mode: int, expected: str
) -> None:
    file = tmp_path / "headers"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(OtlpError, match=r"otlp\.headers_file") as caught:
        headers_in(str(file))
    assert expected in str(caught.value)
    assert "Authorization" not in str(caught.value)


def test_a_headers_file_or_an_authority_that_is_not_there_is_named(tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    with pytest.raises(OtlpError, match=rf"otlp\.headers_file: {none}: "):
        Collector.of(OtlpSettings(endpoint="http://127.0.0.1:1", headers_file=none))
    with pytest.raises(OtlpError, match=rf"otlp\.tls_ca: {none}: "):
        Collector.of(OtlpSettings(endpoint="http://127.0.0.1:1", tls_ca=none))


def test_without_its_packages_the_setting_is_refused_with_the_command_that_installs_them() -> None:
    source = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from slackwater.core.config import OtlpSettings\n"
        "from slackwater.core.otlp_collector import Collector, OtlpError\n"
        "import slackwater.web.otlp.service\n"
        "try: Collector.of(OtlpSettings(endpoint='http://127.0.0.1:1'))\nexcept OtlpError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "otlp.endpoint needs opentelemetry.exporter, which is not installed:"
        " pip install '.[otlp]' in a checkout of Slackwater\n"
    )


# --- a whole controller


@needs_haproxy
def test_a_controller_works_on_while_its_collector_is_away_silent_and_back(
    tmp_path: Path, balancer: RealHAProxy
) -> None:
    site = Site(tmp_path, balancer)
    try:
        with receiver() as collector:
            collector.silent = True
            away = f"http://{free_address()}"
            site.write()
            whole = site.config.read_text()
            head = f'[otlp]\nendpoint = "{away}"\nevery_s = 1\ntimeout_s = 1\n[[pool]]'
            site.config.write_text(whole.replace("[[pool]]", head))
            site.serve()
            site.wait_for_cycles()
            until(lambda: "metrics were not taken" in site.log.read_text(), "a line about the collector that is away")
            site.replace(away, collector.url)
            assert site.cli("reload").returncode == 0
            assert collector.came.wait(60.0)
            pid = site.children()["otlp"]
            status = site.status()
            assert not status["stale"]
            collector.silent = False
            collector.over.set()
            until(lambda: collector.metrics, "metrics at the collector")
            assert ("slackwater_part_up", (("part", "lbengine"),)) in collector.values()
            assert site.children()["otlp"] == pid, "it was not ended for its silence"
            hangs = (state_dir.read_serve(site.state) or {})["hangs"]
            assert not any(hangs.values())
            assert "opentelemetry" not in site.log.read_text(), "its own lines fill the log"
    finally:
        site.clean()
