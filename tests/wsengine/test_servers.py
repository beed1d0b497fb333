"""slackwater-wsengine turns a real Apache (event, worker, prefork) and nginx, and puts them back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.real_processes import free_address
from tests.support.real_servers import (
    APACHE,
    KEEPALIVE,
    NGINX,
    TIMEOUT,
    TROUBLES,
    WORKERS,
    Apache,
    Control,
    needs_servers,
    small_disk,
    spoil,
)
from tests.support.real_wsengine import end_group, wait_for

pytestmark = needs_servers
EVENT = "ThreadsPerChild 5\nServerLimit 6\nMaxRequestWorkers 20\nMinSpareThreads 5\nMaxSpareThreads 10\n"
PREFORK = "MaxRequestWorkers 20\nServerLimit 40\n"


def says(server: Apache, own: str) -> None:
    """What the site's own file is from now on: whole at any moment, since the engine looks at it again and again."""
    draft = server.own.with_suffix(".new")
    draft.write_text(own)
    draft.replace(server.own)


@pytest.mark.parametrize(
    ("mpm", "own", "asked", "effective", "why"),
    [
        ("event", EVENT, 12, 10, "12 is no multiple of ThreadsPerChild 5, so Apache takes 10"),
        ("worker", EVENT, 100, 30, "ServerLimit 6 times ThreadsPerChild 5 allows 30; raising it takes a full restart"),
        ("prefork", PREFORK, 50, 40, "ServerLimit 40 allows 40; raising"),
    ],
)
def test_workers_become_what_apache_really_takes_and_go_back(
    control: Control, apache: Callable[[str, str], Apache], mpm: str, own: str, asked: int, effective: int, why: str
) -> None:
    server = apache(mpm, own)
    engine = control.engine(server.sections())
    change = control.controller.order(WORKERS, asked)
    assert (change.before, change.after, change.applied) == (20, effective, True), change.why
    assert why in change.why
    assert f"(asked for {asked})" in change.why
    assert "in effect since generation 1" in change.why
    assert server.number("ParentServerMPMGeneration") == 1
    assert f"MaxRequestWorkers {effective}" in server.drop_in.read_text()
    # Apache itself warns of what it would make of the number that was asked for, and of ours it does not.
    assert APACHE is not None
    asked_line = [APACHE, "-f", str(server.conf), "-t", "-c", f"MaxRequestWorkers {asked}"]
    assert "WARNING" in subprocess.run(asked_line, capture_output=True, text=True).stderr
    plain = subprocess.run([APACHE, "-f", str(server.conf), "-t"], capture_output=True, text=True)
    assert "MaxRequestWorkers" not in plain.stderr
    assert engine.end() == 0
    assert not server.drop_in.exists()
    wait_for(lambda: server.number("ParentServerMPMGeneration") == 2, "Apache has restarted")


@pytest.mark.parametrize(
    ("mpm", "own"),
    [
        pytest.param("event", EVENT, id="event"),
        pytest.param("worker", EVENT, id="worker", marks=pytest.mark.slow),
        pytest.param("prefork", PREFORK, id="prefork"),
    ],
)
def test_keepalive_of_a_running_apache_changes_and_goes_back(
    control: Control, apache: Callable[[str, str], Apache], mpm: str, own: str
) -> None:
    server = apache(mpm, own + "KeepAliveTimeout 3\n")
    engine = control.engine(server.sections())
    assert server.keepalive_header() == "timeout=3, max=100"
    change = control.controller.order(TIMEOUT, 15)
    assert (change.before, change.after) == (3, 15)
    wait_for(lambda: server.keepalive_header() == "timeout=15, max=100", "the timeout is in effect")
    change = control.controller.order(KEEPALIVE, "off")
    assert (change.before, change.after) == ("on", "off")
    wait_for(lambda: server.keepalive_header() == "Connection: close", "keep-alive is off")
    engine.end()
    wait_for(lambda: server.keepalive_header() == "timeout=3, max=100", "all is back")


