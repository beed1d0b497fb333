"""A changed configuration of a running `serve`: all of it counts, or nothing; with real parts and a real HAProxy."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater.core import state_dir
from slackwater.core.config import load
from slackwater.core.journal.journal import Journal, journal_path
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, web_servers
from tests.support.real_processes import free_address, is_alive
from tests.support.served_site import IN_TIME_S, Site, noise_on_host1, until, weights

pytestmark = needs_haproxy
LEASE_S = 40.0
"""Longer than a busy machine takes to start a part."""
PATIENCE_S = 300.0
"""Longest time of a reload, which starts several parts one after the other."""


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    site.write(lease_s=LEASE_S)
    yield site
    site.clean()


@pytest.fixture
def noise(site: Site) -> Iterator[Callable[[], None]]:
    with noise_on_host1(site, ("web", "shop")) as start:
        yield start


@pytest.fixture
def second() -> Iterator[RealHAProxy]:
    """Another HAProxy."""
    with web_servers(3) as ports, haproxy(backend(ports)) as running:
        yield running


def shop(balancer: RealHAProxy, mode: str = "act") -> str:
    return f'[[pool]]\nname = "shop"\nbackend = "web"\nsocket = "{balancer.socket}"\nmode = "{mode}"\n'


def reload(site: Site) -> tuple[str, list[str]]:
    """Has the file read again; what it changed by the command's own words, and the parts that were started anew."""
    done = site.cli("reload", "--json", within_s=PATIENCE_S)
    assert done.returncode == 0, (done.stdout, done.stderr, site.log.read_text())
    outcome = json.loads(done.stdout)
    return "; ".join(change["setting"] for change in outcome.get("changed", [])), outcome.get("restarted", [])


