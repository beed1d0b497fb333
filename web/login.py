"""Who is asking, and may they: sessions, the proxy's header, tokens, roles, and the forms' protection.

A request is of a person (session cookie, or the header of a trusted proxy), of a program (token), or of nobody.
Sessions are signed cookies (https://flask.palletsprojects.com/en/stable/quickstart/#sessions); forms carry a CSRF token
(https://flask-wtf.readthedocs.io/); logins are counted per address and per name (https://flask-limiter.readthedocs.io/).
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flask import Blueprint, Flask, Response, abort, g, redirect, render_template, request, session, url_for
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from flask_wtf.csrf import CSRFProtect
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from slackwater.config import ControllerSettings, host_and_port
from web.security import is_loopback
from web.users import Role, Users, session_key

log = logging.getLogger("slackwater.web")
LOGINS = "10 per minute"
LOGINS_OF_A_NAME = "20 per 15 minutes"
View = TypeVar("View", bound=Callable[..., Any])
OPEN = {"static", "login.show", "login.log_in", "api.healthz"}
"""Endpoints for everybody."""


@dataclass(frozen=True)
class Who:
    """Who asks; nobody has no name."""

    name: str = ""
    role: Role | None = None
    by: str = ""
    """How they showed it: `session`, `proxy`, `token`."""

    @property
    def operates(self) -> bool:
        return self.role == "operator"


class Gate:
    """Tells who asks and lets them in, or not."""

    def __init__(self, settings: ControllerSettings, clock: Callable[[], float] = time.time) -> None:
        web = settings.web
        self.users = Users(settings.state_dir)
        self._settings = web
        self._clock = clock
        alone = bool(web.listen) and is_loopback(host_and_port(web.listen)[0]) and not web.hosts
        self.open_to_read = web.read_without_login == "always" or (web.read_without_login == "loopback" and alone)
        self.behind_tls = not alone

    def who(self) -> Who:
        """Of the present request."""
        if "who" not in g:
            g.who = self._by_token() or self._by_proxy() or self._by_session() or Who()
        found: Who = g.who
        return found

    def _by_token(self) -> Who | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = self.users.token(text.strip())
        if token is None:
            abort(401, "this token is not known")
        return Who(token.name, token.role, "token")

    def _by_proxy(self) -> Who | None:
        header = self._settings.proxy_user_header
        name = request.headers.get(header, "").strip() if header else ""
        if not name or not self._trusted(request.remote_addr or ""):
            return None
        return Who(name[:64], "operator" if name in self._settings.proxy_operators else "viewer", "proxy")

    def _trusted(self, address: str) -> bool:
        try:
            return ipaddress.ip_address(address).is_loopback or address in self._settings.proxies
        except ValueError:
            return False

    def _by_session(self) -> Who | None:
        name, stamp, since_unix_s = (session.get(key) for key in ("name", "stamp", "since"))
        if not isinstance(name, str) or not isinstance(since_unix_s, int | float):
            return None
        user = self.users.get(name)
        if user is None or user.stamp != stamp:
            return None
        if not 0 <= self._clock() - since_unix_s < self._settings.session_h * 3600.0:
            return None
        return Who(user.name, user.role, "session")

    def check(self) -> BaseResponse | None:
        """Before each request: sends nobody to the login where a login is needed."""
        if request.endpoint in OPEN or request.endpoint is None:
            return None
        if self.open_to_read or self.who().role is not None:
            return None
        if request.path.startswith(("/api/", "/metrics", "/events")) or request.method != "GET":
            abort(401, "log in first, or show a token")
        return redirect(url_for("login.show", next=request.full_path.rstrip("?")))

    def operator(self, view: View) -> View:
        """Lets operators only in."""

        @wraps(view)
        def guarded(*arguments: Any, **named: Any) -> Any:
            who = self.who()
            if who.role is None:
                if request.path.startswith("/api/"):
                    abort(401, "log in first, or show a token")
                return redirect(url_for("login.show", next=request.referrer and urlsplit(request.referrer).path))
            if not who.operates:
                abort(403, f"{who.name} is a viewer; this needs an operator")
            return view(*arguments, **named)

        return guarded  # type: ignore[return-value]


def protect(app: Flask, gate: Gate, settings: ControllerSettings) -> None:
    """Sets sessions, CSRF and the limits of logins up for an application."""
    app.config.update(
        SECRET_KEY=session_key(settings.state_dir),
        SESSION_COOKIE_NAME="__Host-slackwater" if gate.behind_tls else "slackwater",
        SESSION_COOKIE_SECURE=gate.behind_tls,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        PERMANENT_SESSION_LIFETIME=settings.web.session_h * 3600.0,
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
        WTF_CSRF_SSL_STRICT=False,  # we send no referrer
        WTF_CSRF_CHECK_DEFAULT=False,
        MAX_CONTENT_LENGTH=64 * 1024,
        RATELIMIT_HEADERS_ENABLED=False,
    )
    csrf = CSRFProtect(app)
    limiter = Limiter(get_remote_address, app=app, storage_uri="memory://")
    app.register_blueprint(_blueprint(gate, limiter))

    @app.before_request
    def _check() -> BaseResponse | None:
        refused = gate.check()
        # A program with a token has no cookie that somebody else could use.
        if refused is None and request.endpoint and request.method == "POST" and gate.who().by != "token":
            csrf.protect()
        return refused

    @app.context_processor
    def _who() -> dict[str, Any]:
        return {"who": gate.who()}


def _blueprint(gate: Gate, limiter: Limiter) -> Blueprint:
    login = Blueprint("login", __name__)

    def name_asked() -> str:
        return f"name:{request.form.get('name', '')[:64]}"

    def too_many(_: Any) -> Response:
        return _form("Too many tries. Wait a few minutes.", 429)

    @login.get("/login")
    def show() -> Response:
        return _form("")

    @login.post("/login")
    @limiter.limit(LOGINS, on_breach=too_many)
    @limiter.limit(LOGINS_OF_A_NAME, key_func=name_asked, on_breach=too_many)
    def log_in() -> BaseResponse:
        name = request.form.get("name", "")
        user = gate.users.login(name, request.form.get("password", ""))
        if user is None:
            log.warning("a login was refused, from %s", request.remote_addr)
            return _form("Name or password is wrong.", 401)
        session.clear()
        session.permanent = True
        session.update(name=user.name, stamp=user.stamp, since=gate._clock())
        log.info("%s logged in as %s, from %s", user.name, user.role, request.remote_addr)
        return redirect(_own(request.form.get("next", "")))

    @login.post("/logout")
    def log_out() -> BaseResponse:
        session.clear()
        return redirect(url_for("pages.overview"))

    return login


def _form(problem: str, status: int = 200) -> Response:
    asked = _own(request.values.get("next", ""))
    return Response(render_template("login.html", problem=problem, next=asked), status, mimetype="text/html")


def _own(path: str) -> str:
    """The path, if it is one of this site: nothing sends people elsewhere after their login."""
    parts = urlsplit(path)
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return path if safe and path.isprintable() else url_for("pages.overview")


def told(error: HTTPException) -> str:
    """What to show a person of an error."""
    return str(error.description or error.name)
