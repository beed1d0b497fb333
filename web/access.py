"""Authentication and roles: sessions, the proxy's header, tokens, and the forms' protection.

A request comes from a person (session cookie, or the header of a trusted proxy), from a program (token), or is
anonymous. Sessions are signed cookies (https://flask.palletsprojects.com/en/stable/quickstart/#sessions); forms carry a
CSRF token (https://flask-wtf.readthedocs.io/).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Flask, abort, g, redirect, request, session, url_for
from flask_wtf.csrf import CSRFProtect
from werkzeug.wrappers import Response as BaseResponse

from slackwater.core.config import ControllerSettings, host_and_port
from slackwater.web.known import KnownDevices
from slackwater.web.logins import Client, Logins
from slackwater.web.proxies import Proxies, network_of
from slackwater.web.security import is_loopback
from slackwater.web.sessions import EndedSessions
from slackwater.web.users import Role, Users, session_key

OPEN = {"static", "login.show", "login.log_in", "api.healthz"}
"""Endpoints for everybody."""
FOR_PROGRAMS = ("/api/", "/metrics", "/events", "/healthz")
"""Paths whose errors are JSON, without a redirect to the login page."""

LOG_IN = "log in first, or send a token"


@dataclass(frozen=True)
class Who:
    """The sender of a request; an anonymous one has no name."""

    name: str = ""
    role: Role | None = None
    by: str = ""
    """How it was proved: `session`, `proxy`, `token`."""

    @property
    def operates(self) -> bool:
        return self.role == "operator"


class Gate:
    """Identifies the sender of a request and admits it, or not."""

    def __init__(self, settings: ControllerSettings, clock: Callable[[], float] = time.time) -> None:
        web = settings.web
        self.users = Users(settings.state_dir)
        self.logins = Logins(self.users)
        self.ended = EndedSessions(settings.state_dir)
        self._proxies = Proxies(settings.web)
        self._settings = web
        self.clock = clock
        alone = bool(web.listen) and is_loopback(host_and_port(web.listen)[0]) and not web.hosts
        self.open_to_read = web.read_without_login == "always" or (web.read_without_login == "loopback" and alone)
        self.behind_tls = not alone
        self.key = session_key(settings.state_dir)
        self.devices = KnownDevices(self.key, self.behind_tls)

    def who(self) -> Who:
        """The user of the present request."""
        if "who" not in g:
            g.who = Who()  # for the page that says what is wrong with the proof
            g.who = self._by_token() or self._by_proxy() or self._by_session() or Who()
        who: Who = g.who
        return who

    def _by_token(self) -> Who | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = self.users.token(text.strip())
        if token is None:
            abort(401, "this token is unknown")
        return Who(token.name, token.role, "token")

    def _by_proxy(self) -> Who | None:
        name = self._proxies.person(request)[:64]
        if not name:
            return None
        return Who(name, "operator" if name in self._settings.proxy_operators else "viewer", "proxy")

    def client_address(self) -> str:
        """The client's address of the present request."""
        return self._proxies.client(request)

    def client(self, name: str) -> Client:
        """The sender of the present request, who wants to log in under this name."""
        return Client(network_of(self.client_address()), self.devices.of(request, name))

    def _by_session(self) -> Who | None:
        name, stamp, since_unix_s, session_id = (session.get(key) for key in ("name", "stamp", "since", "id"))
        if not isinstance(name, str) or not isinstance(since_unix_s, int | float) or not isinstance(session_id, str):
            return None
        if session_id in self.ended:
            return None
        user = self.users.get(name)
        if user is None or user.stamp != stamp:
            return None
        if not 0 <= self.clock() - since_unix_s < self._settings.session_h * 3600.0:
            return None
        return Who(user.name, user.role, "session")

    def may_look(self) -> bool:
        """Whether the sender of the present request may see what the pages show."""
        return self.open_to_read or self.who().role is not None

    def check(self) -> BaseResponse | None:
        """Before each request: redirects an anonymous one to the login page where a login is needed."""
        if request.endpoint in OPEN or request.endpoint is None or self.may_look():
            return None
        if request.path.startswith(FOR_PROGRAMS) or request.method != "GET":
            abort(401, LOG_IN)
        return redirect(url_for("login.show", next=request.full_path.rstrip("?")))


def protect(app: Flask, gate: Gate, settings: ControllerSettings) -> None:
    """Sets up sessions and CSRF protection of an application, and admits only those who may read."""
    app.config.update(
        SECRET_KEY=gate.key,
        SESSION_COOKIE_NAME="__Host-slackwater" if gate.behind_tls else "slackwater",
        SESSION_COOKIE_SECURE=gate.behind_tls,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        PERMANENT_SESSION_LIFETIME=settings.web.session_h * 3600.0,
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
        WTF_CSRF_SSL_STRICT=False,  # we send no referrer
        WTF_CSRF_CHECK_DEFAULT=False,
        MAX_CONTENT_LENGTH=64 * 1024,
    )
    csrf = CSRFProtect(app)

    @app.before_request
    def _check() -> BaseResponse | None:
        refused = gate.check()
        # A program with a token has no cookie that another site could use.
        if refused is None and request.endpoint and request.method == "POST" and gate.who().by != "token":
            if gate.who().role is None and request.path.startswith(FOR_PROGRAMS):
                abort(401, LOG_IN)  # a program that lacks its token has no use for a form's
            csrf.protect()
        return refused

    @app.context_processor
    def _who() -> dict[str, Any]:
        return {"who": gate.who()}


def path_on_this_site(path: str) -> str:
    """The path, if it is one of this site, else nothing: a redirect never leads elsewhere."""
    return path if re.match(r"/(?![/\\])", path) and path.isprintable() else ""
