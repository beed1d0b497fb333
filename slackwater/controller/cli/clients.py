"""The command line's clients of a controller: this machine's journal and bus, or the API of a dashboard elsewhere."""

from __future__ import annotations

import functools
import getpass
import http
import http.client
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

from slackwater.core.config import ControllerSettings
from slackwater.core.files import text_of
from slackwater.core.last_settings import load_or_last
from slackwater.core.messages import plain_json
from slackwater.core.options import Command, config_option

if TYPE_CHECKING:
    from slackwater.core.control import Request
    from slackwater.core.journal.journal import Journal
    from slackwater.core.messages import Change
    from slackwater.views.pool import PoolStatus
    from slackwater.views.week import Week
    from slackwater.views.why import Episode

ANSWERS_WITHIN_S = 15.0
RECORDED_WITHIN_S, LOOK_EVERY_S = 2.0, 0.1
"""The controller writes what it did to the journal twice a second."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
Answer = TypeVar("Answer", bound=msgspec.Struct)


class ClientError(Exception):
    """The controller could not be reached, or refused; the text has the address and the reason."""


def pool_with(client: ControllerClient, node: str) -> str | None:
    """The pool that has a node, or a server, of this name; None where there are no several pools.

    Raises ClientError where several pools have one, or none.
    """
    if len(pools := client.pools()) < 2:
        return None
    views = client.views(None)
    names = [view.pool for view in views if any(node in (row.node, row.server) for row in view.rows)]
    if len(names) > 1:
        raise ClientError(f"several pools have `{node}`, name one with --pool: {', '.join(names)}")
    if names:
        return names[0]
    raise ClientError(
        f"no pool has a server `{node}`; of one that was removed, name the pool with --pool: {', '.join(pools)}"
    )


class ControllerClient(Protocol):
    """A controller, as the commands use it."""

    def now_unix_s(self) -> float:
        """The time by the controller's clock: that of what it tells."""

    def views(self, pool: str | None) -> list[PoolStatus]:
        """The pools' tables, now."""

    def changes(
        self, pool: str | None, limit: int, since_unix_s: float | None, what: str | None = None
    ) -> list[Change]:
        """The newest first; `what`: these alone."""

    def episode(self, pool: str | None, node: str, at_unix_s: float | None = None) -> tuple[str, Episode | None]:
        """The pool's name, and the node's last episode within a week, or the one at `at_unix_s` (`why.episode_of`)."""

    def week(self, pool: str | None, days: int) -> Week:
        """What would have been done in the last days."""

    def pools(self) -> list[str]:
        """The names of all its pools."""

    def the_pool(self, pool: str | None) -> str:
        """The name of this pool; without a name that of the only one."""

    def send(self, pool: str | None, **fields: Any) -> str:
        """Has lbengine carry out a command (`slackwater.core.control.Request`); returns its answer, a sentence."""

    def settle(self, pools: Iterable[str]) -> None:
        """Waits a moment until what was answered is on record, so that the next `status` shows it."""


