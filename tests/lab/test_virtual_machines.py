"""The lab's hosts as virtual machines: a neighbour that they cannot see is found, and its server relieved."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater_lab.cluster import uml
from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.machines import VirtualMachine
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.experiment.steady import capacity_rps
from tests.support.lab_stage import MITIGATED_WITHIN_S, Stage
from tests.support.real_lab import eventually, needs_lab

pytestmark = [
    pytest.mark.lab,
    needs_lab,
    pytest.mark.usefixtures("nothing_before_and_after"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(uml.missing()), reason=f"missing: {', '.join(uml.missing())}"),
]
LOAD = 0.6
CLOCK_WITHIN_S = 0.25
"""Far more than the clock is off on a quiet machine; Samples that are dated so far apart still belong together."""


def test_a_neighbour_of_a_virtual_machine_is_found_and_its_server_relieved_until_it_leaves() -> None:
    with Lab(LabSettings(quota_cores=0.45, kind="uml")) as lab:
        for machine in lab.machines.values():
            assert isinstance(machine, VirtualMachine)
            assert abs(machine.clock_offset_s()) < CLOCK_WITHIN_S
            assert "7." in machine.guest.ok("uname -r"), "a kernel of its own"
        stage = Stage(lab, LOAD * capacity_rps(lab))
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


def test_a_guest_that_cannot_start_is_told_with_its_last_words_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    init = tmp_path / "init"
    init.write_text("#!/bin/sh\nexit 7\n")
    init.chmod(0o755)
    monkeypatch.setattr(uml, "UML_INIT", init)
    with pytest.raises(LabError, match="Attempted to kill init! exitcode=0x00000700"), Lab(LabSettings(kind="uml")):
        pass


def test_what_is_no_neighbour_happens_to_virtual_machines_too() -> None:
    with Lab(LabSettings(hosts=2, quota_cores=0.45, kind="uml")) as lab:
        site = DisturbableCluster(lab)
        site.cpu_s = 0.002
        host = lab.noisy
        machine = lab.machines[host.name]
        assert isinstance(machine, VirtualMachine)
        with DISTURBERS["deploy"](site, host, 0.0):
            assert "sha256" in machine.guest.ok(f"cat {host.folder}/prelude.php")
            assert site.serves(host)
        with DISTURBERS["own_backup"](site, host, 0.0):
            assert next(running for running in lab.programs if running.name == f"backup of {host.name}").running
        with DISTURBERS["clock_step"](site, host, 20.0):
            assert machine.clock_offset_s() == pytest.approx(20.0, abs=CLOCK_WITHIN_S)
        assert abs(machine.clock_offset_s()) < CLOCK_WITHIN_S
        with DISTURBERS["start"](site, host, 0.0):
            assert site.serves(host)