@pytest.mark.parametrize(
    ("mpm", "own"),
    [
        ("event", EVENT.replace("ServerLimit 6", "ServerLimit 20").replace("Workers 20", "Workers 60")),
        pytest.param("prefork", "MaxRequestWorkers 60\nServerLimit 60\n", marks=pytest.mark.slow),
    ],
    ids=["event", "prefork"],
)
def test_an_apache_that_runs_with_other_limits_than_its_files_say_is_not_turned(
    control: Control, apache: Callable[[str, str], Apache], mpm: str, own: str
) -> None:
    """The site raised ServerLimit and only reloaded: Apache keeps the limit that it was started with."""
    server = apache(mpm, {"event": EVENT, "prefork": PREFORK}[mpm])
    says(server, own)
    server.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: server.number("ParentServerMPMGeneration") == 1, "Apache has restarted")
    engine = control.engine(server.sections())
    runs = {"event": 30, "prefork": 40}[mpm]
    wait_for(lambda: len((server.status() or {}).get("Scoreboard", "")) == runs, "the new children answer")
    change = control.controller.order(WORKERS, 10)
    assert change.why == (
        f"refused: the running Apache has {runs} places for requests (server-status), its configuration comes to 60: "
        "it was changed without a reload, or ServerLimit or ThreadLimit without a full restart"
    )
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 1
    assert engine.leases() == {}