class LocalClient:
    """Reads the journal and sends commands over the bus: works while the dashboard is off or dead."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def now_unix_s(self) -> float:
        return time.time()

    @functools.cached_property
    def _settings(self) -> ControllerSettings:
        return load_or_last(self._config)

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        from slackwater.core.journal.journal import Journal, journal_path

        with Journal.open(journal_path(self._settings.state_dir), read_only=True) as journal:
            yield journal

    def views(self, pool: str | None) -> list[PoolStatus]:
        from slackwater.core.config import look_at
        from slackwater.lbengine.restore import has_stored
        from slackwater.views.pool import pool_status, without_controller

        pools = [self._settings.the_pool(pool)] if pool else self._settings.pool
        with self._journal() as journal:
            views = [pool_status(journal, pool.name, time.time(), pool.servers, pool.title) for pool in pools]
        if not any(view.stale for view in views) or not self._is_dead():
            return views
        settings, timeout_s = self._settings, self._settings.lbengine.socket_timeout_s
        return [
            without_controller(view, look_at(pool, timeout_s), has_stored(settings, pool)) if view.stale else view
            for view, pool in zip(views, pools, strict=True)
        ]

    def _is_dead(self) -> bool:
        """Whether it is sure that no controller runs here."""
        from slackwater.core.state_dir import is_surely_not_served

        return is_surely_not_served(self._settings.state_dir)

    def changes(
        self, pool: str | None, limit: int, since_unix_s: float | None, what: str | None = None
    ) -> list[Change]:
        name = self._settings.the_pool(pool).name if pool else None
        with self._journal() as journal:
            return journal.changes(name, limit, since_unix_s, what=what)

    def episode(self, pool: str | None, node: str, at_unix_s: float | None = None) -> tuple[str, Episode | None]:
        from slackwater.views import why

        settings = self._settings.the_pool(pool)
        named = settings.servers.get(node, node)
        with self._journal() as journal:
            return settings.name, why.episode_of(
                journal, settings.name, named, settings.servers, time.time(), at_unix_s
            )

    def week(self, pool: str | None, days: int) -> Week:
        from slackwater.views import week as views

        settings = self._settings
        pools = [settings.the_pool(pool)] if pool else settings.pool
        with self._journal() as journal:
            return views.week(journal, settings, pools, days, time.time())

    def pools(self) -> list[str]:
        return [pool.name for pool in self._settings.pool]

    def the_pool(self, pool: str | None) -> str:
        return self._settings.the_pool(pool).name

    def send(self, pool: str | None, **fields: Any) -> str:
        from slackwater.core.bus.bus import BusError
        from slackwater.core.control import Refused, send_once

        settings = self._settings.the_pool(pool)
        request = _request(login_name(), fields)
        not_running = (
            f"the controller does not run, so `{request.action}` reaches nobody;"
            " `slackwater restore --all` sets the baseline weights without it, `systemctl start"
            " slackwater-controller` starts it"
        )
        if not self._settings.bus.url and self._is_dead():
            raise ClientError(not_running)
        try:
            return send_once(self._settings.control_bus, settings.name, request)
        except BusError as error:
            # On a bus of the site's own another controller, elsewhere, might have answered.
            if self._is_dead() and Path(self._settings.state_dir).is_dir():
                raise ClientError(f"{not_running} ({error})") from None
            raise _with_another_way(error, request.action) from None
        except Refused as error:  # its disk may be full: a pause that would not be kept is none
            raise _with_another_way(error, request.action) from None

    def settle(self, pools: Iterable[str]) -> None:
        from slackwater.core.journal.journal import JournalError

        answered_unix_s, until_s = time.time(), time.monotonic() + RECORDED_WITHIN_S
        waits = set(pools)
        try:
            while waits and time.monotonic() < until_s:
                with self._journal() as journal:
                    cycles = {pool: journal.latest_cycle(pool) for pool in waits}
                ages_s = {pool: answered_unix_s - cycle.time_unix_s for pool, cycle in cycles.items() if cycle}
                waits = {pool for pool, age_s in ages_s.items() if 0.0 <= age_s < RECORDED_WITHIN_S}
                if waits:
                    time.sleep(LOOK_EVERY_S)
        except JournalError:
            return


def _request(by: str, fields: Mapping[str, Any]) -> Request:
    """The command. Raises ClientError for one that cannot be, before anybody is asked."""
    from slackwater.core.control import request_of

    try:
        return request_of({"by": by, **fields})
    except ValueError as error:
        raise ClientError(str(error)) from None


def _with_another_way(error: Exception, action: str) -> Exception:
    """The error; where a pause was in vain, with the other ways to the weights of without us."""
    if action != "pause":
        return error
    return ClientError(
        f"{error}; without a pause `systemctl stop slackwater-controller` gives your weights back too, and"
        " `slackwater restore --all` does where it does not end"
    )


class ApiClient:
    """Uses the API of a dashboard (`/api/v1/openapi.json`), in the name that the token has."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ClientError(f"`{url}` is no address of a dashboard; expected such as https://slackwater.example.org")
        if token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ClientError(f"{url}: the token would cross the network in the clear; use https")
        self._url = url.rstrip("/")
        self._token = token
        self._known: dict[str | None, str] = {}
        self._ahead_s: float | None = None
        """The dashboard's clock less this machine's; None: it was not heard of."""

    def now_unix_s(self) -> float:
        if self._ahead_s is None:
            self._views()
        return time.time() + (self._ahead_s or 0.0)

    def views(self, pool: str | None) -> list[PoolStatus]:
        views = self._views()
        if pool is not None:
            self._check(pool, views)
        return [view for view in views if pool in (None, view.pool)]

    def changes(
        self, pool: str | None, limit: int, since_unix_s: float | None, what: str | None = None
    ) -> list[Change]:
        from slackwater.views.answers import Changes

        name = self.the_pool(pool) if pool else None
        query = {"pool": name, "limit": limit, "since_unix_s": since_unix_s, "what": what}
        return self._get("/changes", Changes, {key: value for key, value in query.items() if value is not None}).changes

    def episode(self, pool: str | None, node: str, at_unix_s: float | None = None) -> tuple[str, Episode | None]:
        from slackwater.views.answers import NodeEpisode

        name = self.the_pool(pool)
        query = None if at_unix_s is None else {"at_unix_s": at_unix_s}
        return name, self._get(f"/pools/{quote(name)}/nodes/{quote(node, safe='')}/episode", NodeEpisode, query).episode

    def week(self, pool: str | None, days: int) -> Week:
        from slackwater.views.week import Week

        query = {} if pool is None else {"pool": self.the_pool(pool)}
        return self._get("/week", Week, {"days": days, **query})

    def pools(self) -> list[str]:
        return [view.pool for view in self._views()]

    def the_pool(self, pool: str | None) -> str:
        if pool not in self._known:  # the API is read once for each
            views = self._views()
            if pool is not None:
                self._check(pool, views)
            elif len(views) != 1:
                names = ", ".join(view.pool for view in views)
                raise ClientError(
                    f"there are several pools, name one with --pool: {names}" if names else "there is no pool"
                )
            self._known[pool] = pool or views[0].pool
        return self._known[pool]

    def send(self, pool: str | None, **fields: Any) -> str:
        from slackwater.views.answers import Done

        name = self.the_pool(pool)
        _request("you", fields)  # the dashboard knows who it is by the token
        return self._send(f"/pools/{quote(name)}/control", Done, msgspec.json.encode(fields)).sentence

    def settle(self, pools: Iterable[str]) -> None:
        """The dashboard's journal is not seen from here."""

    def _views(self) -> list[PoolStatus]:
        from slackwater.views.answers import Pools

        answer = self._get("/pools", Pools)
        self._ahead_s = answer.time_unix_s - time.time() if answer.time_unix_s else 0.0
        return answer.pools

    def _check(self, name: str, views: list[PoolStatus]) -> None:
        names = [view.pool for view in views]
        if name not in names:
            raise ClientError(f"no pool `{name}`; {self._url} has: {', '.join(names)}")

    def _get(self, path: str, answer: type[Answer], query: Mapping[str, Any] | None = None) -> Answer:
        return self._send(f"{path}?{urlencode(query)}" if query else path, answer, None)

    def _send(self, path: str, answer: type[Answer], body: bytes | None) -> Answer:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        import urllib3

        try:
            answered = urllib3.request(
                "GET" if body is None else "POST",
                f"{self._url}/api/v1{path}",
                body=body,
                headers=headers,
                timeout=ANSWERS_WITHIN_S,
                retries=False,  # neither repeated nor redirected: the token is for this address alone
            )
        except urllib3.exceptions.HTTPError as error:
            why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
            raise ClientError(f"{self._url}: {why or error}") from None
        if answered.status != http.HTTPStatus.OK:
            raise ClientError(f"{self._url}: {_refusal(answered.status, answered.data)}")
        try:
            return msgspec.json.decode(plain_json(answered.data), type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClientError(f"{self._url} does not answer as this version of slackwater expects: {error}") from None


def _refusal(status: int, body: bytes) -> str:
    """The API's error text, if it sent one."""
    from slackwater.views.answers import Error

    try:
        text = msgspec.json.decode(plain_json(body), type=Error).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = http.client.responses.get(status, "refused")
    hint = "; give one with --token-file or SLACKWATER_TOKEN" if status == http.HTTPStatus.UNAUTHORIZED else ""
    return f"{text} (status {status}){hint}"


def login_name() -> str:
    """The operator's name: behind sudo the person, not root."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"uid {os.getuid()}"


def client_options(command: Command) -> Command:
    """Gives a command `client`, and the options that choose it: --config, or --url and --token-file."""

    @functools.wraps(command)
    def reaching(*arguments: Any, config_path: Path, url: str | None, token_file: Path | None, **more: Any) -> Any:
        client = ApiClient(url, _token(token_file)) if url else LocalClient(config_path)
        return command(*arguments, client=client, **more)

    options = (
        config_option,
        click.option(
            "--url", envvar="SLACKWATER_URL", show_envvar=True, help="Use this dashboard's API instead of this machine."
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            envvar="SLACKWATER_TOKEN_FILE",
            show_envvar=True,
            help="With --url: a file with the token (`slackwater web token add`); or set SLACKWATER_TOKEN.",
        ),
    )
    for option in reversed(options):
        reaching = option(reaching)
    return cast("Command", reaching)


def _token(file: Path | None) -> str:
    if file is None:
        return os.environ.get("SLACKWATER_TOKEN", "").strip()
    try:
        return text_of(file).strip()
    except OSError as error:
        raise ClientError(f"{file}: the token cannot be read: {error.strerror or error}") from None
