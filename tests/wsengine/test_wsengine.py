"""slackwater-wsengine on a real bus: whose Orders count, leases, crashes, commands. The knob is a number in a file."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.orders.signing import Signer
from tests.support.real_wsengine import PROGRAM, make_keys, wait_for
from tests.support.wsengine_scene import BY_HAND, Scene

KNOB = "streaming.num_threads"
SHORT_S = 6.0
"""A lease that ends in a test, and not before the test has done what is done under it."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_an_order_is_carried_out_recorded_and_undone_at_the_end_of_its_lease(scene: Scene) -> None:
    change = scene.controller.order(KNOB, 8, lease_s=SHORT_S)
    assert (change.before, change.after, change.applied, change.by, change.target) == (4, 8, True, "wsengine", "web1")
    assert change.why == f"a test; printed by streaming.read; for {SHORT_S:g} s, by controller"
    assert scene.text() == "threads 8;\n"
    back = scene.controller.next(lambda change: change.after == 4, 0)
    assert back.why == f"put back: the lease of {SHORT_S:g} s ended without a renewal"
    assert scene.text() == BY_HAND
    assert scene.reloads.read_text() == "xx"
    assert scene.engine.leases() == {}


def test_a_renewed_lease_goes_on_without_a_reload(scene: Scene) -> None:
    scene.controller.order(KNOB, 8, lease_s=20.0)
    order = scene.controller.make(KNOB, 8, lease_s=60.0)
    scene.controller.send(order)
    wait_for(lambda: scene.engine.leases()[KNOB]["order_id"] == order.id, "the renewal is on disk")
    assert scene.engine.leases()[KNOB]["until_unix_s"] > time.time() + 30
    assert scene.reloads.read_text() == "x"


def test_orders_that_are_wrong_are_refused_and_recorded(scene: Scene) -> None:
    controller = scene.controller
    good = controller.make(KNOB, 8)
    other = Signer.load(make_keys(scene.folder, "other")[0])
    now = time.time()
    cases = [
        (controller.make(KNOB, 8, node="web2"), "it is for web2 in pool web, this is web1 in pool web"),
        (controller.make(KNOB, 99), "99 is not allowed here; allowed is 1 to 16"),
        (controller.make(KNOB, "8; touch /tmp/x"), "has characters that no value has"),
        (controller.make(KNOB, "$(reboot)"), "has characters that no value has"),
        (controller.make(KNOB, 8, time_unix_s=now - 61.0), "it had expired when it came"),
        (controller.make(KNOB, 8, time_unix_s=now + 60.0), "is a clock wrong?"),
        (controller.make(KNOB, 8, lease_s=1e6), "its lease of 1000000 s is not within 0 and 600 s"),
        (controller.make("cpu.cores", 1), "`cpu.cores` is not configured on this node"),
        (controller.make("rm -rf", 1), 'there is no knob "rm -rf"'),
    ]
    for order, why in cases:
        since = len(controller.changes)
        controller.send(order)
        change = controller.next(lambda _: True, since, why)
        assert change.why.startswith("refused: "), change
        assert why in change.why
        assert not change.applied
    for signer, signed, why in ((other, True, "it is not signed by the controller"), (None, False, "it is not signed")):
        since = len(controller.changes)
        controller.send(good, signer=signer, signed=signed)
        change = controller.next(lambda _: True, since, why)
        assert (change.what, change.why) == ("order", f"refused: {why}")
    assert scene.text() == BY_HAND
    assert not scene.reloads.exists()


def test_an_order_that_is_replayed_is_refused_also_after_a_restart(scene: Scene) -> None:
    controller = scene.controller
    order = controller.make(KNOB, 8)
    controller.send(order)
    controller.next(lambda change: change.applied, 0)
    for restart in (False, True):
        if restart:
            assert scene.engine.end() == 0
            scene.engine.start()
        since = len(controller.changes)
        controller.send(order)
        change = controller.next(lambda change: change.why.startswith("refused"), since)
        assert change.why == f"refused: Order {order.id} was here before"
    assert scene.text() == BY_HAND


def test_an_order_signed_for_another_node_cannot_be_sent_here(scene: Scene) -> None:
    """The subject is no part of what is signed: the node's name in the Order is."""
    change = scene.controller.make(KNOB, 8, pool="api")
    scene.controller.send(change)
    refused = scene.controller.next(lambda _: True, 0)
    assert refused.why == "refused: it is for web1 in pool api, this is web1 in pool web"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_restores(scene: Scene, how: signal.Signals) -> None:
    scene.controller.order(KNOB, 8)
    assert scene.engine.end(how) == 0
    assert scene.text() == BY_HAND
    assert scene.controller.next(lambda change: change.after == 4, 0).why == "put back: wsengine ends"


