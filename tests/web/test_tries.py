"""Tries to log in: how many may be, how many passwords are checked at a time, who is locked out by others' tries."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from slackwater.web import create_app
from slackwater.web.lanes import BusyError, Lane
from slackwater.web.logins import KNOWN_ADDRESSES, PLACES, WAITING, Client, Logins, Tries
from slackwater.web.users import User, Users
from tests.support.login_site import PASSWORD, Site, token_of, wrong_logins

IN_TIME_S = 60.0
COOKIE = "slackwater-known"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def log_in(client: FlaskClient, peer: str = "127.0.0.1", password: str = PASSWORD, name: str = "anna") -> int:
    form = {"name": name, "password": password, "csrf_token": token_of(client)}
    return client.post("/login", data=form, environ_base={"REMOTE_ADDR": peer}).status_code


def lock_strangers_out(site: Site, name: str = "anna") -> None:
    """Sends wrong logins from many addresses."""
    answers = [wrong_logins(site, name, 1, peer=f"203.0.113.{n}")[0] for n in range(101)]
    assert answers == [401] * 100 + [429]


def test_logins_are_limited(site: Site) -> None:
    client = site.client()
    form = {"name": "anna", "password": "wrong wrong wrong", "csrf_token": token_of(client)}
    answers = [client.post("/login", data=form) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429, 429]
    assert answers[-1].headers["Retry-After"]
    right = client.post("/login", data={**form, "password": PASSWORD})
    assert right.status_code == 429, "also the right one has to wait"


def test_wrong_logins_lock_out_nobody_else(site: Site) -> None:
    """Also behind a proxy that does not say for whom it asks."""
    assert wrong_logins(site, "victor", 12)[-2:] == [429, 429]
    site.logged_in("anna")


def test_right_logins_do_not_count(site: Site) -> None:
    for _ in range(12):
        site.logged_in("anna")


def test_a_browser_from_which_somebody_logged_in_is_not_locked_out_by_strangers(site: Site) -> None:
    client = site.logged_in("anna")
    client.post("/logout", data={"csrf_token": token_of(client, "/confirm/pause")})
    lock_strangers_out(site)
    assert log_in(site.client(), "198.51.100.1") == 429, "a stranger"
    assert log_in(client, "198.51.100.1") == 302, "the cookie passes from any address"
    cookie = client.get_cookie(COOKIE)
    assert cookie is not None
    restarted = create_app(site.settings, clock=lambda: site.now_unix_s, send=site.ask).test_client()
    restarted.set_cookie(COOKIE, cookie.value)
    assert log_in(restarted) == 302, "also after a restart"
    for value in (cookie.value[:-1], cookie.value + "x", "x", ""):
        forged = site.client()
        forged.set_cookie(COOKIE, value)
        assert log_in(forged, "198.51.100.9") == 429


def test_the_cookie_is_of_one_name_and_limited_too(site: Site) -> None:
    client = site.logged_in("victor")
    lock_strangers_out(site)
    assert log_in(client, "198.51.100.1") == 429, "anna did not log in there"
    answers = [log_in(client, f"198.51.100.{n}", "wrong wrong wrong", "victor") for n in range(11)]
    assert answers == [401] * 10 + [429], "whatever its address"
    assert log_in(site.client(), "198.51.100.1", name="victor") == 302, "others are not locked out by its tries"


def test_an_address_from_which_somebody_logged_in_is_not_locked_out_by_strangers(site: Site) -> None:
    assert log_in(site.client(), "198.51.100.1") == 302
    lock_strangers_out(site)
    assert log_in(site.client(), "198.51.100.1") == 302
    assert log_in(site.client(), "198.51.100.2") == 429


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(tmp_path: Path) -> None:
    for web, name, secure in (("", COOKIE, False), ('hosts = ["localhost"]\n', f"__Host-{COOKIE}", True)):
        client = Site(tmp_path, web).client()
        page = client.get("/login", base_url="https://localhost").text
        token = page.partition('name="csrf_token" value="')[2].partition('"')[0]
        form = {"name": "anna", "password": PASSWORD, "csrf_token": token}
        answer = client.post(
            "/login", data=form, base_url="https://localhost", headers={"Referer": "https://localhost/"}
        )
        (cookie,) = [header for header in answer.headers.getlist("Set-Cookie") if header.startswith(f"{name}=")]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert "Path=/" in cookie
        assert ("Secure" in cookie) is secure


# --- at the same time


class Held(Users):
    """A password is checked until `go` is set; `begun` are the names whose check has begun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go = threading.Event()
        self.changed = threading.Condition()
        self.begun: list[str] = []

    def login(self, name: str, _: str) -> User | None:
        with self.changed:
            self.begun.append(name)
            self.changed.notify_all()
        assert self.go.wait(IN_TIME_S)
        return None


