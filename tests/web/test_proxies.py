"""Whose headers are believed: a proxy's, which is an address of the settings and knows a secret; nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.web.proxies import SECRET_HEADER, network_of
from tests.support.login_site import Site, wrong_logins

SECRET = "a secret of the proxy's"
NAMED = {"X-Remote-User": "anna"}
LOOPBACK, ELSEWHERE = "127.0.0.1", "203.0.113.5"


def proxy(folder: Path, secret: str = SECRET, mode: int = 0o640) -> str:
    """Settings of a dashboard behind a proxy that names people."""
    file = folder / "proxy-secret"
    file.write_text(f"{secret}\n")
    file.chmod(mode)
    return (
        'proxy_user_header = "X-Remote-User"\nproxy_operators = ["anna"]\n'
        f'proxy_secret_file = "{file}"\nproxies = ["127.0.0.1", "10.0.0.9", "::1"]\n'
    )


def may_act(site: Site, headers: dict[str, str], peer: str = LOOPBACK) -> bool:
    """Whether the sender of these headers is taken for an operator."""
    answer = site.client().get("/confirm/pause", headers=headers, environ_base={"REMOTE_ADDR": peer})
    assert answer.status_code in (200, 302, 403)
    return answer.status_code == 200


def test_a_local_user_who_names_somebody_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    user_header = 'proxy_user_header = "X-Remote-User"\nproxy_operators = ["anna"]\n'
    for web in ("", user_header, f'{user_header}proxies = ["127.0.0.1"]\n', proxy(tmp_path)):
        assert not may_act(Site(tmp_path, web), NAMED), web
    assert "web.proxy_user_header is not believed" in caplog.text
    assert "web.proxy_secret_file" in caplog.text


def test_a_proxy_with_the_secret_names_people(tmp_path: Path) -> None:
    site, known = Site(tmp_path, proxy(tmp_path)), {SECRET_HEADER: SECRET}
    assert may_act(site, NAMED | known)
    assert may_act(site, NAMED | known, "10.0.0.9")
    assert may_act(site, NAMED | known, "0:0:0:0:0:0:0:1")
    assert not may_act(site, {"X-Remote-User": "bert"} | known), "a viewer"
    assert not may_act(site, known), "names nobody"
    assert not may_act(site, NAMED | known, ELSEWHERE), "no proxy is there"
    for wrong in ("", "x", SECRET + "x", "\xff"):
        assert not may_act(site, NAMED | {SECRET_HEADER: wrong})


@pytest.mark.parametrize(
    ("secret", "mode", "says"),
    [(SECRET, 0o644, "can be used by everybody"), ("short", 0o600, "has 5 characters, expected at least 16")],
)
def test_a_secret_that_is_none_is_complained_of_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str, mode: int, says: str
) -> None:
    site = Site(tmp_path, proxy(tmp_path, secret, mode))
    assert says in caplog.text
    assert not may_act(site, NAMED | {SECRET_HEADER: secret})
    (tmp_path / "proxy-secret").unlink()
    gone = Site(tmp_path, site_settings := f'proxy_secret_file = "{tmp_path}/proxy-secret"\nproxies = ["127.0.0.1"]\n')
    assert "No such file" in caplog.text
    assert wrong_logins(gone, "anna", 11, "192.0.2.1")[-1] == 429, site_settings
    assert wrong_logins(gone, "anna", 1, "192.0.2.2") == [429], "X-Forwarded-For does not count without the secret"


def test_behind_a_proxy_clients_are_distinguished(tmp_path: Path) -> None:
    site = Site(tmp_path, 'proxies = ["10.0.0.9", "127.0.0.1"]\n')
    for peer in ("127.0.0.1", "10.0.0.9", "::ffff:10.0.0.9"):
        client = f"198.51.100.{len(peer)}"
        assert wrong_logins(site, "anna", 11, f"192.0.2.66, {client}", peer)[-1] == 429
        assert wrong_logins(site, "anna", 1, f"{client}, 192.0.2.{len(peer)}", peer) == [401]
        assert wrong_logins(site, "anna", 1, f"192.0.2.1, {client}", peer) == [429], "the last one counts"
        assert wrong_logins(site, "anna", 1, f"{client}, 10.0.0.9", peer) == [429], "two proxies"
    site.logged_in("anna")


def test_a_proxy_that_is_no_address_is_complained_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Site(tmp_path, 'proxies = ["10.0.0.9", "proxy.example"]\n')
    assert "web.proxies: 'proxy.example' is no address" in caplog.text
    assert "10.0.0.9" not in caplog.text


@pytest.mark.parametrize("peer", [LOOPBACK, "::1", ELSEWHERE])
def test_a_stranger_cannot_choose_an_address(tmp_path: Path, peer: str) -> None:
    site = Site(tmp_path, 'proxies = ["10.0.0.9"]\n')
    statuses = [wrong_logins(site, "anna", 1, f"192.0.2.{n}", peer) for n in range(11)]
    assert statuses[-1] == [429]
    assert wrong_logins(site, "anna", 1, "not an address", "203.0.113.6") == [401]


def test_a_network_of_ipv6_is_one_client(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert [wrong_logins(site, "anna", 1, peer=f"2001:db8::{n:x}") for n in range(11)][-1] == [429]
    assert wrong_logins(site, "anna", 1, peer="2001:db8:0:1::1") == [401]
    assert network_of("2001:db8:1:2:3::") == network_of("2001:DB8:1:2::1") == "2001:db8:1:2::/64"
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("/run/socket") == "/run/socket"