def refused(site: Site) -> str:
    done = site.cli("reload", "--state-dir", str(site.state), within_s=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()[-1].removeprefix("error: refused, the previous settings stay in force: ")


def reloads(site: Site) -> Any:
    return (state_dir.read_serve(site.state) or {})["reloads"]


def replaced(site: Site, before: dict[str, int]) -> set[str]:
    after = site.children()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@contextmanager
def watched(site: Site) -> Iterator[list[int]]:
    """Every weight of host1 that was seen meanwhile."""
    seen, done = [site.balancer.weight("host1")], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(site.balancer.weight("host1"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def cycle_time_unix_s(site: Site) -> float:
    """When lbengine's newest cycle in the journal was."""
    with Journal.open(journal_path(site.state), read_only=True) as journal:
        cycle = journal.latest_cycle("web")
    return cycle.time_unix_s if cycle else 0.0


def until_another_works(site: Site, name: str, pid: int) -> None:
    until(lambda: site.children().get(name, pid) != pid, f"another {name}")
    until(lambda: (state_dir.read_serve(site.state) or {})["works"][name], f"its work: {name}")


def get(site: Site, path: str) -> str:
    with urllib.request.urlopen(f"http://{load(site.config).web.listen}{path}", timeout=IN_TIME_S) as answer:
        return str(answer.read().decode())


# --- what is applied


def test_a_pool_acts_and_observes_again_without_a_restart(site: Site, noise: Callable[[], None]) -> None:
    site.write(mode="observe", lease_s=LEASE_S)
    serve = site.serve()
    noise()
    before = site.children()
    started_unix_s = reloads(site)["last_success_unix_s"]
    assert weights(site.balancer)["host1"] == 100

    site.replace('mode = "observe"', 'mode = "act"')
    serve.send_signal(signal.SIGHUP)
    until(lambda: site.balancer.weight("host1") < 100, "a lower weight")
    until(lambda: reloads(site).get("last"), "the end of the reload")
    assert replaced(site, before) == {"lbengine", "web"}
    assert reloads(site)["last_successful"]
    assert reloads(site)["last_success_unix_s"] > started_unix_s
    change = until(lambda: [change for change in site.changes_by("serve") if change.what == "reload"], "the record")[0]
    assert (change.pool, change.why) == ("web", 'pool.web.mode: "observe" -> "act"')
    assert 'reload: pool.web.mode: "observe" -> "act"' in site.log.read_text()
    assert state_dir.running_serve(str(site.state)) == serve.pid

    assert reload(site) == ("", [])
    site.replace('mode = "act"', 'mode = "observe"')
    done = site.cli("reload")
    assert done.stdout == 'pool.web.mode: "act" -> "observe"\nstarted anew: lbengine, web\n'
    until(lambda: set(weights(site.balancer).values()) == {100}, "the baseline")
    assert "Traceback" not in site.log.read_text()
    metrics = get(site, "/metrics")
    assert "slackwater_config_last_reload_successful 1.0" in metrics
    unix_s = metrics.partition("\nslackwater_config_last_reload_success_timestamp_seconds ")[2].partition("\n")[0]
    assert float(unix_s) == reloads(site)["last_success_unix_s"]


def test_weights_stay_lowered_while_lbengine_is_replaced(site: Site, noise: Callable[[], None]) -> None:
    site.serve()
    noise()
    until(lambda: site.balancer.weight("host1") == 0, "the lowest weight")
    before = site.children()
    with watched(site) as seen:
        site.replace("socket_timeout_s", "min_change = 0.3\nsocket_timeout_s")
        assert reload(site) == ("lbengine.min_change", ["lbengine", "web"])
        since_unix_s = time.time()
        until(lambda: cycle_time_unix_s(site) > since_unix_s, "a cycle of the new one")
    assert len(seen) > 10
    assert set(seen) == {0}
    assert replaced(site, before) == {"lbengine", "web"}
    assert "by someone else" not in site.log.read_text()


def test_a_pool_comes_and_goes_with_its_weights(site: Site, second: RealHAProxy, noise: Callable[[], None]) -> None:
    site.serve()
    noise()
    before = site.children()
    alone = site.config.read_text()
    site.config.write_text(alone + shop(second))
    assert reload(site) == ("pool.shop", ["journal", "detector", "lbengine", "web"])
    until(lambda: second.weight("host1") < 100, "a lower weight in the pool that came")
    assert replaced(site, before) == {"journal", "detector", "lbengine", "web"}

    with watched(site) as seen:
        site.config.write_text(alone)
        assert reload(site) == ("pool.shop", ["journal", "detector", "lbengine", "web"])
        assert set(weights(second).values()) == {100}
    assert max(seen) < 100
    assert not list((site.state / "baseline").glob("shop*.json"))
    site.config.write_text(alone.replace('name = "web"', 'name = "other"'))  # the same balancer under another name
    assert reload(site) == ("pool.web; pool.other", ["journal", "detector", "lbengine", "web"])
    until(lambda: set(weights(site.balancer).values()) == {100}, "the baseline of the pool that went")


def test_parts_come_and_go(site: Site) -> None:
    site.write(web="", lease_s=LEASE_S)
    site.serve()
    before = site.children()
    site.replace('listen = ""', f'listen = "{free_address()}"')
    site.config.write_text(site.config.read_text() + '[retune]\nmode = "observe"\n')
    settings, started = reload(site)
    assert (settings, started) == ("retune.mode; web.listen", ["retune", "web"])
    assert replaced(site, before) == {"retune", "web"}
    assert "lease_s" in get(site, "/settings")
    site.config.write_text(site.config.read_text().replace('mode = "observe"\n', 'mode = "off"\n'))
    assert reload(site)[0] == "retune.mode"
    assert replaced(site, before) == {"web"}


# --- what is refused


def test_what_is_wrong_changes_nothing_also_for_a_part_that_dies_afterwards(site: Site, tmp_path: Path) -> None:
    site.serve()
    right, before = site.config.read_text(), site.children()
    folder = tmp_path / "elsewhere"
    for wrong, expected in (
        (right + "[[", "not TOML"),
        (right.replace("lease_s", "lese_s"), "unknown setting `lese_s` in lbengine"),
        (right.replace('"act"', '"attack"'), "pool[0].mode"),
        (right.replace(str(site.state), str(folder)), "state_dir cannot change while the controller runs: restart it"),
        (right.replace(site.listen, free_address()), "bus.listen cannot change while the controller runs"),
        (right.replace("admin.sock", "other.sock"), "other.sock: No such file or directory"),
        (right + shop(site.balancer), "is there twice"),
        (right + f'[detector]\nmodel = "{folder}"\n', str(folder)),
        (right + f'[retune]\nmode = "act"\norder_key = "{folder}"\n', f"{folder}: No such file or directory"),
    ):
        site.config.write_text(wrong)
        assert expected in refused(site)
        assert site.children() == before
        assert not reloads(site)["last_successful"]
    site.config.unlink()
    assert f"{site.config}: cannot be read: No such file or directory" in refused(site)
    assert "slackwater_config_last_reload_successful 0.0" in _metrics(right)

    site.config.write_text(right.replace("lease_s", "lese_s"))
    done = site.cli("pause", "--why", "the file is wrong")
    assert done.returncode == 0, done.stderr
    assert "using the settings that the controller accepted last" in done.stderr
    assert site.cli("restore", "--all").returncode == 0
    for name in ("lbengine", "journal"):
        os.kill(before[name], signal.SIGKILL)
        until_another_works(site, name, before[name])
    assert (state_dir.read_serve(site.state) or {})["starts"]["lbengine"] == 2

    site.config.write_text(right.replace('"act"', '"observe"'))
    assert reload(site)[0] == "pool.web.mode"
    assert reloads(site)["last_successful"]


def _metrics(text: str) -> str:
    listen = text.partition('[web]\nlisten = "')[2].partition('"')[0]
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=IN_TIME_S) as answer:
        return str(answer.read().decode())


def test_a_part_that_does_not_start_brings_the_settings_before_back(site: Site, noise: Callable[[], None]) -> None:
    site.serve()
    noise()
    before = site.children()
    site.replace("[web]\n", "[web]\nsession_h = 7.0\n")
    site.replace('mode = "act"', 'mode = "observe"')
    site.broken.write_text("web")
    assert refused(site) == "web did not start with the new settings; its error is above"
    site.broken.unlink()
    until(lambda: "web" in site.children(), "the dashboard")
    until(lambda: (state_dir.read_serve(site.state) or {})["works"]["web"], "its work")
    page = get(site, "/settings")
    assert "<code>12.0</code>" in page
    assert "<code>7.0</code>" not in page
    assert "The file has changed" in page
    assert replaced(site, before) == {"lbengine", "web"}
    until(lambda: site.balancer.weight("host1") < 100, "it acts as before")


def test_weights_do_not_stay_lowered_when_no_lbengine_comes_up(site: Site, noise: Callable[[], None]) -> None:
    site.write(lease_s=1.5)
    site.serve()
    noise()
    site.replace("socket_timeout_s", "min_change = 0.3\nsocket_timeout_s")
    site.broken.write_text("lbengine")
    assert refused(site) == "lbengine did not start with the new settings; its error is above"
    until(lambda: set(weights(site.balancer).values()) == {100}, "the baseline")
    assert "lbengine could not be kept running for 1.5 s" in site.log.read_text()
    site.broken.unlink()
    until(lambda: site.balancer.weight("host1") < 100, "it acts as before")


def test_a_pool_whose_weights_cannot_be_put_back_stays(
    site: Site, second: RealHAProxy, noise: Callable[[], None]
) -> None:
    alone = site.config.read_text()
    site.config.write_text(alone + shop(second))
    serve = site.serve()
    noise()
    until(lambda: second.weight("host1") < 100, "a lower weight in the second pool")
    second.stop()
    site.config.write_text(alone)
    assert refused(site) == (
        "pool shop: its baseline weights could not be set; the reason is above; where its balancer is gone for good,"
        " restart the controller"
    )
    until(lambda: site.balancer.weight("host1") < 100, "the other pool is driven")
    assert "lbengine" in site.children()
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 1
    assert "pool shop: the baseline weights could not be set" in site.log.read_text()


# --- at the same time


def test_reloads_at_once_end_with_the_last_file(site: Site) -> None:
    serve = site.serve()
    for min_change in (0.1, 0.2, 0.3):
        site.write(web="", lease_s=LEASE_S)
        site.replace("socket_timeout_s", f"min_change = {min_change:g}\nsocket_timeout_s")
        serve.send_signal(signal.SIGHUP)
    changed, _ = reload(site)
    assert changed == "" or "lbengine.min_change" in changed
    assert "reload: lbengine.min_change: 0.05 -> " in site.log.read_text()
    assert "-> 0.3" in site.log.read_text()
    assert reload(site) == ("", [])
    assert "web" not in site.children()


def test_a_reload_during_the_start_waits_for_it(site: Site) -> None:
    def change() -> None:
        until(lambda: site.log.exists() and "configuration" in site.log.read_text(), "it starts")
        site.replace('mode = "act"', 'mode = "observe"')
        os.kill(int(until(lambda: (site.state / "serve.lock").exists() and (site.state / "serve.lock").read_text())), 1)

    changing = threading.Thread(target=change)
    changing.start()
    serve = site.serve()
    changing.join()
    until(lambda: reloads(site).get("last"), "the reload")
    assert not reloads(site)["last"].get("error")
    assert serve.poll() is None
    assert "reload done" in site.log.read_text()


@pytest.mark.parametrize("when", ["reading", "switching"])
def test_a_stop_during_a_reload_ends_with_the_baseline(
    site: Site, second: RealHAProxy, noise: Callable[[], None], when: str
) -> None:
    alone = site.config.read_text()
    site.config.write_text(alone + shop(second))
    serve = site.serve()
    noise()
    until(lambda: second.weight("host1") < 100, "a lower weight in the second pool")
    pids = site.children()
    site.config.write_text(alone)
    serve.send_signal(signal.SIGHUP)
    if when == "reading":
        until(lambda: "reload: reading" in site.log.read_text(), "its beginning")
    else:
        until(lambda: not is_alive(pids["detector"]), "a part is replaced")
    serve.send_signal(signal.SIGTERM)
    pids |= site.children()
    assert serve.wait(IN_TIME_S) == 0
    assert not [pid for pid in pids.values() if is_alive(pid)]
    assert set(weights(site.balancer).values()) == set(weights(second).values()) == {100}
    assert "Traceback" not in site.log.read_text()


def test_without_a_controller_the_command_says_so(site: Site) -> None:
    done = site.cli("reload")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no `slackwater serve` runs with {site.config} and its state in {site.state}")