class Tried:
    """Tries in threads of their own, and what became of them."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins
        self._threads: list[threading.Thread] = []
        self.answers: list[str] = []

    def attempt(self, name: str, client: Client) -> None:
        def run() -> None:
            try:
                self.answers.append(str(self._logins.user(name, "x", client)))
            except BusyError as error:
                self.answers.append(str(error))

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(IN_TIME_S)


def test_strangers_passwords_are_checked_one_at_a_time_and_few_wait(tmp_path: Path) -> None:
    users = Held(tmp_path)
    tried = Tried(Logins(users))
    with users.changed:
        tried.attempt("a", Client("192.0.2.1"))
        assert users.changed.wait_for(lambda: users.begun == ["a"], IN_TIME_S)
        for n in range(WAITING + 50):
            tried.attempt(f"b{n}", Client(f"192.0.2.{n}"))
        while len(tried.answers) < 50:
            users.changed.wait(0.01)
        assert all("at the same time" in answer for answer in tried.answers)
        assert users.begun == ["a"]
        # One who is known does not wait for strangers.
        tried.attempt("anna", Client("192.0.2.1", "device 1"))
        assert users.changed.wait_for(lambda: users.begun == ["a", "anna"], IN_TIME_S)
    users.go.set()
    tried.end()
    assert len(users.begun) == 2 + WAITING


def test_a_try_is_counted_before_its_password_is_checked(tmp_path: Path) -> None:
    users = Held(tmp_path)
    users.go.set()
    logins = Logins(users)
    tried = Tried(logins)
    for _ in range(10):
        assert logins.user("anna", "x", Client("192.0.2.1")) is None
    users.go.clear()
    for _ in range(20):
        tried.attempt("anna", Client("192.0.2.1"))
    tried.end()
    assert tried.answers == ["Too many tries. Wait a few minutes."] * 20
    assert len(users.begun) == 10


def test_a_lane_gives_each_place_back() -> None:
    lane = Lane(1, 0, 0.0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), lane.turn():
            raise ZeroDivisionError
    with lane.turn(), pytest.raises(BusyError, match="at the same time"), lane.turn():
        pass
    waits = Lane(1, 1, 0.0)
    with waits.turn(), pytest.raises(BusyError, match="did not come to an end"), waits.turn():
        pass


def test_tries_are_counted_within_their_time_and_in_the_same_memory() -> None:
    now_s = 0.0
    tries = Tries(2, 60.0, lambda: now_s)
    assert [tries.take("a") for _ in range(3)] == [True, True, False]
    tries.give_back("a")
    assert [tries.take("a") for _ in range(2)] == [True, False]
    now_s = 60.0
    assert tries.take("a")
    for n in range(1000):
        tries.take(n)
    assert len(tries._counts) == PLACES


def test_known_addresses_stay_a_bounded_number(tmp_path: Path) -> None:
    logins = Logins(Users(tmp_path))
    for n in range(KNOWN_ADDRESSES + 10):
        logins._remember("anna", str(n))
    assert next(iter(logins._known)) == ("anna", "10")
