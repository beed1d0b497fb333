"""The baseline on disk: what it is, how it follows the site's own changes, and that it is never half-written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.baseline import Baseline, BaselineError, BaselineStore, merge, set_by_someone, to_store


def store(folder: Path, **others: object) -> BaselineStore:
    return BaselineStore(folder, HAProxyPool(**{"name": "web", "backend": "web", "socket": "/s", **others}))  # type: ignore[arg-type]


def snapshot(**weights: tuple[int, int]) -> Snapshot:
    """Servers with (weight, configured weight)."""
    servers = [
        Server(name=name, weight=weight, configured=configured) for name, (weight, configured) in weights.items()
    ]
    return Snapshot(balance="roundrobin", weights_mean="share", servers=tuple(servers))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    saved = {"host1": Baseline(100, 100), "host2": Baseline(40, 50)}
    first = store(tmp_path)
    assert first.load() is None
    first.save(saved)
    assert store(tmp_path).load() == saved
    assert [path.name for path in (tmp_path / "baseline").iterdir()] == ["web.json"]
    first.remove()
    assert store(tmp_path).load() is None


@given(st.binary(max_size=200))
def test_a_corrupt_file_is_refused_with_what_to_do(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    stored = store(tmp_path_factory.mktemp("state"))
    stored.path.parent.mkdir()
    stored.path.write_bytes(data)
    with pytest.raises(BaselineError, match=r"web\.json is there but cannot be read.*then remove the file"):
        stored.load()


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    stored = store(tmp_path)
    stored.save({"host1": Baseline(100, 100)})
    whole = stored.path.read_bytes().rstrip()
    for length in range(len(whole)):
        stored.path.write_bytes(whole[:length])
        with pytest.raises(BaselineError):
            stored.load()


def test_a_file_of_another_backend_is_refused(tmp_path: Path) -> None:
    store(tmp_path).save({"host1": Baseline(100, 100)})
    with pytest.raises(BaselineError, match="belongs to pool `web`, backend `web` behind /s, not to"):
        store(tmp_path, backend="api").load()


def test_a_baseline_of_ipvs_belongs_to_its_service_and_balancer(tmp_path: Path) -> None:
    def store_of(balancer: Literal["lvs", "keepalived"], service: str) -> BaselineStore:
        return BaselineStore(
            tmp_path, {"lvs": IpvsPool, "keepalived": KeepalivedPool}[balancer]("web", service=service)
        )

    servers = {"10.0.0.11:80": Baseline(20, 0)}
    store_of("lvs", "-t 10.0.0.1:80").save(servers)
    assert store_of("lvs", "-t 10.0.0.1:80").load() == servers
    with pytest.raises(BaselineError, match=r"pool `web`, IPVS's service `-t 10\.0\.0\.1:80`, not to `web`, IPVS's"):
        store_of("lvs", "-t 10.0.0.1:81").load()
    with pytest.raises(BaselineError, match=r"not to `web`, keepalived's service `-t 10\.0\.0\.1:80`"):
        store_of("keepalived", "-t 10.0.0.1:80").load()
    with pytest.raises(BaselineError, match="not to `web`, backend `web` behind /s"):
        store(tmp_path).load()


def test_a_baseline_that_names_only_haproxys_things_is_read(tmp_path: Path) -> None:
    stored = store(tmp_path)
    stored.path.parent.mkdir()
    stored.path.write_text(
        '{"v":1,"pool":"web","socket":"/s","backend":"web","servers":{"host1":{"weight":80,"configured":100}}}'
    )
    assert stored.load() == {"host1": Baseline(80, 100)}


def test_a_file_that_was_replaced_or_removed_is_not_current(tmp_path: Path) -> None:
    stored = store(tmp_path)
    assert not stored.is_current()
    stored.save({})
    assert stored.is_current()
    stored.path.unlink()
    assert not stored.is_current()
    stored.save({})
    store(tmp_path).save({})
    assert not stored.is_current()


@pytest.mark.parametrize(
    ("good", "bad", "place"),
    [
        ('"v": 1', '"v": 99', r"\$\.v"),
        ('"weight": 80', '"weight": -80', r"\$\.servers\[\.\.\.\]\.weight"),
        ('"configured": 100', '"configured": 70000', "configured"),
        ('"maxconn": 5', '"maxconn": -5', "maxconn"),
    ],
)
def test_what_cannot_be_a_baseline_is_never_loaded(tmp_path: Path, good: str, bad: str, place: str) -> None:
    stored = store(tmp_path)
    stored.save({"host1": Baseline(80, 100, 5)})
    text = stored.path.read_text()
    assert good in text
    stored.path.write_text(text.replace(good, bad))
    with pytest.raises(BaselineError, match=place):
        stored.load()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "baseline").write_text("a file where the folder should be")
    with pytest.raises(BaselineError, match=r"web\.json: cannot be written.*no weight is changed"):
        store(tmp_path).save({})


def test_the_baseline_is_the_configured_weight_whatever_was_set_by_hand() -> None:
    expected: tuple[dict[str, Baseline], list[str]] = {"host1": Baseline(100, 100), "host2": Baseline(100, 100)}, []
    assert merge(None, snapshot(host1=(80, 100), host2=(100, 100))) == expected
    assert merge(None, snapshot(host1=(0, 100), host2=(250, 100))) == expected


def test_without_a_configured_weight_it_is_that_of_the_moment() -> None:
    assert merge(None, snapshot(host1=(80, 0))) == ({"host1": Baseline(80, 0)}, [])
    by_dns = dataclasses.replace(snapshot(host1=(80, 1)).servers[0], srv_record=True)
    assert merge(None, dataclasses.replace(snapshot(), servers=(by_dns,))) == ({"host1": Baseline(80, 1)}, [])


def test_while_nothing_is_set_a_baseline_without_a_configured_weight_follows_and_says_so() -> None:
    stored = {"host1": Baseline(100, 0), "host2": Baseline(100, 100)}
    seen = snapshot(host1=(40, 0), host2=(40, 100))
    assert merge(stored, seen) == (stored, [])
    merged, news = merge(stored, seen, {}, follow=True)
    assert merged == {"host1": Baseline(40, 0), "host2": Baseline(100, 100)}
    assert news == ["host1 has weight 40 now, it had 100, and none is configured"]


def test_a_stored_baseline_outlives_what_we_did_to_the_weights() -> None:
    stored = {"host1": Baseline(100, 100), "host2": Baseline(60, 0)}
    assert merge(stored, snapshot(host1=(0, 100), host2=(0, 0))) == (stored, [])


def test_of_a_server_that_someone_else_controls_their_weight_is_stored_and_known_again() -> None:
    seen = snapshot(host1=(40, 100), host2=(0, 100), host3=(7, 0))
    baselines, _ = merge(None, seen)
    stored = to_store(baselines, seen, {"host1"})
    assert stored == {"host1": Baseline(40, 100), "host2": Baseline(100, 100), "host3": Baseline(7, 0)}
    assert set_by_someone(stored, seen) == {"host1": 40}


def test_servers_come_and_go() -> None:
    stored = {"host1": Baseline(100, 100), "host2": Baseline(100, 100)}
    merged, news = merge(stored, snapshot(host1=(0, 100), host3=(50, 50)))
    assert merged == {"host1": Baseline(100, 100), "host3": Baseline(50, 50)}
    assert news == ["host3 is new with weight 50", "host2 is gone"]


def test_while_part_of_the_balancer_cannot_be_asked_nobody_is_gone() -> None:
    stored = {"host1": Baseline(100, 100), "host2": Baseline(50, 50)}
    part = dataclasses.replace(snapshot(host1=(0, 100)), absent=("/b: nobody listens there",))
    assert merge(stored, part) == (stored, [])


def test_a_new_configured_weight_is_the_new_baseline() -> None:
    merged, news = merge({"host1": Baseline(80, 100)}, snapshot(host1=(60, 60)))
    assert merged == {"host1": Baseline(60, 60)}
    assert news == ["host1 is configured with 60 now, it was 100"]


def test_a_server_without_weight_gets_a_baseline_when_somebody_gives_it_one() -> None:
    merged, _ = merge({"host1": Baseline(0, 0)}, snapshot(host1=(0, 0)))
    assert merged["host1"].weight == 0
    merged, news = merge(merged, snapshot(host1=(70, 0)))
    assert merged["host1"].weight == 70
    assert news == ["host1 was given weight 70"]
