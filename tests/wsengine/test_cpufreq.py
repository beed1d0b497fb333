"""The clocks of cores on a real cpufreq (acpi-cpufreq in an emulated machine), with its failure modes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import real_cpufreq
from tests.support.real_wsengine import PROGRAM

pytestmark = [
    pytest.mark.slow,  # each guest takes some ten seconds
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(bool(real_cpufreq.missing()), reason=f"not here: {real_cpufreq.missing()}"),
]
CONFIG = """\
node = "guest"
state_dir = "/tmp/state"
[cpu]
frequency = ["performance", "powersave", "userspace", "conservative", "nosuch", 1, 9000000]
"""
HELP = """\
P=/sys/devices/system/cpu/cpufreq
KNOB=cpu.frequency
try() { slackwater-wsengine try --config /wsengine.toml --json $KNOB "$@" 2>/dev/null; }
show() { for p in $P/policy*; do echo "SHOW $1 ${p##*/} $(cat $p/scaling_governor) $(cat $p/scaling_min_freq)" \\
  "$(cat $p/scaling_max_freq) $(cat $p/scaling_cur_freq)"; done; }
while_held() {
  rm -f /tmp/out
  slackwater-wsengine try --config /wsengine.toml --json $KNOB "$1" --seconds 600 > /tmp/out 2>/dev/null &
  pid=$!
  until grep -qs '"applied":' /tmp/out; do sleep 0.05; done
  show "$2"; eval "$3"; kill $4 $pid; wait $pid; cat /tmp/out
}
"""


def run(tmp_path: Path, story: str, **how: Any) -> tuple[list[dict[str, Any]], dict[str, list[str]], str]:
    """The Changes, what each `show` printed (policy, governor, min, max and current kHz), and all that was said."""
    assert PROGRAM is not None
    programs = {"slackwater-wsengine": Path(PROGRAM)}
    log_text = real_cpufreq.boot(tmp_path, programs, {"wsengine.toml": CONFIG}, HELP + story + "\ntrue\n", **how)
    shown: dict[str, list[str]] = {}
    for name, values in re.findall(r"^SHOW (\S+) (.*)$", log_text, re.MULTILINE):
        shown.setdefault(name, []).append(values)
    return [json.loads(line) for line in re.findall(r'^\{"v".*$', log_text, re.MULTILINE)], shown, log_text


def both(values: str) -> list[str]:
    return [f"policy0 {values}", f"policy1 {values}"]


CALM = both("schedutil 1000000 3000000 3000000")


def test_governors_and_frequencies_are_set_seen_and_put_back(tmp_path: Path) -> None:
    """Also rounding, clamping, and a request that the kernel would keep."""
    story = """
    for p in $P/policy*; do echo schedutil > $p/scaling_governor; done
    slackwater-wsengine check --config /wsengine.toml
    while_held performance performance "" -TERM
    while_held powersave powersave "" -TERM
    while_held 1800000 exact "" -TERM
    while_held 1800001 rounded "" -TERM
    while_held 9000000 highest "" -TERM
    while_held 1 lowest "" -TERM
    for p in $P/policy*; do echo 2200000 > $p/scaling_max_freq; done
    while_held 2600000 above_the_sites_maximum "" -TERM
    show kept
    for p in $P/policy*; do echo 3000000 > $p/scaling_max_freq; done
    show released
    """
    changes, shown, log_text = run(tmp_path, story)
    assert "fine  cpu.frequency: schedutil (policy0: governor schedutil, 1000000 to 3000000 kHz; policy1: " in log_text
    assert shown["performance"] == both("performance 1000000 3000000 3000000")
    assert shown["powersave"] == both("powersave 1000000 3000000 1000000")
    assert shown["exact"] == both("userspace 1000000 3000000 1800000")
    assert shown["rounded"] == both("userspace 1000000 3000000 2200000")
    assert shown["highest"] == both("userspace 1000000 3000000 3000000")
    assert shown["lowest"] == both("userspace 1000000 3000000 1000000")
    applied, back = changes[0::2], changes[1::2]
    assert [change["after"] for change in applied] == [
        *("performance", "powersave", 1800000, 2200000, 3000000, 1000000, 2600000)
    ]
    assert all(change["applied"] for change in changes)
    assert all(change["before"] == "schedutil" for change in applied)
    assert all(change["after"] == "schedutil" for change in back)
    assert "(asked for 1800001); 2200000 kHz is the next in the table" in applied[3]["why"]
    assert "running at 2200000 kHz" in applied[3]["why"]
    assert "3000000 kHz is the highest possible" in applied[4]["why"]
    assert shown["above_the_sites_maximum"] == both("userspace 1000000 2600000 2600000")
    assert [line.split()[1:4] for line in shown["kept"]] == [["schedutil", "1000000", "2200000"]] * 2
    assert [line.split()[1:4] for line in shown["released"]] == [["schedutil", "1000000", "3000000"]] * 2


def test_the_restore_command_mends_what_a_killed_engine_left_and_keeps_what_the_operator_set(tmp_path: Path) -> None:
    story = """
    for p in $P/policy*; do echo schedutil > $p/scaling_governor; done
    while_held performance held "echo conservative > $P/policy1/scaling_governor" -KILL
    slackwater-wsengine status --config /wsengine.toml
    slackwater-wsengine restore --config /wsengine.toml
    show after
    """
    _, shown, log_text = run(tmp_path, story)
    assert shown["held"] == both("performance 1000000 3000000 3000000")
    assert "cpu.frequency schedutil -> performance" in log_text
    assert "put back: cpu.frequency" in log_text
    assert "left alone: policy1: governor conservative is somebody else's" in log_text
    assert [line.split()[1] for line in shown["after"]] == ["schedutil", "conservative"]


def test_each_core_gets_a_frequency_of_its_own_and_a_killed_engines_are_put_back(tmp_path: Path) -> None:
    story = """
    for p in $P/policy*; do echo schedutil > $p/scaling_governor; done
    sed -i 's/^frequency = .*/core_frequency = [1, 9000000]/' /wsengine.toml
    KNOB=cpu.core_frequency
    while_held 1000000,9000000 own "" -TERM
    while_held 2600000,1800000 killed "" -KILL
    slackwater-wsengine restore --config /wsengine.toml
    show after
    """
    changes, shown, _ = run(tmp_path, story)
    assert shown["own"] == ["policy0 userspace 1000000 3000000 1000000", "policy1 userspace 1000000 3000000 3000000"]
    assert (changes[0]["before"], changes[0]["after"]) == ("3000000,3000000", "1000000,3000000")
    assert shown["killed"] == ["policy0 userspace 1000000 3000000 2600000", "policy1 userspace 1000000 3000000 1800000"]
    assert [line.split()[1:4] for line in shown["after"]] == [["schedutil", "1000000", "3000000"]] * 2


def test_a_write_that_the_machine_takes_and_does_not_follow_is_refused_and_undone(tmp_path: Path) -> None:
    """The state of 1800 MHz is never confirmed by its register, and acpi-cpufreq looks."""
    story = """
    for p in $P/policy*; do echo schedutil > $p/scaling_governor; done
    try 1800000
    show after
    """
    changes, shown, _ = run(tmp_path, story, line="strict", ssdt=real_cpufreq.table(broken=3))
    assert not changes[0]["applied"]
    assert re.search(r"it became governor userspace at \d+, .* not governor userspace at 1800000", changes[0]["why"])
    assert [line.split()[1:4] for line in shown["after"]] == [["schedutil", "1000000", "3000000"]] * 2


def test_the_firmwares_limit_is_reported(tmp_path: Path) -> None:
    changes, _, _ = run(tmp_path, "try 3000000 --seconds 3", ssdt=real_cpufreq.table(limit=1))
    assert (changes[0]["after"], changes[0]["applied"]) == (2600000, True), changes
    assert "2600000 kHz is" in changes[0]["why"]


def test_unknown_governors_and_a_machine_without_cpufreq_are_refused_in_words(tmp_path: Path) -> None:
    changes, _, _ = run(tmp_path, "try nosuch; try 'performance;reboot'")
    assert "driver acpi-cpufreq has the governors " in changes[0]["why"]
    assert changes[0]["why"].endswith("not `nosuch`")
    assert "has characters that no value has" in changes[1]["why"]
    changes, _, log_text = run(
        tmp_path, "try performance; slackwater-wsengine check --config /wsengine.toml", line="no_driver"
    )
    assert "this kernel has no cpufreq driver for this machine" in changes[0]["why"]
    assert "not here  cpu.frequency: " in log_text
