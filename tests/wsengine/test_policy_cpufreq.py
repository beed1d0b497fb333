"""`cpu.policy` on a real cpufreq (acpi-cpufreq in an emulated machine): the node's loop writes each core's clock."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import real_cpufreq
from tests.support.paths import ROOT
from tests.support.real_wsengine import PROGRAM

CC = shutil.which("cc")
pytestmark = [
    pytest.mark.slow,  # a guest takes some ten seconds
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(CC is None, reason="no C compiler"),
    pytest.mark.skipif(bool(real_cpufreq.missing()), reason=f"not here: {real_cpufreq.missing()}"),
]
CONFIG = """\
node = "guest"
state_dir = "/tmp/state"
[cpu]
core_frequency = [1000000, 3000000]
policy = ["hurry-up", "pareto"]
events_socket = "/tmp/events/socket"
processes = ["hot_thread"]
"""
STORY = """\
P=/sys/devices/system/cpu/cpufreq
HURRY_UP="hurry-up lever=cpu.core_frequency clocks=1000000,1700000,3000000 cores=2 period_ms=50"
PARETO="pareto lever=cpu.core_frequency clocks=1000000,3000000 cores=2 period_ms=100 up_delay_us=2000 fewest=2"
wsengine() { word=$1; shift; slackwater-wsengine $word --config /wsengine.toml "$@" 2>/tmp/log; }
begin() {
  rm -f /tmp/out
  wsengine try --json cpu.policy "$1" --seconds 600 >/tmp/out &
  pid=$!
  until grep -qs '"applied":' /tmp/out; do sleep 0.05; done
}
end() { kill $1 $(pidof slackwater-wsengine); wait $pid; cat /tmp/out; }
becomes() {
  until [ "$(cat $P/policy0/scaling_setspeed) $(cat $P/policy1/scaling_setspeed)" = "$2 $3" ]; do sleep 0.05; done
  echo "SEEN $1 $(cat $P/policy0/scaling_cur_freq) $(cat $P/policy1/scaling_cur_freq)"
}
show() { echo "SHOW $1 $(cat $P/policy0/scaling_governor) $(cat $P/policy1/scaling_governor)" \\
  "$(cat $P/policy0/scaling_min_freq) $(cat $P/policy1/scaling_max_freq)"; }
mkdir /tmp/events
mkfifo /tmp/lines
for p in $P/policy*; do echo schedutil > $p/scaling_governor; done
show before

wsengine try --json cpu.policy "${HURRY_UP/1000000/900000} after_ms=0"
begin "$HURRY_UP after_ms=60000"
becomes low 1000000 1000000
hot_thread /tmp/events/socket 1 </tmp/lines &
exec 8>/tmp/lines
echo "begin render" >&8
becomes mid 1000000 1800000
echo "end render" >&8
becomes left 1000000 1000000
exec 8>&-
end -TERM
show after_term

begin "$HURRY_UP after_ms=0"
hot_thread /tmp/events/socket 0 </tmp/lines &
app=$!
exec 8>/tmp/lines
echo "begin render" >&8
becomes high 2600000 1000000
kill -9 $app
becomes killed 1000000 1000000
exec 8>&-
hot_thread /tmp/events/socket 1 </tmp/lines &
exec 8>/tmp/lines
echo "begin render" >&8
becomes again 1000000 2600000
end -KILL
show left_by_the_killed
slackwater-wsengine restore --config /wsengine.toml
show after_restore
exec 8>&-

hot_thread & busy="$!"
kill -STOP $busy
begin "$PARETO"
becomes idle 1000000 1000000
kill -CONT $busy
hot_thread & busy="$busy $!"
hot_thread & busy="$busy $!"
becomes waited 2600000 2600000
kill -9 $busy
end -TERM
show after_pareto
true
"""


def test_each_cores_clock_follows_the_hot_function_and_the_wait_and_is_put_back(tmp_path: Path) -> None:
    """The firmware allows 2.6 GHz of 3; 1.7 GHz is between two states of the table."""
    assert PROGRAM is not None
    assert CC is not None
    client = tmp_path / "hot_thread"
    subprocess.run([CC, "-O1", "-Wall", "-o", client, ROOT / "tests/support/hot_thread.c"], check=True)
    programs = {"slackwater-wsengine": Path(PROGRAM), "hot_thread": client}
    log_text = real_cpufreq.boot(tmp_path, programs, {"wsengine.toml": CONFIG}, STORY, ssdt=real_cpufreq.table(limit=1))
    seen = dict(re.findall(r"^SEEN (\S+) (\d+ \d+)", log_text, re.MULTILINE))
    assert seen == {
        "low": "1000000 1000000",
        "mid": "1000000 1800000",
        "left": "1000000 1000000",
        "high": "2600000 1000000",
        "killed": "1000000 1000000",
        "again": "1000000 2600000",
        "idle": "1000000 1000000",
        "waited": "2600000 2600000",
    }
    shown = dict(re.findall(r"^SHOW (\S+) (.+?)\s*$", log_text, re.MULTILINE))
    own = shown["before"]
    assert own.startswith("schedutil schedutil ")
    assert shown["left_by_the_killed"].startswith("userspace userspace ")
    assert [shown[when] for when in ("after_term", "after_restore", "after_pareto")] == [own] * 3
    changes = [json.loads(line) for line in re.findall(r'^\{"v".*$', log_text, re.MULTILINE)]
    assert (changes[0]["applied"], changes[0]["cause"]) == (False, "refused")
    assert "`cpu.core_frequency`: 900000 is not allowed here" in changes[0]["why"]
    assert [change["applied"] for change in changes[1:]] == [True] * (len(changes) - 1)
    assert [change["after"] for change in changes if change["cause"] != "ordered"][1:] == ["off", "off"]