def test_a_start_after_a_kill_restores(scene: Scene) -> None:
    scene.controller.order(KNOB, 8)
    scene.engine.end(signal.SIGKILL)
    assert scene.text() == "threads 8;\n"
    shown = scene.engine.command("status")
    assert "not running" in shown.stdout
    assert f"{KNOB} 4 -> 8" in shown.stdout
    scene.engine.start()
    change = scene.controller.next(lambda change: change.after == 4, 0)
    assert change.why == "put back: the last run did not end well"
    assert scene.text() == BY_HAND


def test_a_bus_that_stays_away_restores_at_the_leases_end_and_gets_the_change_later(scene: Scene) -> None:
    scene.controller.order(KNOB, 8, lease_s=SHORT_S)
    scene.nats.stop()
    wait_for(lambda: scene.text() == BY_HAND, "the file is put back")
    wait_for(lambda: list((scene.engine.state / "changes").iterdir()), "the Change waits on disk")
    scene.nats.start()
    change = scene.controller.next(lambda change: change.after == 4, 0)
    assert change.why == f"put back: the lease of {SHORT_S:g} s ended without a renewal"
    wait_for(lambda: not list((scene.engine.state / "changes").iterdir()), "no Change waits")


def test_the_operators_own_change_wins_and_it_is_reported(scene: Scene) -> None:
    scene.controller.order(KNOB, 8)
    scene.file.write_text("threads 5;\n")
    change = scene.controller.next(lambda change: "theirs holds" in change.why, 0)
    assert "threads.conf was changed by somebody else: theirs holds" in change.why
    since = len(scene.controller.changes)
    scene.controller.send(scene.controller.make(KNOB, 8))
    refused = scene.controller.next(lambda _: True, since)
    assert refused.why == "refused: somebody else changed this setting in this episode: theirs holds"
    assert scene.text() == "threads 5;\n"


def test_a_failed_test_leaves_the_file_as_it_was(scene: Scene) -> None:
    scene.engine.end()
    scene.engine.config.write_text(scene.engine.config.read_text().replace('"grep", "-q"', '"false"'))
    scene.engine.start()
    change = scene.controller.order(KNOB, 8)
    assert change.why.startswith("refused: the configuration does not pass its test")
    assert scene.text() == BY_HAND
    assert not scene.reloads.exists()


def test_the_restore_command_with_and_without_a_running_engine(scene: Scene) -> None:
    scene.controller.order(KNOB, 8)
    assert scene.engine.command("restore").stdout == f"put back: {KNOB}\n"
    assert scene.text() == BY_HAND
    scene.controller.next(lambda change: change.after == 4, 0)
    scene.controller.order(KNOB, 9)
    scene.engine.end(signal.SIGKILL)
    assert json.loads(scene.engine.command("restore", "--json").stdout) == {"restored": [KNOB]}
    assert scene.text() == BY_HAND
    assert scene.engine.command("restore").stdout == "no knob was set\n"
    assert scene.engine.leases() == {}


def test_check_says_what_each_knob_is_or_why_it_is_not_here(scene: Scene) -> None:
    done = scene.engine.command("check")
    assert done.returncode == 0
    assert f"fine  {KNOB}: 4 (printed by streaming.read)\n" in done.stdout
    scene.file.unlink()
    scene.public.chmod(0o666)
    done = scene.engine.command("check", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert "is not there" in rows[KNOB]["why"]
    assert "others than its owner may write it" in rows["orders.public_key"]["why"]


def test_a_second_engine_on_the_same_state_is_refused(scene: Scene) -> None:
    assert PROGRAM is not None
    assert scene.engine.process is not None
    done = subprocess.run([PROGRAM, "run", "--config", str(scene.engine.config)], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"process {scene.engine.process.pid} runs on this state already" in done.stderr


def test_a_state_that_cannot_be_read_is_not_guessed(scene: Scene) -> None:
    scene.engine.end()
    (scene.engine.state / "state.json").write_text('{"v": 1')
    assert PROGRAM is not None
    done = subprocess.run([PROGRAM, "run", "--config", str(scene.engine.config)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "state.json: not a state file" in done.stderr
