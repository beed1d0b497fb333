"""The lab's hosts as virtual machines: a neighbour that they cannot see is found, and its server relieved."""

from __future__ import annotations

import pytest

from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.guest import missing as missing_for_guests
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.machines import VirtualMachine
from slackwater_lab.experiment.steady import VM_LOAD, capacity_rps
from tests.support.lab_stage import MITIGATED_WITHIN_S, Stage
from tests.support.real_lab import eventually, needs_lab

LACKS = missing_for_guests()
pytestmark = [
    pytest.mark.lab,
    needs_lab,
    pytest.mark.skipif(bool(LACKS), reason=f"no virtual machines here: {', '.join(LACKS)} (run `make setup`)"),
    pytest.mark.usefixtures("nothing_before_and_after"),
    pytest.mark.timeout(900),
]
CLOCK_WITHIN_S = 0.25
"""Far more than the clock is off on a quiet machine; Samples that are dated so far apart still belong together."""


@pytest.mark.slow
def test_a_neighbour_of_a_virtual_machine_is_found_and_its_server_relieved_until_it_leaves() -> None:
    with Lab(LabSettings(quota_cores=0.45, kind="vm")) as lab:
        for machine in lab.machines.values():
            assert isinstance(machine, VirtualMachine)
            assert abs(machine.clock_offset_s()) < CLOCK_WITHIN_S
            assert "cloud" in machine.guest.ok("uname -r"), "a kernel of its own"
        stage = Stage(lab, VM_LOAD * capacity_rps(lab))
        stage.load.start()
        try:
            stage.controller.start()
            with stage.neighbour():
                eventually("the journal has the Verdict", lambda: stage.state() == "interference", MITIGATED_WITHIN_S)
            stage.back()
        finally:
            stage.load.stop()
        assert stage.load.failed == []
        assert stage.controller.journal is not None
        (sample,) = (
            sample for node, sample in stage.controller.journal.latest_samples(POOL).items() if node == stage.name
        )
        assert sample.cpu is not None
        assert sample.cpu.scope == "system", "the monitor measures the machine that it is in"
