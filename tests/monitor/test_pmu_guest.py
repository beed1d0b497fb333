"""Hardware counters of the real monitor on an emulated machine that has a PMU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pmu_guest import Guest, NoGuest, boot, part, prepare, printed_json, published

# Booting takes half a minute on two busy cores, cross-building the monitor some minutes once.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = """
cat > node.toml <<END
node = "g"
period_s = 1.0
[cpu]
cgroup = "web"
[processes]
names = ["load"]
[pmu]
scopes = [SCOPES]
events = { EVENTS }
[sniffer]
interface = ""
[canary]
enabled = false
END
"""


@pytest.fixture(scope="session")
def guest() -> Guest:
    try:
        return prepare()
    except NoGuest as reason:
        pytest.skip(str(reason))


def settings(*scopes: str, events: str = "") -> str:
    return SETTINGS.replace("SCOPES", ", ".join(f'"{scope}"' for scope in scopes)).replace("EVENTS", events)


SAMPLE = "slackwater-monitor once --json --config node.toml"
# A shell that runs what it reads within the cgroup.
# Version 2 counts cgroups apart once a controller was enabled above them, as init systems do.
CGROUP = "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/web\n"
WITHIN = "sh -c 'echo 0 > /sys/fs/cgroup/web/cgroup.procs; exec "


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_cycles_per_instruction_are_the_machines(guest: Guest, tmp_path: Path, shift: int) -> None:
    story = (
        # The hardware has seven counters: three events for each of two scopes fit at once.
        settings("system", "cgroup", events='cache_misses = "r3ff", stalled_cycles = ""')
        + CGROUP
        + f"{WITHIN} load spin' & SPIN=$!\n"
        + "echo '=== counters'; slackwater-monitor counters --json --config node.toml\n"
        + f"echo '=== sample'; {SAMPLE}\n"
        + "kill $SPIN; wait $SPIN\n"
        + f'{WITHIN} sh -c "sleep 0.3; exec load loop 20"\' &\n'
        + f"echo '=== loop'; {SAMPLE}\n"
        + "wait\n"
        + settings("pid")
        + f"load spin & SPIN=$!\n echo '=== pid'; {SAMPLE}\nkill $SPIN\n"
    )
    text = boot(guest, story, tmp_path, shift=shift)

    rows = {(row["scope"], row["event"]): row for row in printed_json(text, "counters")}
    for scope in ("system", "cgroup"):
        for event in ("cycles", "instructions"):
            row = rows[scope, event]
            assert (row["counting"], row["running"], row["targets"]) == (True, 1.0, 1), row
        # Not implemented, so the kernel opens it and it never counts.
        row = rows[scope, "cache_misses"]
        assert (row["encodable"], row["openable"], row["counting"]) == (True, True, False), row
        assert "opens but has counted nothing" in row["reason"]
        row = rows[scope, "llc_load_misses"]
        assert (row["encodable"], row["openable"]) == (True, False), row
        assert "does not offer it" in row["reason"]

    cycles_per_instruction = float(2**shift)
    sample = printed_json(text, "sample")
    scopes = {section["scope"]: section for section in sample["pmu"]}
    cgroup = scopes["cgroup"]
    # A cycle of the emulated machine takes a nanosecond.
    assert cgroup["cpi"] == pytest.approx(cycles_per_instruction, rel=0.005)
    assert cgroup["ipc"] == pytest.approx(1 / cycles_per_instruction, rel=0.005)
    assert cgroup["frequency_mhz"] == pytest.approx(1000, rel=0.01)
    assert cgroup["running"] == 1.0
    assert scopes["system"]["cpi"] == pytest.approx(cycles_per_instruction, rel=0.02)
    assert scopes["system"]["instructions_per_s"] == pytest.approx(1e9 / cycles_per_instruction, rel=0.05)
    assert sample["counters"] == {
        "source": "pmu",
        "cpi": cgroup["cpi"],
        "instructions_per_s": cgroup["instructions_per_s"],
    }
    assert "opens but has counted nothing" in sample["absent"]["pmu.cgroup.cache_mpki"]
    assert "does not offer it" in sample["absent"]["pmu.cgroup.llc_load_mpki"]
    assert sample["absent"]["counters.cache_miss_rate"] == sample["absent"]["pmu.cgroup.cache_miss_rate"]

    looped = printed_json(text, "loop")
    (cgroup,) = (section for section in looped["pmu"] if section["scope"] == "cgroup")
    # 20 million turns of two instructions, and starting the program.
    instructions = cgroup["instructions_per_s"] * looped["period_s"]
    assert 40_000_000 <= instructions < 44_000_000

    (pid,) = printed_json(text, "pid")["pmu"]
    assert (pid["scope"], pid["running"]) == ("pid", 1.0)
    assert pid["cpi"] == pytest.approx(cycles_per_instruction, rel=0.005)


# Bounded: an emulated machine that is slow may take a minute for some periods.
AWAIT = """
turns=0
while [ "$(wc -l < bus.txt)" -lt COUNT ] && [ $turns -lt 100 ]; do sleep 1; turns=$((turns + 1)); done
"""


def test_run_publishes_a_cpi_in_each_period_and_keeps_only_what_counting_needs(guest: Guest, tmp_path: Path) -> None:
    configured = settings("system", "cgroup").replace('node = "g"', 'node = "g"\n[bus]\nurl = "nats://127.0.0.1:4222"')
    # Keys of the top level stand before the first section.
    configured = configured.replace("period_s = 1.0\n", "").replace('node = "g"', 'node = "g"\nperiod_s = 1.0')
    story = (
        configured
        + CGROUP
        + ": > bus.txt; load bus 4222 >> bus.txt & BUS=$!\n"
        + f"{WITHIN} load spin' & SPIN=$!\n"
        + "slackwater-monitor run --config node.toml 2> said.txt & RUN=$!\n"
        + AWAIT.replace("COUNT", "4")
        + "echo '=== status'; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/$RUN/status\n"
        + "echo '=== page'; wget -q -O - http://127.0.0.1:9465/metrics\n"
        + "kill $RUN; wait $RUN; echo '=== ended'; echo $?; kill $SPIN $BUS\n"
        + "echo '=== said'; cat said.txt\n"
        + "echo '=== samples'; cat bus.txt\n"
    )
    text = boot(guest, story, tmp_path, shift=1)

    samples = published(part(text, "samples"))
    assert len(samples) >= 4, text
    assert [sample.seq for sample in samples] == list(range(samples[0].seq, samples[0].seq + len(samples)))
    for sample in samples[1:]:
        (cgroup,) = (section for section in sample.pmu if section.scope == "cgroup")
        assert cgroup.cpi == pytest.approx(2.0, rel=0.005), sample
        assert sample.counters is not None
        assert (sample.counters.source, sample.counters.cpi) == ("pmu", cgroup.cpi)
        assert sample.node == "g"
    # CAP_PERFMON alone: there is no capture.
    assert f"CapEff:\t{1 << 38:016x}" in part(text, "status")
    assert "NoNewPrivs:\t1" in part(text, "status")
    assert "slackwater_cycles_per_instruction 2.0" in part(text, "page")
    assert "capabilities CAP_PERFMON, " in part(text, "said")
    assert part(text, "ended").strip().startswith("0")


def test_run_captures_and_counts_under_its_filter_of_system_calls(guest: Guest, tmp_path: Path) -> None:
    """arm64 has no open, poll, epoll_wait or select; what the filter refuses shows as an error of a part."""
    configured = settings("system").replace('interface = ""', 'interface = "lo"\nports = [8080]')
    page = "wget -q -O page http://127.0.0.1:9465/metrics"
    story = (
        configured
        + "load serve 8080 10 & SERVE=$!\n(until load ask 8080 20; do sleep 0.1; done) 2> /dev/null & ASK=$!\n"
        + "slackwater-monitor run --config node.toml 2> said.txt & RUN=$!\n"
        # Bounded: an emulated machine that is slow may take a minute for some periods.
        + f"turns=0; until {page} 2> /dev/null && grep -q '^slackwater_requests_total [1-9]' page; do\n"
        + "[ $turns -gt 100 ] && break; sleep 1; turns=$((turns + 1)); done\n"
        + "echo '=== status'; grep -E 'CapEff|Seccomp:' /proc/$RUN/status\n"
        + "echo '=== page'; cat page\nkill $RUN; wait $RUN; echo '=== ended'; echo $?; kill $SERVE $ASK\n"
        + "echo '=== said'; cat said.txt\n"
    )
    text = boot(guest, story, tmp_path)
    assert "Seccomp:\t2" in part(text, "status")
    assert f"CapEff:\t{1 << 38 | 1 << 13:016x}" in part(text, "status"), "for counting and capturing"
    assert float(re.findall(r"(?m)^slackwater_requests_total (\S+)", part(text, "page"))[0]) > 0, text
    assert "slackwater_cycles_per_instruction" in part(text, "page")
    assert "not permitted" not in part(text, "said")
    assert part(text, "ended").strip().startswith("0")


def test_several_cpus_hotplug_and_counters_that_others_hold(guest: Guest, tmp_path: Path) -> None:
    offline = "/sys/devices/system/cpu/cpu1/online"
    story = (
        settings("system")
        + "load spin & ONE=$!\nload spin & TWO=$!\n"
        + f"echo '=== two'; {SAMPLE}\n"
        + "load hog 2 40 & HOG=$!\nsleep 0.5\n"
        + f"echo '=== shared'; {SAMPLE}\n"
        + "kill $HOG; wait $HOG\n"
        + f"(sleep 0.5; echo 0 > {offline}) &\n"
        + f"echo '=== leaving'; {SAMPLE}\n"
        + "echo '=== left'; slackwater-monitor counters --json --config node.toml\n"
        + f"echo 1 > {offline}\n"
        + "echo '=== back'; slackwater-monitor counters --json --config node.toml\n"
    )
    text = boot(guest, story, tmp_path, shift=1, cpus=2)

    def system(name: str) -> dict[str, float]:
        (section,) = printed_json(text, name)["pmu"]
        assert section["scope"] == "system"
        return dict(section)

    both, shared, leaving = system("two"), system("shared"), system("leaving")
    assert both["running"] == 1.0
    assert "hogging" in part(text, "two") + part(text, "shared")
    # The counts are of part of the time and are scaled to the whole of it.
    assert 0.02 < shared["running"] < 0.6
    assert shared["cpi"] == pytest.approx(both["cpi"], rel=0.05)
    assert shared["instructions_per_s"] == pytest.approx(both["instructions_per_s"], rel=0.1)
    assert leaving["cpi"] > 0
    for name, cpus in (("left", 1), ("back", 2)):
        rows = {row["event"]: row for row in printed_json(text, name)}
        assert (rows["cycles"]["counting"], rows["cycles"]["targets"]) == (True, cpus), rows["cycles"]
