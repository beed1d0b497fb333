"""What a crash has left lowered, and then `serve` cannot start, or not with everything: the baseline is back all the
same."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.controller.supervise.serve import serve
from slackwater.core import last_settings
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.baseline import Baseline, BaselineStore
from slackwater.lbengine.leadership import lock
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy
from tests.support.real_processes import free_address
from tests.support.served_site import HOSTS, Site, until, weights

pytestmark = needs_haproxy
BASE = dict.fromkeys(HOSTS, 100)


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    """The site that a `serve` left which was killed while host1 had no weight."""
    site = Site(tmp_path, balancer)
    last_settings.keep(site.state, site.config, site.config.read_text())
    leave_lowered(site, balancer)
    yield site
    site.clean()


def leave_lowered(site: Site, *balancers: RealHAProxy, name: str = "web") -> None:
    first, *others = (balancer.socket for balancer in balancers)
    pool = HAProxyPool(name=name, backend="web", socket=first, sockets=others)
    BaselineStore(site.state, pool).save(dict.fromkeys(HOSTS, Baseline(100, 100)))
    for balancer in balancers:
        balancer.send("set server web/host1 weight 0")


def stored(site: Site) -> list[str]:
    return sorted(path.name for path in (site.state / "baseline").glob("*.json"))


def start(site: Site) -> subprocess.Popen[bytes]:
    with site.log.open("ab") as log:
        command = [*site.program, "serve", "--config", str(site.config)]
        process = subprocess.Popen(command, stderr=log, start_new_session=True, env=site.environment)
    site._running.append(process)
    return process


def in_place_of(file: str) -> Callable[[Site], None]:
    """A folder stands where a file should be."""
    return lambda site: (site.state / file).mkdir(parents=True)


def wrong_settings(site: Site) -> None:
    site.config.write_text(site.config.read_text() + "\nnonsense = [\n")


def wrong_settings_and_none_before(site: Site) -> None:
    wrong_settings(site)
    (site.state / last_settings.NAME).write_text("{")


def wrong_node_list(site: Site) -> None:
    (site.state / "bus").mkdir(mode=0o700)
    (site.state / "bus/nodes").write_text("four words in line\n")


def bus_in_place_of_its_folder(site: Site) -> None:
    (site.state / "bus").write_text("")


def store_in_place_of_its_folder(site: Site) -> None:
    (site.state / "jetstream").write_text("")


def no_such_backend(site: Site) -> None:
    site.config.write_text(
        f'{site.config.read_text()}[[pool]]\nname = "api"\nbackend = "api"\nsocket = "{site.balancer.socket}"\n'
    )


WAYS = {
    "wrong settings": wrong_settings,
    "wrong settings, and those before are lost": wrong_settings_and_none_before,
    "a wrong list of nodes": wrong_node_list,
    "no folder for the bus": bus_in_place_of_its_folder,
    "a nats-server that cannot start": store_in_place_of_its_folder,
    "no lock": in_place_of("serve.lock"),
    "another pool that cannot be driven": no_such_backend,
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] if "nats-server" in way else []) for way in WAYS]
)  # a nats-server is waited for, for half a minute
def test_a_start_that_fails_ends_with_the_baseline_and_says_so(site: Site, way: str) -> None:
    WAYS[way](site)
    start(site)
    until(lambda: weights(site.balancer) == BASE, "the baseline")
    until(lambda: not stored(site), "the end of the stored baseline")
    until(lambda: "host1 0 -> 100" in site.log.read_text(), "the word that it was set back")


def test_a_taken_port_too(site: Site) -> None:
    host, _, port = site.listen.partition(":")
    with socket.create_server((host, int(port))):
        assert start(site).wait(60) == 1
    assert weights(site.balancer) == BASE
    log = site.log.read_text()
    assert "pool web: host1 0 -> 100 (`slackwater serve` could not start)" in log
    assert log.splitlines()[-1].startswith(f"error: the private nats-server cannot listen on {site.listen}")


def test_without_a_place_for_the_locks_too(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a disk that is read-only, for a user without a folder in /run."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(lock, "lock_folder", lambda _: tmp_path / "file" / "locks")
    with pytest.raises(lock.LockError, match="cannot be locked"):
        serve(site.config)
    assert weights(site.balancer) == BASE


def test_another_pools_haproxy_that_is_away_is_waited_for(site: Site, tmp_path: Path) -> None:
    with site.config.open("a") as config:
        config.write(f'[[pool]]\nname = "api"\nbackend = "api"\nsocket = "{tmp_path}/nobody.sock"\n')
    site.serve()
    until(lambda: weights(site.balancer) == BASE, "the baseline")
    assert f"{tmp_path}/nobody.sock: No such file or directory" in site.log.read_text()


def test_one_of_two_haproxies_that_is_away_is_waited_for(site: Site, balancer: RealHAProxy) -> None:
    with haproxy(backend([1, 2, 3])) as other:
        leave_lowered(site, balancer, other)
        site.write(more=f'sockets = ["{other.socket}"]\n')
        other.stop()
        Path(other.socket).unlink(missing_ok=True)
        site.serve()
        until(lambda: weights(balancer) == BASE, "the baseline")
        log = site.log.read_text()
        assert f"{other.socket}: No such file or directory" in log
        assert stored(site) == ["web.json"], "for the one that is away"


def test_only_haproxy_that_is_away_is_waited_for(site: Site, tmp_path: Path) -> None:
    site.write(mode="observe")
    site.replace(site.balancer.socket, f"{tmp_path}/later.sock")
    site.serve()
    until(lambda: "trying again until" in site.log.read_text(), "the complaint")
    until(lambda: weights(site.balancer) == BASE, "the baseline of the one that was driven before")
    (tmp_path / "later.sock").symlink_to(site.balancer.socket)
    until(lambda: "HAProxy answers again" in site.log.read_text(), "its answer")


@pytest.mark.parametrize("change", ["renamed", "moved"])
def test_a_pool_that_is_not_driven_any_more_gets_its_baseline_at_the_start(
    site: Site, change: str, tmp_path: Path
) -> None:
    if change == "renamed":
        site.replace('name = "web"', 'name = "shop"')
    else:
        (tmp_path / "moved.sock").symlink_to(site.balancer.socket)
        site.replace(site.balancer.socket, f"{tmp_path}/moved.sock")
    site.serve()
    assert weights(site.balancer) == BASE
    assert not stored(site)


def test_the_last_word_of_a_failed_start_names_each_pools_weights(site: Site, tmp_path: Path) -> None:
    pools = f'[[pool]]\nname = "api"\nbackend = "api"\nsocket = "{tmp_path}/nobody.sock"\n'
    site.config.write_text(site.config.read_text() + pools)
    last_settings.keep(site.state, site.config, site.config.read_text())
    wrong_settings(site)
    start(site)
    until(lambda: "could not start; " in site.log.read_text(), "the last word")
    logged = next(line for line in site.log.read_text().splitlines() if "could not start; " in line)
    assert logged.endswith("could not start; pool web: host1 0 -> 100 set back; pool api: nothing of ours was lowered")


def test_a_haproxy_that_is_gone_for_good_and_from_the_settings_holds_up_nothing(
    site: Site, balancer: RealHAProxy
) -> None:
    with haproxy(backend([1, 2, 3])) as other:
        leave_lowered(site, balancer, other)
        there, away = Path(other.socket), Path(f"{other.socket}.away")
        there.rename(away)
        site.serve()
        until(lambda: weights(balancer) == BASE, "the baseline")
        kept = until(lambda: [name for name in stored(site) if name.startswith("web.left-")], "what is left of it")
        site.wait_for_cycles()
        log = site.log.read_text()
        assert "is not driven" not in log
        assert f"If it is gone for good, remove {site.state}/baseline/{kept[0]}" in log
        away.rename(there)
        assert f"{kept[0].removesuffix('.json')}: host1 0 -> 100" in site.cli("restore", "--all").stdout
        assert weights(other) == BASE
        assert kept[0] not in stored(site)


@pytest.mark.parametrize("moved", ["to a backend of another name", "to another socket"])
def test_a_pool_whose_old_place_is_no_more_is_driven_at_its_new_one_and_not_lowered_there(
    site: Site, balancer: RealHAProxy, moved: str, tmp_path: Path
) -> None:
    """The servers may be the same ones."""
    if moved == "to another socket":
        gone = HAProxyPool(name="web", backend="web", socket=f"{tmp_path}/before.sock")
    else:
        gone = HAProxyPool(name="web", backend="before", socket=balancer.socket)
    (site.state / "baseline/web.json").unlink()
    BaselineStore(site.state, gone).save(dict.fromkeys(HOSTS, Baseline(100, 100)))
    site.serve()
    until(lambda: weights(balancer) == BASE, "the baseline")
    site.wait_for_cycles()
    assert "is not driven" not in site.log.read_text()


def test_a_start_that_fails_leaves_the_weights_of_the_serve_that_runs(site: Site) -> None:
    site.serve()
    until(lambda: weights(site.balancer) == BASE, "the baseline")
    leave_lowered(site, site.balancer, name="shop")
    for text in (site.config.read_text(), "nonsense"):
        site.config.write_text(text)
        assert site.cli("serve").returncode == 1
        assert site.balancer.weight("host1") == 0
    assert "shop.json" in stored(site)


def test_restore_needs_no_settings(site: Site) -> None:
    wrong_settings_and_none_before(site)
    done = site.cli("restore", "--all")
    assert (done.returncode, done.stdout) == (0, "web: host1 0 -> 100\n")
    assert weights(site.balancer) == BASE


def test_restore_is_told_the_folder_where_nothing_names_it(site: Site) -> None:
    site.config.write_text("[[pool\n")
    lost = site.cli("restore", "--all")
    assert lost.returncode == 1
    assert lost.stderr.rstrip().endswith("; `--state-dir` names the controller's folder, if it is not the usual one")
    assert "has no stored weights" in site.cli("restore", "--all", "--state-dir", str(site.config.parent)).stderr
    done = site.cli("restore", "--all", "--state-dir", str(site.state))
    assert (done.returncode, done.stdout) == (0, "web: host1 0 -> 100\n")
    assert weights(site.balancer) == BASE


def test_the_dashboards_port_may_be_taken(site: Site) -> None:
    address = free_address()
    host, _, port = address.partition(":")
    site.write(web=address)
    with socket.create_server((host, int(port))):
        site.serve()
        until(lambda: weights(site.balancer) == BASE, "the baseline")
