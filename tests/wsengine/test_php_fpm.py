"""slackwater-wsengine turns a real php-fpm (static, dynamic, ondemand), and puts it back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.real_servers import CHILDREN, TROUBLES, Control, Fpm, each_php_fpm, needs_servers, small_disk, spoil
from tests.support.real_wsengine import wait_for

pytestmark = [*needs_servers, each_php_fpm]


def test_children_of_a_static_pool_are_more_and_then_as_many_as_before(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    server = fpm("pm = static\npm.max_children = 2\n")
    wait_for(lambda: server.children() == 2, "two children")
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 6)
    assert (change.before, change.after, change.applied) == (2, 6, True), change.why
    assert "pm = static; 6 processes now by the status page /fpm-status" in change.why
    wait_for(lambda: server.children() == 6, "six children, each with its name")
    engine.end(signal.SIGKILL)
    assert server.drop_in.exists()
    engine.start()
    assert "the last run did not end well" in control.back(CHILDREN)
    assert not server.drop_in.exists()
    wait_for(lambda: server.children() == 2, "two children")


def test_a_dynamic_pool_keeps_start_and_spare_servers_that_php_fpm_accepts(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    own = (
        "pm = dynamic\npm.max_children = 8\npm.start_servers = 4\npm.min_spare_servers = 3\npm.max_spare_servers = 5\n"
    )
    server = fpm(own)
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 2)
    assert (change.before, change.after) == (8, 2), change.why
    assert "with pm.start_servers = 2, pm.min_spare_servers = 2, pm.max_spare_servers = 2" in change.why
    tested = server.tested()
    names = ("pm.max_children", "pm.start_servers", "pm.min_spare_servers", "pm.max_spare_servers")
    assert [tested[name] for name in names] == ["2"] * 4
    assert control.controller.order(CHILDREN, 20).before == 2
    assert [server.tested()[name] for name in names] == ["20", "4", "3", "5"]
    engine.end()
    assert [server.tested()[name] for name in names] == ["8", "4", "3", "5"]


def test_an_ondemand_pool_is_turned_too(control: Control, fpm: Callable[..., Fpm]) -> None:
    server = fpm("pm = ondemand\npm.max_children = 2\npm.process_idle_timeout = 60s\n")
    engine = control.engine(server.sections())
    change = control.controller.order(CHILDREN, 5)
    assert (change.before, change.after) == (2, 5), change.why
    assert "pm = ondemand" in change.why
    assert server.tested()["pm.max_children"] == "5"
    engine.end()
    assert server.tested()["pm.max_children"] == "2"


def test_php_fpm_that_would_cut_requests_or_is_broken_is_not_reloaded(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    server = fpm("pm = static\npm.max_children = 2\n", patience="0")
    wait_for(lambda: server.children() == 2, "two children")
    control.engine(server.sections())
    assert "process_control_timeout is 0: a reload would cut" in control.controller.order(CHILDREN, 6).why
    server.conf.write_text(server.conf.read_text().replace("timeout = 0", "timeout = 10s"))
    server.own.write_text(server.pool + "nonsense = 1\n")
    change = control.controller.order(CHILDREN, 6)
    assert "php-fpm's configuration does not pass its test" in change.why
    assert "unknown entry 'nonsense'" in change.why
    assert sorted(path.name for path in server.own.parent.iterdir()) == ["www.conf"]
    assert server.children() == 2


def test_php_fpm_that_is_broken_during_a_lease_is_reloaded_when_it_is_mended(
    control: Control, fpm: Callable[..., Fpm]
) -> None:
    server = fpm("pm = static\npm.max_children = 2\n")
    engine = control.engine(server.sections())
    control.controller.order(CHILDREN, 6)
    wait_for(lambda: server.children() == 6, "six children, each with its name")
    server.own.write_text(server.pool + "nonsense = 1\n")
    # A renewal changes nothing, so the broken file does not stand against it. This one ends soon, but has not expired
    # should it come late: it is given by a clock that is ahead, as a clock may be.
    soon = control.controller.make(CHILDREN, 6, lease_s=1.0, time_unix_s=time.time() + 4.0)
    control.controller.send(soon)
    log_text = control.controller.next(lambda change: change.why.startswith("not put back yet"), 0)
    assert "put back on disk, but php-fpm is not reloaded" in log_text.why
    assert "unknown entry 'nonsense'" in log_text.why
    assert not server.drop_in.exists()
    assert server.children() == 6, "the running one is left alone"
    assert CHILDREN in engine.leases()
    server.own.write_text(server.pool)
    assert "the lease of 1 s ended" in control.back(CHILDREN)
    wait_for(lambda: server.children() == 2, "two children")
    assert server.process.poll() is None


@pytest.mark.lab
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_pool_d_that_is_full_or_read_only_is_refused_in_words(
    control: Control, fpm: Callable[..., Fpm], tmp_path: Path, trouble: str
) -> None:
    """The folder of the drop-in is a file system of its own."""
    place = tmp_path / "etc"
    with small_disk(place):
        server = fpm("pm = static\npm.max_children = 2\n")
        wait_for(lambda: server.children() == 2, "two children")
        server.drop_in = place / "zz-slackwater.conf"
        server.conf.write_text(f"{server.conf.read_text()}include={place}/*.conf\n")
        spoil(place, trouble)
        control.engine(server.sections())
        change = control.controller.order(CHILDREN, 6)
        assert change.why == f"refused: {server.drop_in} cannot be written: {TROUBLES[trouble]}"
        assert [path.name for path in place.iterdir()] == (["ballast"] if trouble == "full" else [])
        assert server.children() == 2


@pytest.mark.lab
def test_without_a_place_for_the_lease_nothing_is_changed(
    control: Control, fpm: Callable[..., Fpm], tmp_path: Path
) -> None:
    """`state_dir` is a file system of its own: what cannot be kept for a start after a crash is not begun.

    The refusal is told all the same, although it cannot be kept either.
    """
    place = tmp_path / "state"
    with small_disk(place):
        server = fpm("pm = static\npm.max_children = 2\n")
        wait_for(lambda: server.children() == 2, "two children")
        engine = control.engine(server.sections())
        try:
            spoil(place, "full")
            change = control.controller.order(CHILDREN, 6)
        finally:
            engine.close()  # or its disk is busy
        assert change.why.startswith("refused: nothing is changed, since "), change.why
        assert str(place) in change.why
        assert change.why.endswith(f"cannot be written: {TROUBLES['full']}")
        assert not server.drop_in.exists()
        assert server.children() == 2


def test_the_sites_own_new_number_of_children_wins(control: Control, fpm: Callable[..., Fpm]) -> None:
    server = fpm("pm = static\npm.max_children = 2\n")
    control.engine(server.sections())
    control.controller.order(CHILDREN, 6)
    server.own.write_text(server.pool.replace("= 2", "= 3"))
    assert "the site's own pm.max_children is 3 now, it was 2: theirs holds" in control.back(CHILDREN)
    wait_for(lambda: server.children() == 3, "their three children")