def test_a_number_that_the_running_limits_do_not_allow_is_put_back(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    """The files allow it and the running Apache does not, which nothing shows before it is tried."""
    server = apache("event", EVENT)
    says(server, EVENT.replace("ServerLimit 6", "ServerLimit 20"))
    engine = control.engine(server.sections())
    change = control.controller.order(WORKERS, 60)
    assert "refused: the running Apache has 30 places for requests" in change.why
    assert not change.applied
    assert "the Order did not take effect" in control.back(WORKERS)
    assert not server.drop_in.exists()
    assert engine.leases() == {}
    assert control.controller.order(WORKERS, 25).after == 25


def test_orders_that_come_together_are_one_graceful_restart(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    control.engine(server.sections(reload_min_interval_s=3.0))
    values = ((WORKERS, 10), (TIMEOUT, 20), (KEEPALIVE, "off"))
    control.controller.send_together([control.controller.make(knob, value) for knob, value in values])
    wait_for(lambda: len(control.controller.changes) == 3, "three Changes")
    assert all(change.applied for change in control.controller.changes)
    assert server.number("ParentServerMPMGeneration") == 1


def test_a_broken_site_configuration_is_never_reloaded_and_the_files_stay_as_they_were(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    engine = control.engine(server.sections())
    says(server, EVENT + "Nonsense on\n")
    change = control.controller.order(WORKERS, 10)
    assert change.why.startswith("refused: Apache's configuration does not pass its test")
    assert "Invalid command 'Nonsense'" in change.why
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 0
    # Broken while a lease is in force: when that ends, the baseline is back on disk at once, and the restart comes when
    # the site is mended.
    says(server, EVENT)
    control.controller.order(WORKERS, 10)
    says(server, EVENT + "Nonsense on\n")
    control.controller.send(control.controller.make(WORKERS, "baseline"))
    log_text = control.controller.next(lambda change: change.why.startswith("not put back yet"), 0)
    assert "put back on disk, but Apache is not reloaded" in log_text.why
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 1
    assert WORKERS in engine.leases()
    says(server, EVENT)
    control.back(WORKERS)
    assert server.number("ParentServerMPMGeneration") == 2
    assert server.process.poll() is None


def test_the_sites_own_new_value_wins(control: Control, apache: Callable[[str, str], Apache]) -> None:
    server = apache("event", EVENT)
    control.engine(server.sections())
    control.controller.order(WORKERS, 10)
    says(server, EVENT.replace("MaxRequestWorkers 20", "MaxRequestWorkers 25"))
    assert "the site's own MaxRequestWorkers is 25 now, it was 20: theirs holds" in control.back(WORKERS)
    assert not server.drop_in.exists()
    assert server.number("ParentServerMPMGeneration") == 2  # so theirs is in effect
    change = control.controller.order(WORKERS, 10)
    assert "theirs holds" in change.why
    assert not change.applied


def test_a_drop_in_that_apache_does_not_include_or_that_is_overruled_is_refused(
    control: Control, apache: Callable[[str, str], Apache]
) -> None:
    server = apache("event", EVENT)
    engine = control.engine(server.sections())
    main = server.conf.read_text()
    server.conf.write_text(main.replace("IncludeOptional", "# IncludeOptional"))
    assert "does not include" in control.controller.order(WORKERS, 10).why
    server.conf.write_text(main + "MaxRequestWorkers 15\n")
    overruled = control.controller.order(WORKERS, 10).why
    assert re.search(r"apache\.conf:\d+ sets MaxRequestWorkers after our \S+: include ours last", overruled)
    server.conf.write_text(main)
    server.drop_in.write_text("MaxRequestWorkers 15\n")
    assert "was written by somebody else; it is left alone" in control.controller.order(WORKERS, 10).why
    assert server.drop_in.read_text() == "MaxRequestWorkers 15\n"
    assert server.number("ParentServerMPMGeneration") == 0
    assert engine.leases() == {}


@pytest.mark.lab
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_read_only_folder_and_a_full_disk_are_refused_in_words(
    control: Control, apache: Callable[[str, str], Apache], tmp_path: Path, trouble: str
) -> None:
    """The folder of the drop-in is a file system of its own."""
    place = tmp_path / "etc"
    with small_disk(place):
        server = apache("event", EVENT)
        server.drop_in = place / "zz-slackwater.conf"
        server.conf.write_text(server.conf.read_text() + f'IncludeOptional "{server.drop_in}"\n')
        spoil(place, trouble)
        control.engine(server.sections())
        change = control.controller.order(WORKERS, 10)
        assert change.why == f"refused: {server.drop_in} cannot be written: {TROUBLES[trouble]}"
        assert [path.name for path in place.iterdir()] == (["ballast"] if trouble == "full" else [])
        assert server.number("ParentServerMPMGeneration") == 0


def test_nginx_gets_more_workers_by_a_template_and_commands(control: Control, tmp_path: Path) -> None:
    """What any streaming server with such a setting needs: a template, a test, a reload, a way to see it."""
    assert NGINX is not None
    workers, conf, pid = tmp_path / "workers.conf", tmp_path / "nginx.conf", tmp_path / "nginx.pid"
    template = "worker_processes {value};"
    workers.write_text("worker_processes 1;\n")
    conf.write_text(
        f"include {workers};\npid {pid};\nerror_log {tmp_path}/nginx.log;\nevents {{ worker_connections 64; }}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
        f"fastcgi_temp_path {tmp_path}/fcgi; uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;\n"
        f"server {{ listen {free_address()}; }} }}\n"
    )
    command = [NGINX, "-p", str(tmp_path), "-e", str(tmp_path / "nginx.log"), "-c", str(conf)]
    count = (
        "import subprocess, sys; pid = open(sys.argv[1]).read().strip();"
        " out = subprocess.run(['ps', '--ppid', pid, '-o', 'args='], capture_output=True, text=True).stdout;"
        " print(out.count('worker process') - out.count('shutting down'))"
    )

    def argv(parts: list[str]) -> str:
        return "[" + ", ".join(f'"{part}"' for part in parts) + "]"

    sections = (
        f'[streaming]\nnum_threads = [1, 8]\nfile = "{workers}"\ntemplate = "{template}"\n'
        f"test = {argv([*command, '-t'])}\nreload = {argv([*command, '-s', 'reload'])}\n"
        f"read = {argv([sys.executable, '-c', count, str(pid)])}\nreload_min_interval_s = 0.5\n"
    )
    server = subprocess.Popen([*command, "-g", "daemon off;"], start_new_session=True)
    try:
        wait_for(lambda: pid.exists() and pid.read_text().strip(), "nginx runs")
        engine = control.engine(sections)
        change = control.controller.order("streaming.num_threads", 3)
        assert (change.before, change.after, change.applied) == (1, 3, True), change.why
        assert workers.read_text() == "worker_processes 3;\n"
        engine.end()
        assert workers.read_text() == "worker_processes 1;\n"
        read = [sys.executable, "-c", count, str(pid)]
        wait_for(
            lambda: subprocess.run(read, capture_output=True, text=True).stdout.strip() == "1", "one worker is left"
        )
    finally:
        end_group(server)
